"""`TimerQueue`: any number of timers, which together need one task."""

from __future__ import annotations

import asyncio
import contextvars
import heapq
import itertools
import logging
import math
from collections.abc import Callable

from ramet.concurrency.clock import Clock

_log = logging.getLogger("ramet.timers")
#: Cancelled timers that may stay in the queue until it is tidied up.
_MAX_CANCELLED = 64


class Timer:
    """A timer that has been set. It calls its function once, unless it is cancelled before."""

    __slots__ = ("_call", "_queue", "is_queued")

    def __init__(self, queue: TimerQueue, call: Callable[[], None]) -> None:
        self._queue = queue
        self._call: Callable[[], None] | None = call
        self.is_queued = True  #: the queue still has it, cancelled or not

    @property
    def is_set(self) -> bool:
        """True until the timer has fired or was cancelled."""
        return self._call is not None

    def cancel(self) -> None:
        """Call nothing any more. Idempotent."""
        if self._call is not None:
            self._call = None
            if self.is_queued:
                self._queue.on_cancel()

    def fire(self) -> None:
        """Call the function, unless the timer was cancelled."""
        call, self._call = self._call, None
        if call is not None:
            call()


class TimerQueue:
    """The timers of one event loop. Without timers there is no task."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._order = itertools.count()
        self._queue: list[tuple[float, int, Timer]] = []
        self._cancelled = 0
        self._wakes_at = math.inf  #: time at which the task looks at the queue again
        self._task: asyncio.Task[None] | None = None

    @property
    def count(self) -> int:
        """The number of timers that are set."""
        return len(self._queue) - self._cancelled

    def call_at(self, at_s: float, call: Callable[[], None]) -> Timer:
        """Call a function at this time of the monotonic clock; an error that it raises is logged."""
        timer = Timer(self, call)
        heapq.heappush(self._queue, (at_s, next(self._order), timer))
        if self._task is None or self._task.done() or at_s < self._wakes_at:
            self._restart()
        return timer

    def on_cancel(self) -> None:
        """Note that a timer was cancelled."""
        self._cancelled += 1
        if not self.count:
            self._queue.clear()
            self._cancelled = 0
            if self._task is not None and self._wakes_at != -math.inf:
                self._task.cancel()
                self._task = None
        elif self._cancelled > max(_MAX_CANCELLED, len(self._queue) // 2):
            self._queue = [each for each in self._queue if each[2].is_set]
            heapq.heapify(self._queue)
            self._cancelled = 0

    def _restart(self) -> None:
        if self._task is not None:
            self._task.cancel()
        self._wakes_at = self._queue[0][0]
        # No context of the caller: whoever sets the first timer is not concerned by the others.
        self._task = asyncio.create_task(self._serve(), name="ramet timers", context=contextvars.Context())

    async def _serve(self) -> None:
        while self._queue:
            self._wakes_at = self._queue[0][0]
            await self._clock.sleep(max(0.0, self._wakes_at - self._clock.monotonic()))
            now, due = self._clock.monotonic(), list[Timer]()
            while self._queue and self._queue[0][0] <= now:
                timer = heapq.heappop(self._queue)[2]
                timer.is_queued = False
                if timer.is_set:
                    due.append(timer)
                else:
                    self._cancelled -= 1
            self._wakes_at = -math.inf  # A timer that a call sets is seen below.
            for timer in due:
                try:
                    timer.fire()
                except Exception:  # The others must still fire.
                    _log.exception("a timer failed")
        self._task = None
