"""Dynamic agents of one runtime: created, resolved, and removed. A handle resolves to its agent or to an error."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from ramet.agent.capabilities.declarations import (
    AGENT_CLASS,
    find_registered,
    handle_of,
    register_undeclared,
    root_agent,
)
from ramet.agent.capabilities.task import Task
from ramet.agent.definition import Agent
from ramet.agent.from_recipe import agent_of
from ramet.core.agent_ref import AgentRef
from ramet.core.arguments import check_instance
from ramet.core.errors import AgentNotResolved, Denied, InvalidValue
from ramet.core.policy.capabilities import Capability, intersect
from ramet.core.recipe import Recipe
from ramet.host.dynamic.registry import Registries, created_ref


class StoredAgent(NamedTuple):
    """A created agent, the capabilities that it asked for in vain, and the commit that contains it."""

    ref: AgentRef
    dropped_names: tuple[str, ...]
    commit: str


class DynamicAgents:
    """The creation, resolution and removal of dynamic agents. A creator must have the capability `Agent` itself."""

    def __init__(self, store: Callable[[], Any]) -> None:
        self.registries = Registries(store)

    async def create(self, creator: Agent, entry: Mapping[str, Any] | Recipe) -> StoredAgent:
        """Create an agent in its creator's registry, with those capabilities that its creator has itself.

        Raises InvalidValue for an invalid recipe, Denied if the creator may create no agents.
        """
        if not any(each.type == "class" and each.name == AGENT_CLASS for each in creator.capabilities):
            raise Denied("creating agents", f"{creator.name} does not have the capability class {AGENT_CLASS}")
        requested = entry if isinstance(entry, Recipe) else Recipe.from_entry(entry)
        granted, dropped_names = intersect(requested.capabilities, creator.capabilities)
        recipe = Recipe(
            name=requested.name,
            primer=requested.primer,
            model=requested.model,
            capabilities=granted,
            tasks=requested.tasks,
            types=requested.types,
            limits=requested.limits,
            setup=requested.setup,
        )
        agent_of(recipe)  # Check that its types and tasks can be rebuilt.
        ref = ref_of(creator)
        commit = await self.registries.save(ref.namespace, recipe)
        return StoredAgent(created_ref(_creation_root(ref), recipe), dropped_names, commit)

    async def load(self, handle: str | AgentRef) -> Agent:
        """Return the agent of a handle, in the version of the handle.

        Raises AgentNotResolved, never returns another agent.

        The agent has those of its capabilities that all agents above it have now.
        """
        ref = handle if isinstance(handle, AgentRef) else AgentRef.parse(handle)
        handle_text = str(ref)
        agent = root_agent(ref.root, ref.root_version, handle_text)
        capabilities, model = agent.capabilities, agent.model
        if not ref.path:
            return _root(agent)
        place, recipe = ref.root, None
        for depth, name in enumerate(ref.path):
            is_last = depth == len(ref.path) - 1
            recipe = await self.registries.find(place, name, ref.version if is_last else None, handle_text)
            capabilities = intersect(recipe.capabilities, capabilities).capabilities
            model = recipe.model or model
            place = f"{place}/{name}"
        assert recipe is not None, "there is a path"
        _check_importable(capabilities, handle_text)
        try:
            return agent_of(
                recipe,
                capabilities=capabilities,
                source_modules=agent.source_modules,
                tools=_tools(capabilities, agent),
                model=model,
                ref=ref,
            )
        except InvalidValue as problem:
            raise AgentNotResolved(handle_text, "recipe", recipe.name, f"cannot be created again: {problem}") from None

    async def task(self, handle: str) -> Task:
        """Return the task of a handle such as `root@…/solver@…:solve`. Raises AgentNotResolved."""
        agent_handle, _, name = handle.rpartition(":") if isinstance(handle, str) else ("", "", "")
        if not agent_handle:
            raise InvalidValue("handle", handle, "the handle of an agent, ':', and the name of a task")
        agent = await self.load(agent_handle)
        task_definition = agent.tasks.get(name)
        if task_definition is None:
            raise AgentNotResolved(
                handle, "task", name, f"is no task of {agent.name}; expected one of: {', '.join(sorted(agent.tasks))}"
            )
        return task_definition

    async def refresh(self, agent: Agent) -> Agent:
        """Return an agent that was loaded earlier, reduced to the capabilities and tools of its present definition.

        Raises AgentNotResolved if the agent was removed. An agent that code declares is returned unchanged.
        """
        if agent.ref is None or not agent.ref.path:
            return agent
        current_agent = await self.load(agent.ref)
        removed_tools = {each.name for each in agent.capabilities if each.type == "tool"}
        removed_tools -= {each.name for each in current_agent.capabilities if each.type == "tool"}
        tools = agent.tool_entries
        if tools is not None:
            tools = tuple(each for each in tools if (each if isinstance(each, str) else each.name) not in removed_tools)
        return agent.replace(
            capabilities=intersect(agent.capabilities, current_agent.capabilities).capabilities, tools=tools
        )

    async def rebind(self, handle: str | AgentRef) -> AgentRef:
        """Return the handle of the same agent in the same version, below the root agent that this process now declares.

        Use this for a handle whose root agent was declared with another text since. Raises AgentNotResolved if the root
        is not declared here, or if the agent or its version was removed.
        """
        ref = handle if isinstance(handle, AgentRef) else AgentRef.parse(handle)
        root = find_registered(ref.root)
        if root is None:
            raise AgentNotResolved(str(ref), "root agent", ref.root, "is not declared in this process")
        rebound = handle_of(root)
        if ref.path:
            rebound = ref._replace(root_version=_creation_root(rebound).root_version)
        await self.load(rebound)
        return rebound

    async def local(self, creator: Agent | AgentRef | str, name: str) -> AgentRef:
        """Return the handle of a name: from the creator's registry, else the nearest one above, else declared by code.

        `creator` is an agent, or its handle. Raises AgentNotResolved.
        """
        creator = _creator(creator)
        path, root_ref = creator.path, _creation_root(creator)
        while True:
            place = "/".join((creator.root, *path))
            try:
                recipe = await self.registries.find(place, name, None, f"{creator.namespace}/{name}")
            except AgentNotResolved:
                if not path:
                    definition = find_registered(name)
                    if definition is None:
                        raise
                    return ref_of(_root(definition))
                path = path[:-1]
                continue
            return root_ref._replace(path=(*path, name), version=recipe.version)

    async def made_by(self, creator: Agent | AgentRef) -> Sequence[str]:
        """Return the local ids of the agents that an agent has created."""
        return await self.registries.names(
            ref_of(creator).namespace if isinstance(creator, Agent) else creator.namespace
        )

    async def delete(self, handle: str | AgentRef) -> None:
        """Remove an agent with its state and all agents that it created.

        Raises AgentNotResolved; Denied for one of code.
        """
        ref = handle if isinstance(handle, AgentRef) else AgentRef.parse(handle)
        if not ref.path:
            raise Denied("removing an agent", f"{ref.root} is declared in code")
        await self.registries.forget("/".join((ref.root, *ref.path[:-1])), ref.local_id)

    async def state_of(self, agent: Agent | AgentRef) -> Any:
        """Return the agent's own namespace (`ramet.store.state.Namespaced`), which lasts from one run to the next."""
        check_instance("agent", agent, (Agent, AgentRef), "an Agent, or its handle")
        return await self.registries.namespace(ref_of(agent).namespace if isinstance(agent, Agent) else agent.namespace)


