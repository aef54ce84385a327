"""Registries of recipes: each creator's registry is one key of its own namespace, so it follows checkout and fork.

    architect/__local_agent_registry__                  {"math_solver": {primer, capabilities, task_definitions, …}}
    architect/math_solver/__local_agent_registry__      {"equation_parser": {…}}

Replaced versions are kept under another key of that namespace, as long as the agent exists.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec

from ramet.core.agent_ref import AgentRef
from ramet.core.errors import AgentNotResolved, InvalidValue
from ramet.core.ids import checked_name
from ramet.core.recipe import Recipe
from ramet.store.contract import Store
from ramet.store.state.namespaced import Namespaced
from ramet.store.state.versioned import Versioned

REGISTRY = "__local_agent_registry__"
REPLACED = "__replaced_agent_versions__"
#: The state that holds the namespaces of the program's agents. An owner's state has the owner's id behind an "@".
STATE = "agents"


class Registries:
    """The registries of one store. Changes are durable when the methods return."""

    def __init__(self, store: Callable[[], Any]) -> None:
        """Set `store`, which returns the open store, or an awaitable of it, when it is first needed."""
        self._open_store = store
        self._state: Versioned | None = None
        self._changing = asyncio.Lock()

    async def state(self, owner: str = "") -> Versioned:
        """Return the state with the namespaces of the program's agents, or of the trees that have this owner."""
        if owner:
            return await Versioned.open(await self._open_store(), _state_of(owner))
        if self._state is None:
            store: Store = await self._open_store()
            if self._state is None:
                self._state = await Versioned.open(store, STATE)
        return self._state

    async def remove_state(self, owner: str) -> None:
        """Remove the state of an owner with all its branches."""
        await Versioned.remove_state(await self._open_store(), _state_of(owner))

    async def namespace(self, place: str) -> Namespaced:
        """Return the state of one agent, for reading and writing, by its place: `architect/math_solver`."""
        return Namespaced(await self.state(), place)

    async def save(self, place: str, recipe: Recipe) -> str:
        """Put a recipe into the registry of the agent at `place`; return the commit. An equal recipe changes nothing.

        A recipe of the same name with another content becomes the current version; the version before stays available.
        """
        async with self._changing:
            state = await self.state()
            namespace = Namespaced(state, place)
            previous = await namespace.entry_json(REGISTRY, recipe.name)
            if previous is not None:
                version, entry = _hash_of(previous, recipe.name), msgspec.json.decode(previous)
                if version == recipe.version:
                    return state.head.id if state.head is not None else ""
                namespace.set_entry(REPLACED, f"{recipe.name}@{version}", entry)
            namespace.set_entry(REGISTRY, recipe.name, recipe.entry())
            return (await state.commit(f"{place} made {recipe.name}", on_conflict="retry")).id

    async def find(self, place: str, name: str, version: str | None, handle: str) -> Recipe:
        """Return a recipe by name: the current version, or the given one. Raises AgentNotResolved."""
        try:
            return await self._lookup(place, name, version, handle)
        except AgentNotResolved:  # Another process may have written it since the last read.
            async with self._changing:
                await (await self.state()).checkout()
        return await self._lookup(place, name, version, handle)

    async def _lookup(self, place: str, name: str, version: str | None, handle: str) -> Recipe:
        namespace = Namespaced(await self.state(), place)
        entry = await namespace.entry_json(REGISTRY, name)
        if entry is None:
            raise AgentNotResolved(handle, "agent", name, f"is not in the registry of {place}")
        recipe = _read(entry, name, handle)
        if version in (None, recipe.version):
            return recipe
        replaced = await namespace.entry_json(REPLACED, f"{name}@{version}")
        if replaced is None:
            raise AgentNotResolved(
                handle, "version", str(version), f"of {name} is unknown; the current version is {recipe.version}"
            )
        replaced_recipe = _read(replaced, name, handle)
        if replaced_recipe.version != version:
            raise AgentNotResolved(handle, "version", str(version), f"of {name} was changed in the store")
        return replaced_recipe

    async def names(self, place: str) -> list[str]:
        """Return the names of the agents that the agent at `place` has created."""
        return sorted(Namespaced(await self.state(), place).entries(REGISTRY))

    async def forget(self, place: str, name: str) -> None:
        """Remove an agent with its versions, its state, and all agents that it created. Raises AgentNotResolved."""
        async with self._changing:
            state = await self.state()
            namespace = Namespaced(state, place)
            if not namespace.remove_entry(REGISTRY, checked_name("agent", name)):
                raise AgentNotResolved(f"{place}/{name}", "agent", name, f"is not in the registry of {place}")
            for each in namespace.entries(REPLACED, prefix=f"{name}@"):
                namespace.remove_entry(REPLACED, each)
            namespace.remove_namespace(name)
            await state.commit(f"{place} removed {name}", on_conflict="retry")


def created_ref(ref: AgentRef, recipe: Recipe) -> AgentRef:
    """Return the handle of an agent that the agent of `ref` created."""
    return AgentRef(ref.root, ref.root_version, (*ref.path, recipe.name), recipe.version)


def _state_of(owner: str) -> str:
    return f"{STATE}@{owner}"


def _read(entry_json: bytes, name: str, handle: str) -> Recipe:
    entry = msgspec.json.decode(entry_json)
    try:
        data = {"name": name, **entry} if isinstance(entry, dict) else entry
        recipe = Recipe.from_entry(data, path=name)
    except InvalidValue as problem:
        raise AgentNotResolved(handle, "recipe", name, f"is invalid: {problem}") from None
    if recipe.name != name:
        raise AgentNotResolved(handle, "recipe", name, f"belongs to another agent, {recipe.name!r}")
    return recipe


def _hash_of(entry: bytes, name: str) -> str:
    """Return the version of a registry entry; "" for an invalid entry."""
    try:
        return _read(entry, name, name).version
    except AgentNotResolved:
        return ""
