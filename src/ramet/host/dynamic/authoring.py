"""The operations of an active agent on agents of agents: create agents, and ask those that it can see.

An agent sees the agents of its own registry, of the registries above it, and those that code declares. It names them by
name (the nearest first) or by handle. Each agent that it asks works with no more capabilities than it has itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ramet.core.agent_ref import AgentRef
from ramet.core.errors import AgentNotResolved
from ramet.core.events import AgentCreated
from ramet.core.policy.capabilities import intersect
from ramet.core.recipe import Recipe
from ramet.host.dynamic.agents import DynamicAgents, is_known, ref_of
from ramet.host.dynamic.namespaces import state_location
from ramet.host.dynamic.task_run import task_request
from ramet.spawn.run import Run
from ramet.tools.spawn_request import CreationReceipt, SpawnRequest


class HostAuthoring:
    """The host's side of authoring, for the runs of one tree."""

    def __init__(self, agents: DynamicAgents) -> None:
        self._agents = agents

    async def create(self, run: Run, entry: Mapping[str, Any]) -> CreationReceipt:
        """Create an agent in the run's own registry. Raises InvalidValue, Denied, StoreFailed."""
        recipe = Recipe.from_entry(entry)
        created = await self._agents.create(run.agent, recipe)
        run.context.emit(
            AgentCreated,
            name=recipe.name,
            handle=str(created.ref),
            commit=created.commit,
            dropped=created.dropped_names,
        )
        return CreationReceipt(str(created.ref), created.dropped_names)

    async def spawn_request(self, run: Run, ref: str, task: str, arguments: Mapping[str, Any]) -> SpawnRequest:
        """Return the spawn request of a run that works on an agent's task. Raises AgentNotResolved, InvalidValue.

        A run in a tree of a server's client cannot ask agents of the program. Exempt is an agent of the program that
        concludes a task in that tree.
        """
        own_ref = ref_of(run.agent)
        if state_location(run).owner and not run.agent.concludes:
            # A client wrote its definition, which may equal that of an agent of the program word for word.
            raise AgentNotResolved(ref, "agent", ref, "cannot be asked in a tree that a client started")
        target_ref = AgentRef.parse(ref) if "@" in ref else await self._agents.local(own_ref, ref)
        creator_path = target_ref.path[:-1]
        is_seen = (
            target_ref.root == own_ref.root and own_ref.path[: len(creator_path)] == creator_path and is_known(own_ref)
        )
        if target_ref.path and not is_seen:
            raise AgentNotResolved(ref, "agent", target_ref.local_id, f"is not visible to {own_ref.namespace}")
        agent = await self._agents.load(target_ref)
        task_definition = agent.tasks.get(task)
        if task_definition is None:
            names = ", ".join(sorted(agent.tasks)) or "none"
            raise AgentNotResolved(ref, "task", task, f"is no task of {agent.name}; expected one of: {names}")
        granted = intersect(agent.capabilities, run.agent.capabilities).capabilities
        # Keep the agent's own handle: later lookups find the agent, not the reduced copy of this run.
        task_definition = task_definition.with_agent(agent.replace(capabilities=granted, ref=ref_of(agent)))
        return task_request(task_definition, task_definition.check_arguments(arguments))
