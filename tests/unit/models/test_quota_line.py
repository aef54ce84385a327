"""Quota windows of a model: all calls stand in line, one tries first, the others follow in their order."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from ramet.concurrency.clock import FakeClock
from ramet.core.errors import BudgetExceeded, ModelFailed
from ramet.models.quota_line import PROBE_S, QuotaWindow
from ramet.models.rate_limit import RateLimiter, Retry, RetryPolicy
from tests.unit.models.test_gate import busy_error, wait_until

EXACT = RetryPolicy(attempts=2, base_s=1.0, jitter=0.0)


class Counter:
    """A provider that plays its answers in the order of the requests; a request without one is held until `open`."""

    def __init__(self, clock: FakeClock, *answers: Exception | str) -> None:
        self.clock, self.answers = clock, list(answers)
        self.requests: list[tuple[float, str]] = []
        self.open = asyncio.Event()

    def caller(self, name: str) -> Callable[[int], Awaitable[str]]:
        """Return the attempt of one caller."""

        async def attempt(_: int) -> str:
            self.requests.append((self.clock.monotonic(), name))
            await asyncio.sleep(0)
            if not self.answers:
                await self.open.wait()
                return name
            answer = self.answers.pop(0)
            if isinstance(answer, Exception):
                raise answer
            return answer

        return attempt


def limiter_of(clock: FakeClock, policy: RetryPolicy = EXACT) -> RateLimiter:
    return RateLimiter("m", clock=clock, chance=lambda: 0.0, policy=policy)


async def in_window(clock: FakeClock, provider: Counter, limiter: RateLimiter, *names: str) -> list[asyncio.Task[str]]:
    """Start one call after the other; return them once the first was refused, and all wait."""
    calls = [asyncio.create_task(limiter.call(provider.caller(names[0])))]
    await wait_until(lambda: clock.sleeping == 1)
    for name in names[1:]:
        calls.append(asyncio.create_task(limiter.call(provider.caller(name))))
        await asyncio.sleep(0)
    await asyncio.sleep(0)
    return calls


async def test_one_call_tries_alone_and_the_others_follow_in_order() -> None:
    """No call asks within the window of 60 s; after it, nobody but the first, until its answer is there."""
    clock = FakeClock()
    provider, limiter = Counter(clock, busy_error(60)), limiter_of(clock)
    calls = await in_window(clock, provider, limiter, "a", "b", "c", "d")
    assert clock.sleeping == 1
    await clock.advance(59)
    assert provider.requests == [(0, "a")]
    assert limiter.closed_for_s == 1

    await clock.advance(1)
    late = asyncio.create_task(limiter.call(provider.caller("late")))
    await clock.advance(4)
    assert provider.requests == [(0, "a"), (60, "a")]

    provider.open.set()
    assert await asyncio.gather(*calls, late) == ["a", "b", "c", "d", "late"]
    assert provider.requests[2:] == [(64, name) for name in ("b", "c", "d", "late")]


async def test_a_first_call_that_does_not_come_to_its_answer_holds_nobody_up() -> None:
    """The first may wait for a slot, for a limit, or for the end of a long stream: the next ones go meanwhile."""
    clock = FakeClock()
    provider, limiter = Counter(clock, busy_error(60)), limiter_of(clock)
    calls = await in_window(clock, provider, limiter, "a", "b", "c")
    await clock.advance(60)
    await clock.advance(PROBE_S)
    assert provider.requests == [(0, "a"), (60, "a"), (65, "b")]

    provider.open.set()
    assert await asyncio.gather(*calls) == ["a", "b", "c"]
    assert provider.requests[3:] == [(65, "c")]


async def test_a_call_that_is_refused_again_is_first_in_line_again() -> None:
    """The second window replaces the first one, also if it ends earlier than was said."""
    clock = FakeClock()
    provider, limiter = Counter(clock, busy_error(60), busy_error(30), "yes", "yes"), limiter_of(clock)
    calls = await in_window(clock, provider, limiter, "a", "b")
    await clock.advance(60)
    await clock.advance(29)
    assert provider.requests == [(0, "a"), (60, "a")]
    await clock.advance(1)
    await asyncio.gather(*calls)
    assert provider.requests[2:] == [(90, "a"), (90, "b")]


async def test_windows_are_no_attempts_and_the_waits_of_a_call_count_together() -> None:
    """Three windows pass with two attempts; a fourth would make the waits longer than 300 s together."""
    clock = FakeClock()
    provider, limiter = Counter(clock, *[busy_error(90)] * 4), limiter_of(clock)
    [call] = await in_window(clock, provider, limiter, "a")
    for _ in range(3):
        await clock.advance(90)
    with pytest.raises(ModelFailed, match="max_wait_s is 300") as failure:
        await call
    assert [at for at, _ in provider.requests] == [0, 90, 180, 270]
    assert (failure.value.status, failure.value.retry_after_s) == (429, 90)


async def test_without_an_end_a_call_waits_for_every_window() -> None:
    """`max_wait_s=None` waits for hours, as often as is asked."""
    clock = FakeClock()
    provider = Counter(clock, *[busy_error(7200)] * 5, "yes")
    limiter = limiter_of(clock, RetryPolicy(attempts=1, max_wait_s=None))
    [call] = await in_window(clock, provider, limiter, "a")
    for _ in range(5):
        await clock.advance(7200)
    assert await call == "yes"


async def test_a_window_that_is_too_long_fails_all_calls_at_once() -> None:
    """Calls in line, and later ones, send nothing. After the longest wait one of the later ones tries again."""
    clock = FakeClock()
    provider, limiter = Counter(clock, busy_error(60), busy_error(7200), "yes"), limiter_of(clock)
    calls = await in_window(clock, provider, limiter, "a", "b")
    await clock.advance(60)
    for call in calls:
        with pytest.raises(ModelFailed, match="answers again in 7200 s"):
            await call
    await clock.advance(10)
    with pytest.raises(ModelFailed, match="answers again in 7190 s"):
        await limiter.call(provider.caller("c"))
    assert len(provider.requests) == 2

    await clock.advance(290)
    assert await limiter.call(provider.caller("d")) == "yes"


@pytest.mark.parametrize("end", ["cancelled", "refused by its budget", "without an answer"])
async def test_the_next_call_tries_if_the_first_one_has_no_answer(end: str) -> None:
    """The end of the first request frees nobody but the next in line."""
    clock = FakeClock()
    provider, limiter = Counter(clock, busy_error(60)), limiter_of(clock)
    calls = await in_window(clock, provider, limiter, "a", "b", "c")
    problems: dict[str, Exception] = {
        "refused by its budget": BudgetExceeded("usd", asked=1, left=0, scope="main"),
        "without an answer": ModelFailed("m", "no connection", retryable=True),
    }
    provider.answers += [problems[end]] if end in problems else []
    await clock.advance(60)
    if end == "cancelled":
        calls[0].cancel()
    await wait_until(lambda: len(provider.requests) == 3)
    assert provider.requests[1:] == [(60, "a"), (60, "b")]
    provider.open.set()
    await clock.advance(1)
    assert await asyncio.gather(*calls[1:]) == ["b", "c"]
    await asyncio.gather(calls[0], return_exceptions=True)


async def test_a_call_that_comes_while_the_first_one_tries_waits_for_its_answer() -> None:
    """No other call was in line, so that it would be the first."""
    clock = FakeClock()
    provider, limiter = Counter(clock, busy_error(60)), limiter_of(clock)
    [first] = await in_window(clock, provider, limiter, "a")
    await clock.advance(60)
    late = asyncio.create_task(limiter.call(provider.caller("late")))
    await clock.advance(1)
    assert provider.requests == [(0, "a"), (60, "a")]
    provider.open.set()
    assert [*await asyncio.gather(first, late)] == ["a", "late"]


async def test_the_newest_answer_about_a_window_counts() -> None:
    """After a window that was too long to wait for, a later request hears of a shorter one, and waits."""
    clock = FakeClock()
    provider, limiter = Counter(clock, busy_error(7200), busy_error(60), "yes"), limiter_of(clock)
    with pytest.raises(ModelFailed):
        await limiter.call(provider.caller("a"))
    await clock.advance(300)
    later = asyncio.create_task(limiter.call(provider.caller("b")))
    await wait_until(lambda: clock.sleeping == 1)
    await clock.advance(60)
    assert await later == "yes"


async def test_a_call_that_leaves_lets_the_next_one_wait_for_the_end() -> None:
    """The first in line is cancelled in the middle of the window, which ends when it would have ended."""
    clock = FakeClock()
    provider, limiter = Counter(clock, busy_error(60), "yes", "yes"), limiter_of(clock)
    calls = await in_window(clock, provider, limiter, "a", "b", "c")
    await clock.advance(30)
    calls[0].cancel()
    await wait_until(lambda: clock.sleeping == 1 and calls[0].done())
    await clock.advance(30)
    assert await asyncio.gather(*calls[1:]) == ["yes", "yes"]
    assert provider.requests[1:] == [(60, "b"), (60, "c")]


async def test_a_thousand_calls_that_are_refused_together_hear_of_one_window() -> None:
    """Each is told once, and the refusals that follow the first one wake nobody."""
    clock = FakeClock()
    provider, limiter = Counter(clock, *[busy_error(60)] * 1000), limiter_of(clock)
    windows: list[QuotaWindow] = []
    retries: list[Retry] = []
    calls = [
        asyncio.create_task(
            limiter.call(provider.caller(str(number)), on_window=windows.append, before_wait=retries.append)
        )
        for number in range(1000)
    ]
    await wait_until(lambda: len(windows) == 1000)
    assert {window.until_s for window in windows} == {60}
    assert len(retries) == 1000
    provider.open.set()
    await clock.advance(60)
    assert await asyncio.gather(*calls) == [str(number) for number in range(1000)]
    assert len(provider.requests) == 2000
