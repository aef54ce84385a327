"""The past state of agents at a moment of a run: events name the commits that they made."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable

from ramet.core.errors import InvalidValue, Unknown
from ramet.core.events import AgentCreated, Event, RunSpawned, StateCommitted
from ramet.host.dynamic.namespaces import MAIN
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
    state = await registries.state(_owner(past_events))
    branch, begins_at = MAIN, ""
    for each in run_events:
        if isinstance(each, RunSpawned):
            begins_at = each.birth.get("begins_at", begins_at)
        elif isinstance(each, StateCommitted) and each.state == state.name:
            branch = each.branch
    commit = _newest(past_events, state.name, branch) if branch != MAIN or not begins_at else begins_at
    if not commit:
        full_state = await state.open_copy()
        moment = past_events[-1].at
        assert moment is not None, "every recorded event has a time"
        newest = await full_state.newest_by(moment)
        commit = newest.id if newest is not None else ""
    return await state.open_copy(at=commit) if commit else Versioned()


def _owner(past_events: Iterable[Event]) -> str:
    """Return the owner of the tree's state, which is recorded in the spawn of its root."""
    spawns = (each for each in past_events if isinstance(each, RunSpawned) and each.run == each.root)
    return next((str(each.birth.get("state_owner", "")) for each in spawns), "")


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
