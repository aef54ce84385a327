"""A schedule in the form in which it is returned to callers."""

from __future__ import annotations

from datetime import datetime

from msgspec import Struct
from msgspec.structs import replace

from ramet.core.errors import InvalidValue
from ramet.core.schedules import ticks
from ramet.core.schedules.schedule import Schedule
from ramet.core.schedules.ticks import ScheduleRecord, TickResult
from ramet.host.control.run_queries import JournalReader
from ramet.host.scheduler.status import refresh_status
from ramet.host.schedules.cron import next_fire


class ScheduleView(Struct, frozen=True, kw_only=True):
    """A snapshot of a schedule at the time of the request."""

    id: str
    name: str
    next: datetime | None  #: its next own tick, in UTC; None: no more, or not while it is paused
    paused: bool
    running: int  #: active runs
    waiting: int  #: ticks that wait for the end of an active run
    skipped: int  #: ticks that never run: missed, or due during a run
    last: TickResult | None  #: the newest tick that has ended
    schedule: Schedule


def view_of(record: ScheduleRecord) -> ScheduleView:
    """Return the view of a schedule."""
    state = record.state
    return ScheduleView(
        id=record.schedule.id,
        name=record.schedule.name,
        next=_next(record),
        paused=state.paused,
        running=len(state.claims),
        waiting=len(state.waiting),
        skipped=state.skipped,
        last=state.results[-1] if state.results else None,
        schedule=record.schedule,
    )


async def view_now(record: ScheduleRecord, records: JournalReader | None) -> ScheduleView:
    """Return the view of a schedule; a lost tick is refreshed from its run's present state."""
    view = view_of(record)
    return view if view.last is None else replace(view, last=await refresh_status(records, view.last))


def _next(record: ScheduleRecord) -> datetime | None:
    try:
        return ticks.next_tick(record, next_fire)
    except InvalidValue:  # a zone that this machine does not know: the schedule does not fire here
        return None
