"""The line of the calls to one model while its provider refuses all of them until a stated time: a quota window.

The calls go on in the order in which they came. At the end of the window the first one sends its request alone, and the
next one `PROBE_S` later, if there is no answer until then. If the provider answers, all others follow; if it states a
later time, that call is the first in line again. Nothing here has a task of its own: the first call in line sleeps, and
the others wait for it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from datetime import timedelta
from typing import Final, NamedTuple

from ramet.concurrency.clock import Clock
from ramet.core.errors import ModelFailed

#: Seconds after which the next call goes, too, if the first one has no answer: it may wait for a slot, or for a limit.
PROBE_S: Final = 5.0
#: The end of a window must move by more than this before those in line hear of it: many calls are refused together.
_REPORTED_S: Final = 1.0


class QuotaWindow(NamedTuple):
    """The time in which a provider refuses all calls, by the monotonic clock."""

    until_s: float  #: when the provider answers again, as it says
    probed_at_s: float  #: when a request is sent again: not later than the longest wait after the refusal
    model: str
    reason: str
    status: int | None


class Place:
    """The place of one call. `report` is called with the window for which the call waits, and with each later one."""

    __slots__ = ("first_s", "report", "reported", "woken")

    def __init__(self, report: Callable[[QuotaWindow], None] = lambda _: None) -> None:
        self.report = report
        self.first_s: float | None = None  #: when it first met a window: from then on its waits count together
        self.reported: QuotaWindow | None = None  #: the newest that was reported
        self.woken: asyncio.Future[None] | None = None


class QuotaLine:
    """The line of one model. `max_wait_s` bounds the waits of a call together; None: they have no end."""

    def __init__(self, clock: Clock, max_wait_s: float | None) -> None:
        self._clock, self._max_wait_s = clock, max_wait_s
        self._line: deque[Place] = deque()
        self._probes: dict[Place, float] = {}  #: calls whose requests are under way alone, and since when
        self.window: QuotaWindow | None = None  #: the window that no answer has ended yet

    @property
    def closed_for_s(self) -> float:
        """The seconds until the next request may be sent; 0 if there is no window."""
        return max(0.0, self.window.probed_at_s - self._clock.monotonic()) if self.window is not None else 0.0

    def is_closed_for(self, place: Place) -> bool:
        """Return whether a call must wait in line before its next request."""
        return self.window is not None and place not in self._probes

    def refuse(self, place: Place, failure: ModelFailed) -> float:
        """Put a call in line that was refused until a later time; return the seconds until then.

        Raises ModelFailed, which says when to come back, if the call would have to wait for too long.
        """
        old, is_probe = self.window, place in self._probes
        if is_probe:  # Its answer is the newest that the provider gave.
            self.window = None
            self._probes.clear()
        window = self.close(failure.retry_after_s or 0.0, failure)
        if is_probe or old is None or window.until_s > old.until_s + _REPORTED_S:
            for each in self._line:
                _wake(each)
        elif self._line:
            _wake(self._line[0])
        self._check(place, window, failure)
        (self._line.appendleft if is_probe else self._line.append)(place)
        return window.until_s - self._clock.monotonic()

    def close(self, wait_s: float, failure: ModelFailed) -> QuotaWindow:
        """Let all calls wait for at least so many seconds; return the window."""
        now = self._clock.monotonic()
        until_s = now + wait_s if self.window is None else max(now + wait_s, self.window.until_s)
        longest_s = until_s if self._max_wait_s is None else now + self._max_wait_s
        self.window = QuotaWindow(
            until_s, min(until_s, longest_s), failure.model, failure.reason, failure.status
        )  # Not the failure: it keeps the frames that it was raised through.
        return self.window

    def join(self, place: Place) -> None:
        """Put a call in line, and report the window to it. Raises ModelFailed if it would have to wait for too long."""
        window = self.window
        if window is None or place in self._probes:
            return
        if window.probed_at_s > self._clock.monotonic():
            self._check(place, window)
            if window is not place.reported:
                place.reported = window
                place.report(window)
        if place not in self._line:
            self._line.append(place)

    async def wait(self, place: Place) -> None:
        """Wait until this call may send its request. Raises ModelFailed if it would have to wait for too long."""
        while self.is_closed_for(place):
            self.join(place)
            if place is not self._line[0]:
                place.woken = asyncio.get_running_loop().create_future()
                await place.woken
            elif (remaining_s := max(self.closed_for_s, self._probe_rest_s)) > 0:
                await self._sleep(place, remaining_s)
            else:
                self._probes[self._line.popleft()] = self._clock.monotonic()
                if self._line:
                    _wake(self._line[0])

    @property
    def _probe_rest_s(self) -> float:
        """Seconds until the next call may go, too: the one before it is slow, or waits for something else first."""
        return max(self._probes.values(), default=float("-inf")) + PROBE_S - self._clock.monotonic()

    async def _sleep(self, place: Place, seconds: float) -> None:
        """Sleep, at most until the call is woken."""
        place.woken = asyncio.get_running_loop().create_future()
        sleep = asyncio.ensure_future(self._clock.sleep(seconds))
        sleep.add_done_callback(lambda _: _wake(place))
        try:
            await place.woken  # Not the sleep: who is woken together with others keeps the order.
        finally:
            sleep.cancel()

    def note_answer(self, place: Place) -> None:
        """Note that a call was answered. If it was the first after a window, all others follow in order."""
        if place not in self._probes:
            return
        line, self._line = self._line, deque()
        self.window = None
        self._probes.clear()
        for each in line:
            _wake(each)

    def leave(self, place: Place) -> None:
        """Take a call out of the line, and let the next one take its place. Idempotent."""
        if place in self._probes:
            del self._probes[place]
        elif place in self._line:
            self._line.remove(place)
        if self._line:
            _wake(self._line[0])

    def _check(self, place: Place, window: QuotaWindow, cause: ModelFailed | None = None) -> None:
        """Raise ModelFailed if the waits of a call would together be longer than the longest."""
        now = self._clock.monotonic()
        place.first_s = now if place.first_s is None else place.first_s
        if self._max_wait_s is None or window.until_s - place.first_s <= self._max_wait_s:
            return
        wait_s = window.until_s - now
        at = self._clock.now() + timedelta(seconds=wait_s)
        reason = (
            f"{window.reason}; it answers again in {wait_s:.0f} s, at {at:%Y-%m-%d %H:%M:%S} UTC, "
            f"and max_wait_s is {self._max_wait_s:g}"
        )
        raise ModelFailed(window.model, reason, status=window.status, retryable=True, retry_after_s=wait_s) from cause


def _wake(place: Place) -> None:
    if place.woken is not None and not place.woken.done():
        place.woken.set_result(None)
