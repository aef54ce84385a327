"""The status of a tick from the journal: whether its run was spawned, and its result if no scheduler noted it."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from ramet.core.errors import InvalidValue, Unknown
from ramet.core.outcome import ErrorInfo
from ramet.core.schedules.ticks import TickResult, TickStatus
from ramet.host.control.run_queries import JournalReader, RunRow

#: Characters of a result that are kept with its tick; the record of the run has the whole result.
MAX_TEXT = 4096


async def refresh_all(records: JournalReader | None, ticks: Iterable[TickResult]) -> tuple[TickResult, ...]:
    """Return the ticks; each lost tick has the state of its run, if the run is recorded."""
    return tuple([await refresh_status(records, each) for each in ticks])


async def mark_starting(records: JournalReader, ticks: Iterable[TickResult]) -> tuple[TickResult, ...]:
    """Return the ticks; a tick whose run has an id and is not recorded yet is starting.

    `records` has all their runs.
    """
    return tuple([each if await _is_spawned(records, each) else _starting(each) for each in ticks])


async def _is_spawned(records: JournalReader, tick: TickResult) -> bool:
    return tick.status is not TickStatus.RUNNING or bool(await records.store.read(run=tick.run, limit=1))


def _starting(tick: TickResult) -> TickResult:
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
    if row.is_over:
        return _end_tick(tick, row)
    return replace(tick, status=TickStatus.RUNNING, ended=None, error=None) if records.is_active(root) else tick


def _end_tick(tick: TickResult, row: RunRow) -> TickResult:
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
