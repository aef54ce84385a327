"""Timers of a queue fire in order, with one task for all of them."""

from __future__ import annotations

import asyncio
import logging
from functools import partial

import pytest

from ramet.concurrency.clock import FakeClock
from ramet.concurrency.timers import Timer, TimerQueue


async def test_timers_fire_in_the_order_of_their_times() -> None:
    """Each calls its function once, at its time."""
    clock, fired = FakeClock(), list[tuple[str, float]]()
    queue = TimerQueue(clock)
    for name, at_s in (("late", 30.0), ("early", 10.0), ("middle", 20.0)):
        queue.call_at(at_s, lambda name=name: fired.append((name, clock.monotonic())))  # type: ignore[misc]

    await clock.advance(60)

    assert fired == [("early", 10), ("middle", 20), ("late", 30)]
    assert queue.count == 0


async def test_a_thousand_timers_need_one_task() -> None:
    """An earlier timer replaces the wait of the task."""
    clock, fired = FakeClock(), list[int]()
    queue, tasks = TimerQueue(clock), len(asyncio.all_tasks())
    for number in reversed(range(1_000)):
        queue.call_at(10 + number, partial(fired.append, number))
    await asyncio.sleep(0)

    assert len(asyncio.all_tasks()) == tasks + 1
    assert clock.sleeping == 1
    await clock.advance(2_000)
    assert fired == list(range(1_000))
    assert len(asyncio.all_tasks()) == tasks


async def test_a_cancelled_timer_does_not_fire() -> None:
    """Without a timer there is no task; a later timer begins one."""
    clock, fired = FakeClock(), list[str]()
    queue, tasks = TimerQueue(clock), len(asyncio.all_tasks())
    timer = queue.call_at(10, lambda: fired.append("cancelled"))
    await asyncio.sleep(0)
    assert clock.sleeping == 1
    timer.cancel()
    timer.cancel()
    await asyncio.sleep(0)
    assert (queue.count, len(asyncio.all_tasks())) == (0, tasks)

    queue.call_at(20, lambda: fired.append("set"))
    await clock.advance(30)
    assert fired == ["set"]


async def test_cancelled_timers_do_not_fill_the_queue() -> None:
    """Half of the queue, and a few, may be cancelled timers."""
    clock = FakeClock()
    queue = TimerQueue(clock)
    keep = queue.call_at(10_000, lambda: None)
    queue.call_at(10, lambda: None).cancel()
    await clock.advance(20)
    assert queue.count == 1
    for number in range(10_000):
        queue.call_at(20_000 + number, lambda: None).cancel()

    assert queue.count == 1
    assert len(queue._queue) < 200
    keep.cancel()


async def test_a_timer_that_another_one_cancels_or_sets_is_respected() -> None:
    """Both are due at the same time."""
    clock, fired = FakeClock(), list[str]()
    queue = TimerQueue(clock)
    second: list[Timer] = []

    def first() -> None:
        second[0].cancel()
        queue.call_at(clock.monotonic(), lambda: fired.append("set"))

    queue.call_at(10, first)
    second.append(queue.call_at(10, lambda: fired.append("cancelled")))
    await clock.advance(10)
    await clock.advance(1)

    assert fired == ["set"]
    assert queue.count == 0


async def test_the_error_of_a_timer_does_not_concern_the_others(caplog: pytest.LogCaptureFixture) -> None:
    """It is logged."""
    clock, fired = FakeClock(), list[str]()
    queue = TimerQueue(clock)

    def fail() -> None:
        raise RuntimeError("no")

    queue.call_at(10, fail)
    queue.call_at(10, lambda: fired.append("next"))
    with caplog.at_level(logging.ERROR, "ramet.timers"):
        await clock.advance(10)

    assert fired == ["next"]
    assert "a timer failed" in caplog.text
