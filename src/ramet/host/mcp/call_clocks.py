"""The time that the calls of one server may take. It stands while a person is asked."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager


class CallClocks:
    """The clocks of the calls that are open."""

    def __init__(self) -> None:
        self._clocks: dict[asyncio.Timeout, float] = {}  #: and the seconds that each has left, while they stand
        self._pauses = 0

    @asynccontextmanager
    async def limit_time(self, seconds: float) -> AsyncGenerator[None]:
        """Bound the time of a call. Raises TimeoutError."""
        async with asyncio.timeout(None) as clock:
            self._clocks[clock] = seconds
            if not self._pauses:
                self._start(clock)
            try:
                yield
            finally:
                del self._clocks[clock]

    @contextmanager
    def stop_time(self) -> Generator[None]:
        """Let no call lose time while the context is open."""
        self._pauses += 1
        if self._pauses == 1:
            for clock in self._clocks:
                self._stop(clock)
        try:
            yield
        finally:
            self._pauses -= 1
            if not self._pauses:
                for clock in self._clocks:
                    self._start(clock)

    def _start(self, clock: asyncio.Timeout) -> None:
        if not clock.expired():
            clock.reschedule(asyncio.get_running_loop().time() + self._clocks[clock])

    def _stop(self, clock: asyncio.Timeout) -> None:
        if not clock.expired() and (when := clock.when()) is not None:
            self._clocks[clock] = max(0.0, when - asyncio.get_running_loop().time())
            clock.reschedule(None)
