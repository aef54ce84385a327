"""Requests of another process to change schedules while a kernel holds the journal.

Reading needs no request: the other process reads the store itself. The kernel makes a change for the requester by the
usual compare-and-swap; watchers in the kernel are notified, so that a due tick runs now.
"""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from ramet.core.errors import Conflict, InvalidValue
from ramet.core.schedules import ticks
from ramet.host.schedules.table import KIND, Documents, ScheduleTable


class PutSchedule(Struct, frozen=True, kw_only=True, tag="put_schedule", forbid_unknown_fields=True):
    """A request to write a schedule's document; `expected` is the version that was read, 0 for a new document."""

    id: str
    data: bytes
    expected: int


class DropSchedule(Struct, frozen=True, kw_only=True, tag="drop_schedule", forbid_unknown_fields=True):
    """A request to delete a schedule, if it is of version `expected`; None means any version."""

    id: str
    expected: int | None = None


async def answer(documents: Documents, request: PutSchedule | DropSchedule) -> dict[str, Any]:
    """Execute a request.

    Raises Damaged and InvalidValue if the data is no schedule of that id; then nothing is written.

    `found` is the version that conflicted with the change; None without a conflict.
    """
    if isinstance(request, DropSchedule):
        try:
            return {"was_there": await documents.delete(KIND, request.id, expected=request.expected), "found": None}
        except Conflict as conflict:
            return {"was_there": False, "found": conflict.found}
    record = ticks.decode(request.id, request.data)
    if record.schedule.id != request.id:
        raise InvalidValue("id", request.id, f"the id in the schedule itself, {record.schedule.id!r}")
    try:
        written = await documents.put(KIND, request.id, request.data, expected=request.expected)
    except Conflict as conflict:
        return {"version": None, "found": conflict.found}
    ScheduleTable(documents).notify(request.id)
    return {"version": written.version, "found": None}
