"""Tests of `concurrency/clock.py`: one suite for every clock, and the promises of the fake clock."""

from __future__ import annotations

import asyncio
import math
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramet.concurrency.clock import Clock, FakeClock, SystemClock
from ramet.core.errors import InvalidValue


class ClockUnderTest:
    """Clock under test, with a way to let its time pass."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock

    async def until(self, *tasks: asyncio.Task[None]) -> None:
        """Let time pass until `tasks` are done."""
        if isinstance(self.clock, FakeClock):
            while not all(task.done() for task in tasks):
                await self.clock.advance(0.001)
        await asyncio.gather(*tasks)


@pytest.fixture(params=[SystemClock, FakeClock], ids=lambda kind: kind.__name__)
def clock_under_test(request: pytest.FixtureRequest) -> ClockUnderTest:
    return ClockUnderTest(request.param())


# --- every clock ------------------------------------------------------------------------------------------------------


def test_the_time_of_day_is_aware_and_in_utc(clock_under_test: ClockUnderTest) -> None:
    """`now` returns an aware time in UTC."""
    now = clock_under_test.clock.now()

    assert now.utcoffset() == timedelta(0)


@pytest.mark.parametrize("seconds", [0.001, 0.005])
async def test_a_sleep_lasts_at_least_as_long_as_asked(clock_under_test: ClockUnderTest, seconds: float) -> None:
    """Both scales advance by the length of the sleep, except for the rounding of timers."""
    before, day = clock_under_test.clock.monotonic(), clock_under_test.clock.now()

    await clock_under_test.until(asyncio.create_task(clock_under_test.clock.sleep(seconds)))

    assert clock_under_test.clock.monotonic() - before > seconds - 1e-4
    assert clock_under_test.clock.now() >= day


@pytest.mark.parametrize("seconds", [0, 0.0, -1.0, -math.inf])
async def test_a_sleep_without_length_lets_others_run_and_returns(
    clock_under_test: ClockUnderTest, seconds: float
) -> None:
    """A sleep of zero or negative length needs no time, but yields to other tasks."""
    turns: list[str] = []
    asyncio.get_running_loop().call_soon(turns.append, "other")

    await clock_under_test.clock.sleep(seconds)

    assert turns == ["other"]


async def test_time_never_goes_back(clock_under_test: ClockUnderTest) -> None:
    """`monotonic` never decreases while tasks sleep."""
    sleeps = [asyncio.create_task(clock_under_test.clock.sleep(each / 1000)) for each in (0, 1, 2)]
    watched = [clock_under_test.clock.monotonic()]
    for sleep in sleeps:
        await clock_under_test.until(sleep)
        watched.append(clock_under_test.clock.monotonic())

    assert watched == sorted(watched)


@pytest.mark.parametrize("seconds", [60.0, math.inf])
async def test_cancelling_ends_a_sleep_at_once(clock_under_test: ClockUnderTest, seconds: float) -> None:
    """A cancelled sleep ends before its time, even when it is endless."""
    before = clock_under_test.clock.monotonic()
    sleep = asyncio.create_task(clock_under_test.clock.sleep(seconds))
    await asyncio.sleep(0)

    sleep.cancel()
    await asyncio.wait({sleep})

    assert sleep.cancelled()
    assert clock_under_test.clock.monotonic() - before < seconds


async def test_one_sleeper_does_not_hold_up_another(clock_under_test: ClockUnderTest) -> None:
    """A short sleep ends while an endless sleep continues."""
    endless = asyncio.create_task(clock_under_test.clock.sleep(math.inf))
    short = asyncio.create_task(clock_under_test.clock.sleep(0.002))

    await clock_under_test.until(short)

    still_sleeping = not endless.done()
    endless.cancel()
    await asyncio.wait({endless})
    assert still_sleeping


async def test_a_sleep_of_nan_seconds_is_refused(clock_under_test: ClockUnderTest) -> None:
    """NaN is neither more nor less than another time, and would break the order of sleepers."""
    with pytest.raises(InvalidValue, match="seconds"):
        await clock_under_test.clock.sleep(math.nan)


# --- the fake ---------------------------------------------------------------------------------------------------------


async def test_the_fake_clock_stands_still_by_itself() -> None:
    """Time passes only when a test advances the clock."""
    clock = FakeClock()
    before = clock.now(), clock.monotonic()
    sleep = asyncio.create_task(clock.sleep(1e-9))
    for _ in range(100):
        await asyncio.sleep(0)

    after, is_awake = (clock.now(), clock.monotonic()), sleep.done()

    await clock.advance(1)
    assert (after, is_awake, sleep.done()) == (before, False, True)


@given(lengths=st.lists(st.integers(1, 20), max_size=10), steps=st.lists(st.integers(0, 15), max_size=6))
async def test_sleepers_wake_at_their_deadlines_in_order(lengths: list[int], steps: list[int]) -> None:
    """Each sleeper sees the clock at its own deadline; equal deadlines wake in the order of the calls."""
    clock = FakeClock()
    wake_times: list[tuple[float, int]] = []

    async def sleep(number: int, length: int) -> None:
        await clock.sleep(length)
        assert clock.monotonic() == length
        wake_times.append((length, number))

    async with asyncio.TaskGroup() as group:
        for number, length in enumerate(lengths):
            group.create_task(sleep(number, length))
        for step in [*steps, 20]:
            await clock.advance(step)

    assert wake_times == sorted(wake_times)
    assert clock.monotonic() == sum(steps) + 20
    assert clock.sleeping == 0


async def test_a_sleeper_that_sleeps_again_wakes_again_in_the_same_advance() -> None:
    """A loop that sleeps for a second runs ten times in an advance of ten seconds."""
    clock = FakeClock()
    times: list[float] = []

    async def tick() -> None:
        while True:
            await clock.sleep(1)
            times.append(clock.monotonic())

    ticking = asyncio.create_task(tick())
    await clock.advance(10)
    ticking.cancel()
    await asyncio.wait({ticking})

    assert times == [float(second) for second in range(1, 11)]


async def test_tasks_that_await_a_sleeper_continue_before_time_moves() -> None:
    """Tasks and groups that await a sleeper run before the clock advances further."""
    clock = FakeClock()
    times: list[float] = []

    async def through_tasks(levels: int) -> None:
        if levels:
            async with asyncio.TaskGroup() as group:
                group.create_task(through_tasks(levels - 1))
        else:
            await clock.sleep(1)

    async def tick() -> None:
        while True:
            await through_tasks(3)
            times.append(clock.monotonic())

    ticking = asyncio.create_task(tick())
    await clock.advance(3)
    ticking.cancel()
    await asyncio.wait({ticking})

    assert times == [1.0, 2.0, 3.0]


async def test_a_new_task_sleeps_from_the_time_of_its_start() -> None:
    """`advance` lets new tasks reach their sleep before time passes."""
    clock = FakeClock()
    sleep = asyncio.create_task(clock.sleep(1))

    await clock.advance(1)

    assert sleep.done()


@pytest.mark.parametrize("seconds", [-1, -1e-9, math.nan, math.inf, -math.inf])
async def test_advance_refuses_negative_and_infinite_times(seconds: float) -> None:
    """The clock does not go back, or to a time without a date."""
    clock = FakeClock()

    with pytest.raises(InvalidValue, match="seconds"):
        await clock.advance(seconds)

    assert clock.monotonic() == 0


async def test_concurrent_advances_do_not_move_time_back() -> None:
    """The shorter of two concurrent advances does not undo a deadline that has passed."""
    clock = FakeClock()
    times: list[float] = []

    async def sleep(seconds: float) -> None:
        await clock.sleep(seconds)
        assert clock.monotonic() >= seconds
        times.append(clock.monotonic())

    await asyncio.gather(*map(sleep, (1, 2, 6, 7)), clock.advance(10), clock.advance(5))

    assert len(times) == 4
    assert times == sorted(times)
    assert clock.monotonic() == 10


async def test_the_two_scales_of_the_fake_clock_move_together() -> None:
    """A thousand microscopic steps are as long as one long step, on both scales."""
    start = datetime(2026, 3, 1, tzinfo=UTC)
    clock = FakeClock(start)

    for _ in range(1_000):
        await clock.advance(1e-7)

    assert clock.monotonic() == pytest.approx(1e-4)
    assert clock.now() == start + timedelta(seconds=clock.monotonic())


async def test_the_fake_clock_counts_its_sleepers() -> None:
    """`sleeping` leaves out sleeps that were cancelled."""
    clock = FakeClock()
    sleeps = [asyncio.create_task(clock.sleep(each)) for each in (1, 2, 3)]
    await asyncio.sleep(0)
    sleeps[1].cancel()
    await asyncio.wait({sleeps[1]})
    sleeper_counts = [clock.sleeping]

    await clock.advance(1)

    sleeper_counts.append(clock.sleeping)
    await clock.advance(2)
    assert [*sleeper_counts, clock.sleeping] == [2, 1, 0]
