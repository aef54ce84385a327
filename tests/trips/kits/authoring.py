"""A shelf of agents that agents wrote down, as small as can be: what a runtime has behind `TreePorts.authoring`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ramet.agent.from_recipe import agent_of
from ramet.core.agent_ref import AgentRef
from ramet.core.errors import AgentNotResolved, Unknown
from ramet.core.policy.capabilities import intersect
from ramet.core.recipe import Recipe
from ramet.spawn.run import Run
from ramet.tools.context import Created, SpawnRequest
from ramet.tools.python import python_tool

ROOT = "0" * 64


class Shelf:
    """What `ramet.spawn.ports.Authoring` promises, in memory, for agents right below a run's."""

    def __init__(self) -> None:
        self.kept: dict[str, tuple[str, Recipe]] = {}  #: by handle: whose it is, and what
        self.asked_for: list[tuple[str, str, dict[str, Any]]] = []

    async def create(self, run: Run, entry: Mapping[str, Any]) -> Created:
        """Keep it. Raises InvalidValue."""
        said = Recipe.from_entry(entry)
        granted = intersect(said.capabilities, run.agent.capabilities)
        kept = Recipe.from_entry(
            {**said.data(), "capabilities": [each.data() for each in granted.capabilities]}, where="granted"
        )
        ref = str(AgentRef(run.info.agent, ROOT, (kept.name,), kept.version))
        self.kept[ref] = (run.info.agent, kept)
        return Created(ref, granted.dropped)

    async def spawn_request(self, run: Run, ref: str, task: str, arguments: Mapping[str, Any]) -> SpawnRequest:
        """The child that does it. Raises AgentNotResolved, Unknown, InvalidValue."""
        owner, recipe = self.kept.get(ref, ("", None))
        if recipe is None or owner != run.info.agent:
            raise AgentNotResolved(ref[:100], "agent", ref[:100], "was not made by this one")
        agent = agent_of(recipe, tools=(python_tool(),))
        if task not in agent.tasks:
            raise Unknown("task", task, tuple(agent.tasks))
        found = agent.tasks[task]
        given = found.check_arguments(arguments)
        self.asked_for.append((recipe.name, task, given))
        return SpawnRequest(agent=agent.replace(output=found.output), prompt=found.prompt(given), name=recipe.name)
