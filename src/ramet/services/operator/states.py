"""Read-only views of agents' data: their states, and the recipes of agents that they created."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from ramet.core.errors import InvalidValue, Unknown
from ramet.core.recipe import Recipe
from ramet.host.dynamic.namespaces import (
    StateLocation,
    branch_of,
    place_of,
    prefix_below,
    recorded_state_location,
)
from ramet.host.dynamic.registry import REGISTRY, REPLACED, Registries
from ramet.host.dynamic.time_travel import recorded_events, state_at
from ramet.host.journal.journal import Journal
from ramet.services.operator.contract import (
    MOST,
    RecipeFilter,
    RecipePage,
    RecipeRow,
    StatePage,
    StateQuery,
    StateVersion,
    StateVersions,
)
from ramet.services.operator.runs import RunViews, checked_limit
from ramet.store.state.namespaced import Namespaced
from ramet.store.state.validation import checked_key
from ramet.store.state.versioned import Versioned

MOST_BYTES = 4 * 1024 * 1024  #: of a page as JSON; its first value may be larger


class StateViews:
    """The committed states of a kernel's agents. Queries change nothing."""

    def __init__(self, registries: Registries, journal: Journal, runs: RunViews) -> None:
        self._registries, self._journal, self._runs = registries, journal, runs

    async def page(self, run: str, request: StateQuery) -> StatePage:
        """Return values of a run's state. Raises Unknown for a run or a commit, InvalidValue."""
        limit, location = checked_limit(request.limit), await self._locate(run)
        state = await self._as_of(run, location, request)
        run_state = Namespaced(state, place_of(location))
        keys = [
            key for key in await run_state.read_keys(request.prefix) if key > request.after and not _is_registry(key)
        ]
        page_space, values = _PageCounter(limit), dict[str, Any]()
        for key in keys:
            value = await run_state.read(key)
            if not page_space.count_if_fits(value):
                break
            values[key] = value
        return StatePage(
            owner=location.owner,
            place=place_of(location),
            branch=branch_of(location),
            commit=state.head.id if state.head is not None else "",
            values=values,
            more=list(values)[-1] if len(values) < len(keys) else "",
        )

    async def versions(self, run: str, limit: int) -> StateVersions:
        """Return the commits of a run's state, the newest first, and its branch with those of its delegates."""
        entry_limit, location = checked_limit(limit), await self._locate(run)
        state = await (await self._registries.state(location.owner)).open_copy(branch_of(location))
        branches = await state.branches(prefix_below(location))
        if state.head is not None:
            branches = {branch_of(location): state.head.id, **branches}
        return StateVersions(
            branch=branch_of(location),
            versions=[
                StateVersion(id=each.id, parents=each.parents, at=each.at, message=each.message, author=each.author)
                for each in await Namespaced(state, place_of(location)).own_history(entry_limit)
            ],
            branches=dict(list(branches.items())[:MOST]),
        )

    async def recipes(self, request: RecipeFilter) -> RecipePage:
        """Return the agents that agents have created, in order of place and name. Raises InvalidValue."""
        limit = checked_limit(request.limit)
        state = await (await self._registries.state()).open_copy()
        place = checked_key(request.place, field="place") if request.place else ""
        names: list[tuple[str, str]] = []
        for each in [place] if place else await _creators(state):
            names += [(each, name) for name in Namespaced(state, each).entries(REGISTRY)]
        names = sorted((each for each in names if "/".join(each) > request.after), key="/".join)
        page_space, rows = _PageCounter(limit), list[RecipeRow]()
        for each, name in names:
            row = await _row(state, each, name)
            if not page_space.count_if_fits(row):
                break
            rows.append(row)
        return RecipePage(recipes=rows, more=f"{rows[-1].place}/{rows[-1].name}" if len(rows) < len(names) else "")

    async def _locate(self, run: str) -> StateLocation:
        runs = (await self._runs.replay(run)).runs
        return recorded_state_location({id: each.spawn_event for id, each in runs.items()}, run)

    async def _as_of(self, run: str, location: StateLocation, request: StateQuery) -> Versioned:
        if request.at and request.commit:
            raise InvalidValue("commit", request.commit, "none together with `at`, which sets the time")
        if request.at:
            return await state_at(self._registries, recorded_events(self._journal, run), run, request.at)
        state = await (await self._registries.state(location.owner)).open_copy(branch_of(location))
        if not request.commit:
            return state
        commit = await state.before(request.commit)
        if commit is None:
            raise Unknown("commit", request.commit)
        return await state.open_copy(branch_of(location), at=commit)


class _PageCounter:
    """A counter of the entries and bytes of a page."""

    def __init__(self, limit: int) -> None:
        self._limit, self._bytes = limit, 0

    def count_if_fits(self, value: Any) -> bool:
        """Count an entry if it fits, and return whether it does; the first one always fits."""
        size = len(msgspec.json.encode(value))
        if self._bytes and (self._limit <= 0 or self._bytes + size > MOST_BYTES):
            return False
        self._limit, self._bytes = self._limit - 1, self._bytes + size
        return True


async def _creators(state: Versioned) -> Sequence[str]:
    """Return the places of agents that have created others."""
    end = f"/{REGISTRY}"
    return [key.removesuffix(end) for key in await state.read_keys() if key.endswith(end)]


async def _row(state: Versioned, place: str, name: str) -> RecipeRow:
    place_state = Namespaced(state, place)
    entry = await place_state.read_entry(REGISTRY, name)
    versions = place_state.entries(REPLACED, prefix=f"{name}@", limit=MOST)
    return RecipeRow(
        place=place,
        name=name,
        version=_version(name, entry),
        replaced=[each.removeprefix(f"{name}@") for each in versions],
        recipe=entry if isinstance(entry, dict) else {},
    )


def _version(name: str, entry: Any) -> str:
    try:
        return Recipe.from_entry({"name": name, **entry} if isinstance(entry, dict) else entry).version
    except InvalidValue:
        return ""


def _is_registry(key: str) -> bool:
    return not {REGISTRY, REPLACED}.isdisjoint(key.split("/"))