def ref_of(agent: Agent) -> AgentRef:
    """Return an agent's handle; an agent that is declared in code is the root of its own handle."""
    handle = handle_of(agent)
    register_undeclared(agent)
    return handle


def is_known(ref: AgentRef) -> bool:
    """Return whether this process declares, or created, the root agent of a handle.

    An agent of a client may have the same name.
    """
    try:
        root_agent(ref.root, ref.root_version, str(ref))
    except AgentNotResolved:
        return False
    return True


def _creator(creator: object) -> AgentRef:
    if isinstance(creator, Agent):
        return ref_of(creator)
    if isinstance(creator, AgentRef):
        return creator
    if isinstance(creator, str):
        with suppress(InvalidValue):
            return AgentRef.parse(creator)
    raise InvalidValue("creator", creator, "a ramet.Agent, or its handle as root@version/name/…@version")


def _creation_root(ref: AgentRef) -> AgentRef:
    """Return the handle below which agents are created: it has the root's identity, without the root's capabilities."""
    try:
        root = root_agent(ref.root, ref.root_version, str(ref))
    except AgentNotResolved:  # Resolving an agent below it raises the error.
        return ref
    return ref._replace(root_version=root.recipe().identity)


def _root(agent: Any) -> Agent:
    assert isinstance(agent, Agent), "only agents are registered"
    return agent


def _tools(capabilities: Sequence[Capability], root: Any) -> tuple[Any, ...]:
    """Return the remaining tools; as objects if the root agent has them as objects."""
    objects = {each.name: each for each in root.tools or () if not isinstance(each, str)}
    return tuple(objects.get(each.name, each.name) for each in capabilities if each.type == "tool")


def _check_importable(capabilities: Sequence[Capability], handle: str) -> None:
    """Check that the packages of non-root capabilities exist; nothing is imported. Raises AgentNotResolved."""
    for each in capabilities:
        if each.type == "tool" or (each.type == "class" and ":" not in each.name):
            continue
        package = each.name.partition(":")[0].partition(".")[0]
        try:
            spec = importlib.util.find_spec(package)
        except (ImportError, ValueError):
            spec = None
        if spec is None:
            raise AgentNotResolved(handle, "capability", each.name, f"is missing: there is no package {package} here")
