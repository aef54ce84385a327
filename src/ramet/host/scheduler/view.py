"""A schedule as whoever asks for it sees it."""

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
    """A schedule as it stood when it was asked for."""

    id: str
    name: str
    next: datetime | None  #: when it fires by itself, in UTC; None: never again, or not while it is paused
    paused: bool
    running: int  #: runs that are going
    waiting: int  #: ticks that wait for one of these to end
    skipped: int  #: ticks that never run: missed, or come during a run
    last: TickResult | None  #: the newest that has ended
    schedule: Schedule


def view_of(book: ScheduleRecord) -> ScheduleView:
    """How a schedule stands."""
    state = book.state
    return ScheduleView(
        id=book.schedule.id,
        name=book.schedule.name,
        next=_next(book),
        paused=state.paused,
        running=len(state.claims),
        waiting=len(state.waiting),
        skipped=state.skipped,
        last=state.results[-1] if state.results else None,
        schedule=book.schedule,
    )


async def view_now(book: ScheduleRecord, records: JournalReader | None) -> ScheduleView:
    """The same; a tick that was lost with its process as its run does now."""
    view = view_of(book)
    return view if view.last is None else replace(view, last=await refresh_status(records, view.last))


def _next(book: ScheduleRecord) -> datetime | None:
    try:
        return ticks.next_tick(book, next_fire)
    except InvalidValue:  # a zone that this machine does not know: it does not fire here
        return None
