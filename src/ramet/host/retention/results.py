"""Recorded results of any run, whichever process it ended in, as long as its tree is kept."""

from __future__ import annotations

from datetime import datetime

import msgspec

from ramet.core.errors import BusyError, Expired, Unknown
from ramet.core.outcome import Result
from ramet.host.journal.journal import TREES, Journal
from ramet.host.journal.stored_events import location_of
from ramet.host.journal.ttl import read_lifetime
from ramet.host.retention.sweep import EXPIRED, Tombstone
from ramet.store.contract import Store


async def check_not_expired(journal: Journal | None, root: str, run: str, now: datetime) -> None:
    """Raise Expired for a run whose tree has expired, whether or not the tree was removed by now."""
    if journal is None or not journal.is_open or root in journal.living:
        return
    document = await journal.store.get(TREES, root)
    if document is None:
        await _check_tombstones(journal.store, run)
    elif (lifetime := read_lifetime(document, location_of(journal.store))).has_expired(now):
        raise Expired(run, lifetime.ended, lifetime.keep_s)


async def recorded_result(journal: Journal | None, run: str, now: datetime) -> Result:
    """Return the result of a run that this process does not have.

    Raises Unknown, Expired, BusyError while the run is open.
    """
    replay = await journal.replay_of(run) if journal is not None else None
    if journal is None or replay is None or run not in replay.runs:
        if journal is not None:
            await _check_tombstones(journal.store, run)
        raise Unknown("run", run)
    await check_not_expired(journal, replay.root.id, run, now)
    result = replay.runs[run].result
    if result is None:
        raise BusyError(f"{replay.runs[run].spawn_event.path} has not ended; resume() continues it")
    return result


async def _check_tombstones(store: Store, run: str) -> None:
    for each in await store.list(EXPIRED):
        note = msgspec.json.decode(each.data, type=Tombstone)
        if run in note.runs:
            raise Expired(run, note.ended, note.keep_s)
