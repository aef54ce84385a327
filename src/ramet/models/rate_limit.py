"""A rate limiter per model, shared by all agents that use it: a 429 for one caller makes all callers wait.

A failed call is retried by fixed rules: only if ModelFailed says that a retry may help, after a growing, partly random
wait, and never earlier than the provider asked. While one caller waits out a 429, the others wait at the limiter
instead of getting the same answer. A wait of more than a few seconds is a quota window, in which all callers stand in
line (`ramet.models.quota_line`). No caller holds a reservation while it waits: an attempt is a function of the caller
that reserves, asks and settles, and is called once for each request that may be sent.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from math import isfinite
from typing import Final, NamedTuple, TypeVar

from ramet.concurrency.clock import Clock
from ramet.core.errors import InvalidValue, ModelFailed
from ramet.models.quota_line import Place, QuotaLine, QuotaWindow

T = TypeVar("T")

#: A longer wait that a provider asks for is a quota window: its callers stand in line.
WINDOW_S: Final = 5.0
#: Statuses that mean "too many requests overall", not "this one failed".
_OVERLOAD_STATUSES: Final = frozenset({429, 503, 529})


@dataclass(frozen=True, kw_only=True)
class RetryPolicy:
    """The number of attempts of a call, and the waits between them."""

    attempts: int = 4  #: maximum requests of one call, including the first
    base_s: float = 0.5  #: wait after the first failure; doubles with each further failure
    max_s: float = 30.0  #: maximum wait that we choose ourselves
    jitter: float = 0.5  #: random part of a wait, 0 to 1
    #: the longest wait of a call for the windows of its provider together; None: no end. A longer one fails at once
    max_wait_s: float | None = 300.0

    def __post_init__(self) -> None:
        if self.attempts < 1:
            raise InvalidValue("attempts", self.attempts, "at least 1")
        if not 0 <= self.jitter <= 1:
            raise InvalidValue("jitter", self.jitter, "0 to 1")
        for name in ("base_s", "max_s", "max_wait_s"):
            seconds = getattr(self, name)
            if name == "max_wait_s" and seconds is None:
                continue
            if not isfinite(seconds) or seconds < 0:
                raise InvalidValue(name, seconds, "seconds, 0 or more")

    def wait_s(self, attempt: int, failure: ModelFailed, chance: float) -> float | None:
        """Return the wait in seconds after attempt number `attempt`; None if a retry is useless. `chance` is 0 to 1."""
        if not failure.retryable or attempt >= self.attempts:
            return None
        backoff_s = min(self.max_s, self.base_s * 2.0 ** min(attempt - 1, 60))
        backoff_s -= backoff_s * self.jitter * chance
        if failure.retry_after_s is None:
            return backoff_s
        # Never earlier than asked; the random part spreads callers that were asked to return at the same moment.
        return failure.retry_after_s + min(backoff_s, self.base_s) * chance

    def is_window(self, failure: ModelFailed) -> bool:
        """Return whether a failure says that its provider answers again only after more than a few seconds."""
        if not failure.retryable or failure.retry_after_s is None:
            return False
        return failure.retry_after_s > (WINDOW_S if self.max_wait_s is None else min(WINDOW_S, self.max_wait_s))


class Retry(NamedTuple):
    """The notification before a wait: for an event, or a line on a screen."""

    attempt: int  #: the attempt that failed; 1 is the first
    wait_s: float
    failure: ModelFailed


class RateLimiter:
    """A limiter of the calls to one model: none while it is closed, and retries by the policy."""

    def __init__(
        self,
        name: str,
        *,
        clock: Clock,
        chance: Callable[[], float] = random.random,
        policy: RetryPolicy | None = None,
    ) -> None:
        self.name = name
        self.policy = policy or RetryPolicy()
        self._clock, self._chance = clock, chance
        self._closed_until = float("-inf")
        self.line = QuotaLine(clock, self.policy.max_wait_s)

    @property
    def closed_for_s(self) -> float:
        """Return the seconds until calls may start again; 0 while the limiter is open."""
        return max(0.0, self._closed_until - self._clock.monotonic(), self.line.closed_for_s)

    async def call(
        self,
        attempt: Callable[[int], Awaitable[T]],
        *,
        before_wait: Callable[[Retry], None] = lambda _: None,
        on_window: Callable[[QuotaWindow], None] = lambda _: None,
        in_line: Callable[[Awaitable[None]], Awaitable[None]] = lambda wait: wait,
    ) -> T:
        """Return the result of `attempt(number)`, retried by the policy; raise the last ModelFailed if it gives up.

        A wait in line is passed to `in_line`, and each window for which the call waits to `on_window`. Cancelling ends
        a wait at once. Any other exception passes through.
        """
        number, windows, place = 1, 0, Place(on_window)
        try:
            while True:
                await self._wait_until_open(place, in_line, spread=number == 1)
                try:
                    reply = await attempt(number)
                except ModelFailed as failure:
                    is_window = self.policy.is_window(failure)
                    if is_window:
                        windows += 1  # These do not count as attempts: `max_wait_s` bounds them.
                        wait_s = self.line.refuse(place, failure)
                    else:
                        wait_s = self._backoff_s(number - windows, place, failure)
                    before_wait(Retry(number, wait_s, failure))
                else:
                    self.line.note_answer(place)
                    return reply
                if not is_window:
                    await self._clock.sleep(wait_s)
                number += 1
        finally:
            self.line.leave(place)

    def _backoff_s(self, attempt: int, place: Place, failure: ModelFailed) -> float:
        """Return the wait after a failed attempt. Raises the failure if no retry may follow."""
        if failure.status is None:
            self.line.leave(place)  # Its provider did not answer: the next in line tries.
        else:
            self.line.note_answer(place)
        wait_s = self.policy.wait_s(attempt, failure, self._chance())
        self._close_after(failure, wait_s)
        if wait_s is None:
            raise failure
        return wait_s

    async def _wait_until_open(
        self, place: Place, in_line: Callable[[Awaitable[None]], Awaitable[None]], *, spread: bool
    ) -> None:
        while self.line.is_closed_for(place) or (remaining_s := self._closed_until - self._clock.monotonic()) > 0:
            if self.line.is_closed_for(place):
                self.line.join(place)
                await in_line(self.line.wait(place))
                continue
            # Later callers are spread, too; a refused caller has had a random wait already.
            await self._clock.sleep(remaining_s + (self.policy.base_s * self._chance() if spread else 0.0))

    def _close_after(self, failure: ModelFailed, wait_s: float | None) -> None:
        if failure.retry_after_s is None and failure.status not in _OVERLOAD_STATUSES:
            return
        closed_s = failure.retry_after_s or wait_s or 0.0
        self._closed_until = max(self._closed_until, self._clock.monotonic() + closed_s)
