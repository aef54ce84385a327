"""Schedules and ticks in the form in which they are returned to callers, with what the journal has of their runs."""

from __future__ import annotations

from datetime import datetime

from msgspec import Struct
from msgspec.structs import replace

from ramet.core.errors import InvalidValue, Unknown
from ramet.core.outcome import ErrorInfo
from ramet.core.schedules import ticks
from ramet.core.schedules.schedule import Schedule
from ramet.core.schedules.ticks import ScheduleRecord, TickResult, TickStatus
from ramet.host.control.run_queries import JournalReader
from ramet.host.schedules.cron import next_fire

#: Characters of a result that are kept with its tick; the record of the run has the whole result.
MAX_TEXT = 4096


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


async def mark_starting(records: JournalReader, tick: TickResult) -> TickResult:
    """Return the tick; if its run has an id and is not recorded yet, it is starting. `records` has all its runs."""
    if tick.status is not TickStatus.RUNNING or await records.store.read(run=tick.run, limit=1):
        return tick
    return replace(tick, status=TickStatus.STARTING, run=None)


async def refresh_status(records: JournalReader | None, tick: TickResult) -> TickResult:
    """Return the tick; a lost tick gets the present state of its run: running again, or ended."""
    if records is None or tick.status is not TickStatus.LOST or tick.run is None:
        return tick
    try:
        root = await records.tree_of(tick.run)
        row = next(row for row in await records.rows(root) if row.id == tick.run)
    except (Unknown, InvalidValue, StopIteration):  # Removed since, or of a newer version.
        return tick
    if not row.is_over:
        return replace(tick, status=TickStatus.RUNNING, ended=None, error=None) if records.is_active(root) else tick
    result = row.result
    assert result is not None, "it is over"
    return replace(
        tick,
        status=TickStatus(result.status.value),
        ended=row.ended,
        text=shorten(result.text),
        error=shorten_error(result.error),
    )


def shorten(text: str) -> str:
    """Return the beginning of a text, in a form that JSON can hold."""
    return text[:MAX_TEXT].encode(errors="replace").decode()


def shorten_error(error: ErrorInfo | None) -> ErrorInfo | None:
    """Return an error with shortened texts."""
    if error is None:
        return None
    return ErrorInfo(type=shorten(error.type), message=shorten(error.message), scope=error.scope)
