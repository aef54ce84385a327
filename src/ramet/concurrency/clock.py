"""Time, asked for and never taken: one protocol, the system's clock, and a fake that moves when told."""

from __future__ import annotations

import asyncio
import heapq
import itertools
import math
import time
from datetime import UTC, datetime, timedelta
from typing import Protocol

from ramet.core.errors import InvalidValue

#: Turns of the event loop that what `advance` woke gets before time moves on.
_TURNS = 10


class Clock(Protocol):
    """What the rest of ramet knows of time."""

    def now(self) -> datetime:
        """The time of day, aware, in UTC."""

    def monotonic(self) -> float:
        """Seconds that never go back; only differences mean something."""

    async def sleep(self, seconds: float) -> None:
        """Return after `seconds`, at once if none are left; cancelling ends the wait. Raises InvalidValue for NaN."""


def seconds_with_suspends() -> float:
    """Return seconds that never go back, and go on while the machine is suspended; only differences mean something."""
    clock = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic() if clock is None else time.clock_gettime(clock)


class SystemClock:
    """The machine's own clock."""

    def now(self) -> datetime:
        """The time of day, aware, in UTC."""
        return datetime.now(UTC)

    def monotonic(self) -> float:
        """Seconds that never go back."""
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        """Return after `seconds`."""
        await asyncio.sleep(_checked(seconds))


class FakeClock:
    """A clock that stands still until `advance`; sleepers wake in the order of their deadlines."""

    def __init__(self, start: datetime = datetime(2026, 1, 1, tzinfo=UTC)) -> None:
        self._start = start
        self._elapsed = 0.0
        self._order = itertools.count()
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []

    def now(self) -> datetime:
        """The time of day as advanced so far."""
        return self._start + timedelta(seconds=self._elapsed)

    def monotonic(self) -> float:
        """Seconds advanced so far."""
        return self._elapsed

    async def sleep(self, seconds: float) -> None:
        """Return once `advance` has passed the deadline."""
        if _checked(seconds) <= 0:
            await asyncio.sleep(0)
            return
        waiter = asyncio.get_running_loop().create_future()
        heapq.heappush(self._sleepers, (self._elapsed + seconds, next(self._order), waiter))
        await waiter

    @property
    def sleeping(self) -> int:
        """How many are waiting for time to pass."""
        return sum(not waiter.done() for _, _, waiter in self._sleepers)

    async def advance(self, seconds: float) -> None:
        """Move time on, waking each sleeper at its own moment and letting what it woke run. Never moves it back."""
        if not 0 <= seconds < math.inf:
            raise InvalidValue("seconds", seconds, "a finite number from 0")
        target = self._elapsed + seconds
        await self._let_run()
        while self._sleepers and self._sleepers[0][0] <= target:
            due, _, waiter = heapq.heappop(self._sleepers)
            self._move_to(due)
            if not waiter.done():
                waiter.set_result(None)
                await self._let_run()
        self._move_to(target)

    def _move_to(self, elapsed: float) -> None:
        self._elapsed = max(self._elapsed, elapsed)  # Another `advance` may have been further already.

    async def _let_run(self) -> None:
        for _ in range(_TURNS):
            await asyncio.sleep(0)


def _checked(seconds: float) -> float:
    """Refuse NaN: it compares with nothing, so one such sleeper would keep all others from being woken in order."""
    if math.isnan(seconds):
        raise InvalidValue("seconds", seconds, "a number")
    return seconds
