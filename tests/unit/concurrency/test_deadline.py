"""Tests of `wait_with_timeout`, where work, clock and abort race, and of `run_shielded`, which ignores cancels."""

from __future__ import annotations

import asyncio

import pytest

from ramet.concurrency.cancel import AbortController
from ramet.concurrency.clock import FakeClock, SystemClock
from ramet.concurrency.deadline import run_shielded, wait_with_timeout
from ramet.core.errors import Aborted
from tests.support.waiting import eventually


class Work:
    """Work that never ends by itself, and notes whether it began and ended."""

    began = ended = False

    async def __call__(self) -> None:
        self.began = True
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)  # an ending of several steps
            self.ended = True


async def test_work_that_ends_in_time_returns_its_result() -> None:
    """`wait_with_timeout` leaves no waiter on the clock or the controller."""
    clock = FakeClock()

    assert await wait_with_timeout(asyncio.sleep(0, "done"), clock=clock, seconds=5, abort=AbortController()) == "done"
    assert clock.sleeping == 0


async def test_work_has_ended_when_its_timeout_is_raised() -> None:
    """The caller of a timed-out wait has no work left to clean up."""
    clock, work = FakeClock(), Work()
    waiting = asyncio.ensure_future(wait_with_timeout(work(), clock=clock, seconds=5))
    await eventually(lambda: clock.sleeping)
    await clock.advance(5)

    with pytest.raises(TimeoutError, match="5 s"):
        await waiting
    assert work.ended


async def test_an_abort_ends_the_work_and_carries_its_reason() -> None:
    """An abort does not wait for the clock."""
    abort, work = AbortController(), Work()
    waiting = asyncio.ensure_future(wait_with_timeout(work(), clock=FakeClock(), seconds=5, abort=abort))
    await eventually(lambda: work.began)
    abort.abort("enough")

    with pytest.raises(Aborted, match="enough"):
        await waiting
    assert work.ended


async def test_an_abort_before_the_start_prevents_the_start() -> None:
    """No part of the work runs after an abort."""
    abort, work = AbortController(), Work()
    abort.abort("too late")

    with pytest.raises(Aborted, match="too late"):
        await wait_with_timeout(work(), clock=FakeClock(), seconds=5, abort=abort)
    assert not work.began


async def test_cancelling_the_waiter_ends_the_work() -> None:
    """A cancelled caller leaves no work running."""
    work = Work()
    waiting = asyncio.ensure_future(wait_with_timeout(work(), clock=SystemClock(), seconds=None))
    await eventually(lambda: work.began)
    waiting.cancel()

    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert work.ended


async def test_work_that_cancels_itself_raises_runtime_error() -> None:
    """The caller was not cancelled, and gets no CancelledError."""

    async def gives_up() -> None:
        raise asyncio.CancelledError

    with pytest.raises(RuntimeError, match="cancelled itself"):
        await wait_with_timeout(gives_up(), clock=FakeClock(), seconds=5)


async def test_shielded_work_ends_before_a_cancel_of_its_caller_is_raised() -> None:
    """Repeated cancels are raised after the work has ended, also when the work fails."""
    for fails in (False, True):
        end_event = asyncio.Event()

        async def work(end_event: asyncio.Event = end_event, fails: bool = fails) -> None:
            await end_event.wait()
            assert not fails

        waiting = asyncio.ensure_future(run_shielded(work()))
        for _ in range(3):
            await asyncio.sleep(0)
            waiting.cancel()
        await asyncio.sleep(0)
        assert not waiting.done()
        end_event.set()

        with pytest.raises(asyncio.CancelledError):
            await waiting


async def test_run_shielded_returns_the_result_or_raises_the_error() -> None:
    """A shielded call returns the result of its work, or raises the error."""

    async def fails() -> None:
        raise ValueError("no")

    assert await run_shielded(asyncio.sleep(0, "done")) == "done"
    with pytest.raises(ValueError, match="no"):
        await run_shielded(fails())
