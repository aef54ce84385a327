"""One gate for each model, shared by all agents that ask it: who is refused for asking too much closes it for all.

A failed call is tried again by rules, not by hope: only where ModelFailed says that it may help, after a wait that
grows and is partly left to chance, and never earlier than the provider asked for. While one caller waits out a 429, its
siblings wait at the gate instead of running into the same answer. Nobody holds a reservation while waiting: an attempt
is a function of the caller that reserves, asks and settles, and is called once for each request that may go out.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from dataclasses import dataclass
from math import isfinite
from typing import Final, NamedTuple, TypeVar

from ramet.concurrency.clock import Clock
from ramet.core.errors import InvalidValue, ModelFailed

T = TypeVar("T")

#: Statuses that say "too many requests" of everybody, not "this one failed".
_CLOSING: Final = frozenset({429, 503, 529})


@dataclass(frozen=True, kw_only=True)
class RetryPolicy:
    """How often a call is tried, and how long is waited in between."""

    attempts: int = 4  #: requests that one call may make, the first included
    base_s: float = 0.5  #: the wait after the first failure; it doubles with each further one
    max_s: float = 30.0  #: no wait that we choose ourselves is longer
    jitter: float = 0.5  #: the part of a wait that is left to chance, 0 to 1
    patience_s: float = 120.0  #: a provider that asks for more is not waited for: the call fails, and says how long

    def __post_init__(self) -> None:
        if self.attempts < 1:
            raise InvalidValue("attempts", self.attempts, "at least 1")
        if not 0 <= self.jitter <= 1:
            raise InvalidValue("jitter", self.jitter, "0 to 1")
        for name in ("base_s", "max_s", "patience_s"):
            seconds = getattr(self, name)
            if not isfinite(seconds) or seconds < 0:
                raise InvalidValue(name, seconds, "seconds, 0 or more")

    def wait_s(self, attempt: int, failed: ModelFailed, chance: float) -> float | None:
        """Seconds to wait after attempt number `attempt`; None where trying again is of no use. `chance` is 0 to 1."""
        if not failed.retryable or attempt >= self.attempts:
            return None
        own_s = min(self.max_s, self.base_s * 2.0 ** min(attempt - 1, 60))
        own_s -= own_s * self.jitter * chance
        if failed.retry_after_s is None:
            return own_s
        if failed.retry_after_s > self.patience_s:
            return None
        # Never earlier than asked; chance spreads those who were all asked to come back at the same moment.
        return failed.retry_after_s + min(own_s, self.base_s) * chance


class Retry(NamedTuple):
    """What a caller is told before a wait: for an event, or a line on a screen."""

    attempt: int  #: the attempt that failed; 1 is the first
    wait_s: float
    failed: ModelFailed


class RateLimiter:
    """Lets calls to one model through: so many at once, none while closed, each tried again as the policy says."""

    def __init__(
        self,
        name: str,
        *,
        clock: Clock,
        chance: Callable[[], float] = random.random,
        policy: RetryPolicy | None = None,
        at_once: int | None = None,
    ) -> None:
        if at_once is not None and at_once < 1:
            raise InvalidValue("at_once", at_once, "at least 1")
        self.name = name
        self.policy = policy or RetryPolicy()
        self._clock, self._chance = clock, chance
        self._places = asyncio.Semaphore(at_once) if at_once else nullcontext()
        self._closed_until = float("-inf")

    @property
    def closed_for_s(self) -> float:
        """Seconds until calls are let through again; 0 while it is open."""
        return max(0.0, self._closed_until - self._clock.monotonic())

    async def call(
        self, attempt: Callable[[int], Awaitable[T]], *, before_wait: Callable[[Retry], None] | None = None
    ) -> T:
        """What `attempt(number)` returns, tried until it succeeds or the policy gives up; then its last ModelFailed.

        Cancelling ends a wait at once and gives back the place. Any other exception passes.
        """
        number = 1
        while True:
            await self._wait_until_open(spread=number == 1)
            try:
                async with self._places:
                    # It may have closed while this call waited for its place.
                    if self.closed_for_s <= 0:
                        return await attempt(number)
                    continue
            except ModelFailed as failed:
                wait_s = self.policy.wait_s(number, failed, self._chance())
                self._close_after(failed, wait_s)
                if wait_s is None:
                    raise
                if before_wait is not None:
                    before_wait(Retry(number, wait_s, failed))
            await self._clock.sleep(wait_s)
            number += 1

    async def _wait_until_open(self, *, spread: bool) -> None:
        while (left_s := self.closed_for_s) > 0:
            # Those who come later are spread, too; whoever was refused itself has had its share of chance already.
            await self._clock.sleep(left_s + (self.policy.base_s * self._chance() if spread else 0.0))

    def _close_after(self, failed: ModelFailed, wait_s: float | None) -> None:
        if failed.retry_after_s is None and failed.status not in _CLOSING:
            return
        # A provider that asks for more than anybody waits for is believed as long as we are patient, no longer.
        closed_s = min(failed.retry_after_s or wait_s or 0.0, self.policy.patience_s)
        self._closed_until = max(self._closed_until, self._clock.monotonic() + closed_s)


class RateLimiters:
    """The gates of all models, one for each name, made when first asked for."""

    def __init__(
        self,
        *,
        clock: Clock,
        chance: Callable[[], float] = random.random,
        policy: RetryPolicy | None = None,
        at_once: int | None = None,
    ) -> None:
        self._clock, self._chance, self._policy, self._at_once = clock, chance, policy, at_once
        self._gates: dict[str, RateLimiter] = {}

    def of(self, name: str) -> RateLimiter:
        """The gate of this model, the same for everybody."""
        gate = self._gates.get(name)
        if gate is None:
            gate = self._gates[name] = RateLimiter(
                name, clock=self._clock, chance=self._chance, policy=self._policy, at_once=self._at_once
            )
        return gate
