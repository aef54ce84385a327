"""A minimal registry of agents that agents create, for `TreePorts.authoring` of a runtime."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ramet.agent.from_recipe import agent_of
from ramet.core.agent_ref import AgentRef
from ramet.core.errors import AgentNotResolved, Unknown
from ramet.core.policy.capabilities import intersect
from ramet.core.recipe import Recipe
from ramet.spawn.run import Run
from ramet.tools.python import python_tool
from ramet.tools.spawn_request import CreationReceipt, SpawnRequest

ROOT = "0" * 64


class MemoryAuthoring:
    """`ramet.spawn.ports.Authoring` in memory, for agents directly below a run's agent."""

    def __init__(self) -> None:
        self.recipes: dict[str, tuple[str, Recipe]] = {}  #: by handle: whose it is, and what
        self.requests: list[tuple[str, str, dict[str, Any]]] = []

    async def create(self, run: Run, entry: Mapping[str, Any]) -> CreationReceipt:
        """Keep the recipe of an agent. Raises InvalidValue."""
        recipe = Recipe.from_entry(entry)
        granted_rights = intersect(recipe.capabilities, run.agent.capabilities)
        registered_recipe = Recipe.from_entry(
            {**recipe.data(), "capabilities": [each.data() for each in granted_rights.capabilities]}, path="granted"
        )
        ref = str(AgentRef(run.info.agent, ROOT, (registered_recipe.name,), registered_recipe.version))
        self.recipes[ref] = (run.info.agent, registered_recipe)
        return CreationReceipt(ref, granted_rights.dropped_names)

    async def spawn_request(self, run: Run, ref: str, task: str, arguments: Mapping[str, Any]) -> SpawnRequest:
        """Return the request for the child that does the task. Raises AgentNotResolved, Unknown, InvalidValue."""
        owner, recipe = self.recipes.get(ref, ("", None))
        if recipe is None or owner != run.info.agent:
            raise AgentNotResolved(ref[:100], "agent", ref[:100], "was not made by this one")
        agent = agent_of(recipe, tools=(python_tool(),))
        if task not in agent.tasks:
            raise Unknown("task", task, tuple(agent.tasks))
        task_found = agent.tasks[task]
        checked_arguments = task_found.check_arguments(arguments)
        self.requests.append((recipe.name, task, checked_arguments))
        return SpawnRequest(
            agent=agent.replace(output=task_found.output), prompt=task_found.prompt(checked_arguments), name=recipe.name
        )
