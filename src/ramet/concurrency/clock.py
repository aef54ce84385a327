"""Time as a dependency: a protocol, the system's clock, and a fake clock that a test advances."""

from __future__ import annotations

import asyncio
import heapq
import itertools
import math
import time
from datetime import UTC, datetime, timedelta
from typing import Protocol

from ramet.core.errors import InvalidValue

#: Event loop iterations for the tasks that `advance` woke, before time moves on.
_TURNS = 10


class Clock(Protocol):
    """The time functions that ramet uses."""

    def now(self) -> datetime:
        """Return the time of day, timezone-aware, in UTC."""

    def monotonic(self) -> float:
        """Return monotonic seconds; only differences are meaningful."""

    async def sleep(self, seconds: float) -> None:
        """Return after `seconds`, at once if not positive. Cancelling ends the wait. Raises InvalidValue for NaN."""


def seconds_with_suspends() -> float:
    """Return monotonic seconds that also count while the machine is suspended; only differences are meaningful."""
    clock = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic() if clock is None else time.clock_gettime(clock)


class SystemClock:
    """The clock of the machine."""

    def now(self) -> datetime:
        return datetime.now(UTC)

    def monotonic(self) -> float:
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(_check_seconds(seconds))


class FakeClock:
    """A clock that changes only by `advance`; sleepers wake in the order of their deadlines."""

    def __init__(self, start: datetime = datetime(2026, 1, 1, tzinfo=UTC)) -> None:
        self._start = start
        self._elapsed = 0.0
        self._order = itertools.count()
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []

    def now(self) -> datetime:
        """Return the start time plus the advanced seconds."""
        return self._start + timedelta(seconds=self._elapsed)

    def monotonic(self) -> float:
        return self._elapsed

    async def sleep(self, seconds: float) -> None:
        """Return once `advance` has reached the deadline. Raises InvalidValue for NaN."""
        if _check_seconds(seconds) <= 0:
            await asyncio.sleep(0)
            return
        waiter = asyncio.get_running_loop().create_future()
        heapq.heappush(self._sleepers, (self._elapsed + seconds, next(self._order), waiter))
        await waiter

    @property
    def sleeping(self) -> int:
        return sum(not waiter.done() for _, _, waiter in self._sleepers)

    async def advance(self, seconds: float) -> None:
        """Advance time, wake each sleeper at its deadline, and let the woken tasks run. Never moves time back."""
        if not 0 <= seconds < math.inf:
            raise InvalidValue("seconds", seconds, "a finite number from 0")
        target = self._elapsed + seconds
        await self._run_ready_tasks()
        while self._sleepers and self._sleepers[0][0] <= target:
            due, _, waiter = heapq.heappop(self._sleepers)
            self._move_to(due)
            if not waiter.done():
                waiter.set_result(None)
                await self._run_ready_tasks()
        self._move_to(target)

    def _move_to(self, elapsed_s: float) -> None:
        self._elapsed = max(self._elapsed, elapsed_s)  # A concurrent `advance` may have moved further already.

    async def _run_ready_tasks(self) -> None:
        for _ in range(_TURNS):
            await asyncio.sleep(0)


def _check_seconds(seconds: float) -> float:
    """Return a number of seconds. Raises InvalidValue for NaN, which would break the order of the sleepers."""
    if math.isnan(seconds):
        raise InvalidValue("seconds", seconds, "a number")
    return seconds
