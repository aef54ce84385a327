"""host/observability/counters.py: Counts of trees, with any history before."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from ramet.concurrency.clock import FakeClock
from ramet.core.events import Event, RunEnded, RunSpawned, TurnEnded, TurnStarted
from ramet.core.outcome import Result, Status
from ramet.host.journal.recorder import Recorder
from ramet.host.observability.counters import Counts

STAMP: dict[str, Any] = {"root": "run-01", "run": "run-01", "path": "main", "agent": "main"}


async def counts_of(*timed_events: tuple[float, Event], ahead_s: float = 0) -> Counts:
    """Return counts of a tree whose events come at these seconds, by a clock that may be ahead."""
    clock, counting = FakeClock(), FakeClock()
    recorder, counts = Recorder(clock), Counts(counting.now)
    counts.attach(recorder)
    await clock.advance(ahead_s)
    for seconds, event in timed_events:
        await clock.advance(seconds - counting.monotonic())
        await counting.advance(seconds - counting.monotonic())
        recorder.append(event)
    recorder.close()
    return counts


@pytest.fixture(autouse=True)
def no_listener_failed(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """A failure of a listener is logged, and affects only its counts."""
    yield
    assert not caplog.get_records("call")


async def test_only_the_first_turn_of_a_run_measures_its_start() -> None:
    """Later turns count as turns only, and so does the first turn of a run that another process spawned."""
    counts = await counts_of(
        (0, RunSpawned(**STAMP, name="main")),
        (2, TurnStarted(**STAMP, turn=1)),
        (3, TurnEnded(**STAMP, turn=1, status="completed")),
        (50, TurnStarted(**STAMP, turn=2)),
        (51, TurnEnded(**STAMP, turn=2, status="completed")),
        (60, TurnStarted(**{**STAMP, "run": "run-of-before"}, turn=1)),
    )

    assert (counts.spawned, counts.turns["completed"]) == (1, 2)
    assert (counts.starts.count, counts.starts.sum) == (1, 2.0)


async def test_a_run_that_ends_before_its_first_turn_has_no_start() -> None:
    """A turn after the end measures nothing."""
    counts = await counts_of(
        (0, RunSpawned(**STAMP, name="main")),
        (1, RunEnded(**STAMP, result=Result(status=Status.CANCELLED))),
        (9, TurnStarted(**STAMP, turn=1)),
    )

    assert (counts.starts.count, counts.ended["cancelled"]) == (0, 1)


async def test_an_event_from_the_future_has_no_lag() -> None:
    """The lag is zero, and never negative, when the clock is ahead."""
    counts = await counts_of((0, RunSpawned(**STAMP, name="main")), (5, TurnStarted(**STAMP, turn=1)), ahead_s=60)

    assert (counts.lag.count, counts.lag.sum) == (2, 0.0)
