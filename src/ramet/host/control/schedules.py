"""Schedules in a store: one document each, changed by compare-and-swap only.

A process beside the kernel that holds the journal reads the store itself, and has the kernel make its changes: by
requests, which the kernel executes by the usual compare-and-swap. Watchers in the kernel are notified, so that a due
tick runs now.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

from msgspec import Struct

from ramet.core.errors import Conflict, Damaged, InvalidValue
from ramet.core.schedules import ticks
from ramet.core.schedules.ticks import ScheduleRecord
from ramet.store.contract import Document, Store

KIND = "schedule"

_log = logging.getLogger("ramet.scheduler")
#: The watchers of a store's schedules: called with the id of a schedule that another process changed.
_watchers: weakref.WeakKeyDictionary[Store, set[Callable[[str], None]]] = weakref.WeakKeyDictionary()


class ScheduleEntry(NamedTuple):
    """A schedule record, and the version of its document."""

    record: ScheduleRecord
    version: int


class ScheduleTable:
    """The schedules of one store."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self._reported_ids: set[str] = set()

    async def read(self, id: str) -> ScheduleEntry | None:
        """Return the newest version; None if there is none. Raises Damaged."""
        document = await self.store.get(KIND, id)
        return None if document is None else ScheduleEntry(ticks.decode(id, document.data), document.version)

    async def all(self) -> list[ScheduleEntry]:
        """Return all recorded schedules, in order of ids. An unreadable one is left out, and logged once."""
        return [entry for each in await self.store.list(KIND) if (entry := self._readable(each)) is not None]

    async def current_records(self) -> list[ScheduleRecord]:
        """Return every schedule that was not cancelled, in order of ids."""
        return [entry.record for entry in await self.all() if not entry.record.state.cancelled]

    async def write(self, record: ScheduleRecord, version: int) -> bool:
        """Write a record of which `version` was read, 0 for a new one; return False if another writer was faster."""
        try:
            await self.store.put(KIND, record.schedule.id, ticks.encode(record), expected=version)
        except Conflict:
            return False
        return True

    async def change(self, id: str, step: Callable[[ScheduleRecord], ScheduleRecord | None]) -> ScheduleRecord | None:
        """Write the result of `step` on the newest version, repeated on conflicts; return the result, or None.

        None means that the schedule is gone or that `step` returned None, and nothing was written.
        """
        while (entry := await self.read(id)) is not None:
            changed_record = step(entry.record)
            if (
                changed_record is None
                or changed_record is entry.record
                or await self.write(changed_record, entry.version)
            ):
                return changed_record
        return None

    async def cancel(self, id: str) -> bool:
        """Delete a schedule, as soon as its active runs have ended; return False if there is none."""
        while (entry := await self.read(id)) is not None and not entry.record.state.cancelled:
            record = ticks.cancel(entry.record)
            change = self.remove(id, entry.version) if ticks.is_deletable(record) else self.write(record, entry.version)
            if await change:
                return True
        return False

    async def remove(self, id: str, version: int | None = None) -> bool:
        """Delete a schedule; return False if there is none, or if it has another version."""
        try:
            return await self.store.delete(KIND, id, expected=version)
        except Conflict:
            return False

    def watch(self, on_change: Callable[[str], None]) -> Callable[[], None]:
        """Call `on_change` with the id of each schedule that `notify` reports; return a function that stops this."""
        watchers = _watchers.setdefault(self.store, set())
        watchers.add(on_change)
        return lambda: watchers.discard(on_change)

    def notify(self, id: str) -> None:
        """Report a schedule that was changed from outside: the watchers of this store check it now."""
        for watcher in list(_watchers.get(self.store, ())):
            watcher(id)

    def _readable(self, document: Document) -> ScheduleEntry | None:
        try:
            return ScheduleEntry(ticks.decode(document.key, document.data), document.version)
        except Damaged as problem:
            if document.key not in self._reported_ids:
                self._reported_ids.add(document.key)
                _log.error("%s", problem)
            return None


class PutSchedule(Struct, frozen=True, kw_only=True, tag="put_schedule", forbid_unknown_fields=True):
    """A request to write a schedule's document; `expected` is the version that was read, 0 for a new document."""

    id: str
    data: bytes
    expected: int


class DropSchedule(Struct, frozen=True, kw_only=True, tag="drop_schedule", forbid_unknown_fields=True):
    """A request to delete a schedule, if it is of version `expected`; None means any version."""

    id: str
    expected: int | None = None


async def answer(store: Store, request: PutSchedule | DropSchedule) -> dict[str, Any]:
    """Execute a request.

    Raises Damaged and InvalidValue if the data is no schedule of that id; then nothing is written.

    `found` is the version that conflicted with the change; None without a conflict.
    """
    if isinstance(request, DropSchedule):
        try:
            return {"was_there": await store.delete(KIND, request.id, expected=request.expected), "found": None}
        except Conflict as conflict:
            return {"was_there": False, "found": conflict.found}
    record = ticks.decode(request.id, request.data)
    if record.schedule.id != request.id:
        raise InvalidValue("id", request.id, f"the id in the schedule itself, {record.schedule.id!r}")
    try:
        written = await store.put(KIND, request.id, request.data, expected=request.expected)
    except Conflict as conflict:
        return {"version": None, "found": conflict.found}
    ScheduleTable(store).notify(request.id)
    return {"version": written.version, "found": None}
