"""Schedules that another process changes while a kernel holds the journal: what it asks for at the kernel's door.

Reading needs nobody: that is done beside the kernel. A change is the same compare-and-swap as everybody's, made by the
kernel on behalf of who asked; whoever watches in that kernel is told, so that what is due now runs now.
"""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from ramet.core.errors import Conflict, InvalidValue
from ramet.core.schedules import ticks
from ramet.host.schedules.table import KIND, Documents, ScheduleTable


class PutSchedule(Struct, frozen=True, kw_only=True, tag="put_schedule", forbid_unknown_fields=True):
    """Write a schedule's document, of which `expected` was read, 0 for a new one."""

    id: str
    data: bytes
    expected: int


class DropSchedule(Struct, frozen=True, kw_only=True, tag="drop_schedule", forbid_unknown_fields=True):
    """Forget a schedule, if it is of version `expected`; None is any."""

    id: str
    expected: int | None = None


async def answer(shelf: Documents, request: PutSchedule | DropSchedule) -> dict[str, Any]:
    """Do it. Raises Damaged and InvalidValue for what is no schedule of that id; nothing is written then.

    `found` is the version that stood in the way of a change; it is None where nothing did.
    """
    if isinstance(request, DropSchedule):
        try:
            return {"was_there": await shelf.delete(KIND, request.id, expected=request.expected), "found": None}
        except Conflict as conflict:
            return {"was_there": False, "found": conflict.found}
    book = ticks.decode(request.id, request.data)
    if book.schedule.id != request.id:
        raise InvalidValue("id", request.id, f"that of the schedule itself, {book.schedule.id!r}")
    try:
        written = await shelf.put(KIND, request.id, request.data, expected=request.expected)
    except Conflict as conflict:
        return {"version": None, "found": conflict.found}
    ScheduleTable(shelf).tell(request.id)
    return {"version": written.version, "found": None}
