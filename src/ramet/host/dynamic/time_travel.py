"""The past state of agents at a moment of a run: events name the commits that they made."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator, Mapping

from ramet.core.errors import InvalidValue, Unknown
from ramet.core.events import AgentCreated, Event, RunSpawned, StateCommitted
from ramet.host.dynamic.namespaces import MAIN, branch_of, recorded_state_location
from ramet.host.dynamic.registry import STATE, Registries
from ramet.host.journal.journal import Journal
from ramet.host.journal.stored_events import decode_stored, stored_events
from ramet.store.state.versioned import Versioned


async def state_at(registries: Registries, events: AsyncIterator[Event], run: str, seq: int) -> Versioned:
    """Return the state of all agents, on the run's branch, as of an event of its tree. Raises Unknown, InvalidValue.

    That is the newest commit that the tree had made there by then; before its first one, the newest of that time.
    """
    if isinstance(seq, bool) or not isinstance(seq, int) or seq < 1:
        raise InvalidValue("seq", seq, "the number of an event, from 1")
    past_events = [each async for each in events if each.seq <= seq]
    run_events = [each for each in past_events if each.run == run]
    if not run_events:
        raise Unknown("run", run)
    spawns = {each.run: each for each in past_events if isinstance(each, RunSpawned)}
    location = recorded_state_location(spawns, run)
    state = await registries.state(location.owner)
    own_commits = (each for each in run_events if isinstance(each, StateCommitted) and each.state == state.name)
    branch = next((each.branch for each in own_commits), branch_of(location))
    commit = _newest(past_events, state.name, branch)
    if not commit and branch != MAIN:
        commit = _begins_at(spawns, run)
        if not commit and _is_fork(spawns, run):
            return Versioned()
    if not commit:
        full_state = await state.open_copy()
        moment = past_events[-1].at
        assert moment is not None, "every recorded event has a time"
        newest = await full_state.newest_by(moment)
        commit = newest.id if newest is not None else ""
    return await state.open_copy(at=commit) if commit else Versioned()


def _begins_at(spawns: Mapping[str, RunSpawned], run: str) -> str:
    """Return the commit at which the branch of a run begins: its own, or that of the nearest run above."""
    return next((each.birth["begins_at"] for each in _upward(spawns, run) if each.birth.get("begins_at")), "")


def _is_fork(spawns: Mapping[str, RunSpawned], run: str) -> bool:
    return any(each.birth.get("fork_place") for each in _upward(spawns, run))


def _upward(spawns: Mapping[str, RunSpawned], run: str) -> Iterator[RunSpawned]:
    """Yield the spawn of a run and those of the runs above."""
    at: str | None = run
    while at is not None and (spawn := spawns.get(at)) is not None:
        yield spawn
        at = spawn.parent


def _newest(past_events: Iterable[Event], state: str, branch: str) -> str:
    commit = ""
    for each in past_events:
        if (isinstance(each, StateCommitted) and (each.state, each.branch) == (state, branch)) or (
            isinstance(each, AgentCreated) and (state, branch) == (STATE, MAIN)
        ):
            commit = each.commit
    return commit


async def recorded_events(journal: Journal, run: str) -> AsyncIterator[Event]:
    """Yield the recorded events of a run's tree."""
    await journal.open()
    for first in await journal.store.read(run=run, limit=1):
        async for each in stored_events(journal.store, first.tree):
            yield decode_stored(journal.store, each)


async def memory_events(events: Iterable[Event]) -> AsyncIterator[Event]:
    """Yield the events of a tree of this process without a journal."""
    for each in events:
        yield each
