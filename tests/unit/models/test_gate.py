"""Rate limits of a model: waits, retries, and concurrent calls that wait together, on the time of a fake clock."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from ramet.concurrency.clock import FakeClock
from ramet.core.errors import BudgetExceeded, InvalidValue, ModelFailed
from ramet.models.rate_limit import RateLimiter, Retry, RetryPolicy

EXACT = RetryPolicy(attempts=4, base_s=1.0, max_s=30.0, jitter=0.0)


def busy_error(retry_after_s: float | None = None, status: int = 429) -> ModelFailed:
    return ModelFailed("m", "busy", status=status, retryable=True, retry_after_s=retry_after_s)


class Provider:
    """Provider that fails as often as it is told, then answers; it keeps the time of every request."""

    def __init__(self, clock: FakeClock, *failures: Exception) -> None:
        self.clock, self.failures = clock, list(failures)
        self.asked_at: list[float] = []
        self.numbers: list[int] = []

    async def __call__(self, number: int) -> str:
        self.asked_at.append(self.clock.monotonic())
        self.numbers.append(number)
        await asyncio.sleep(0)
        if self.failures:
            raise self.failures.pop(0)
        return "answer"


def a_gate(clock: FakeClock, policy: RetryPolicy = EXACT, chance: float = 0.0) -> RateLimiter:
    return RateLimiter("m", clock=clock, chance=lambda: chance, policy=policy)


async def wait_until(ready: Callable[[], bool]) -> None:
    """Let others run until the condition holds."""
    while not ready():  # noqa: ASYNC110  # the fake clock has no event for it, and sleep(0) is a step, not a wait
        await asyncio.sleep(0)


async def test_a_call_that_succeeds_is_made_once() -> None:
    """Nothing waits, and nothing is retried."""
    clock = FakeClock()
    provider = Provider(clock)

    assert await a_gate(clock).call(provider) == "answer"
    assert provider.numbers == [1]


async def test_waits_double_and_each_attempt_is_numbered() -> None:
    """The waits are 1 s, 2 s and 4 s; the caller is told before each."""
    clock = FakeClock()
    provider = Provider(clock, busy_error(status=500), busy_error(status=500), busy_error(status=500))
    retries: list[Retry] = []
    call = asyncio.create_task(a_gate(clock).call(provider, before_wait=retries.append))

    for _ in range(3):
        await wait_until(lambda: clock.sleeping == 1)
        await clock.advance(retries[-1].wait_s)

    assert await call == "answer"
    assert provider.asked_at == [0, 1, 3, 7]
    assert provider.numbers == [1, 2, 3, 4]
    assert [retry.attempt for retry in retries] == [1, 2, 3]


async def test_the_failure_of_the_last_attempt_is_raised() -> None:
    """Four attempts are four requests, without a fifth."""
    clock = FakeClock()
    failures = [busy_error(status=500 + n) for n in range(5)]
    provider = Provider(clock, *failures)
    call = asyncio.create_task(a_gate(clock).call(provider))

    for wait_s in (1, 2, 4):
        await wait_until(lambda: clock.sleeping == 1)
        await clock.advance(wait_s)

    with pytest.raises(ModelFailed) as failure:
        await call
    assert failure.value is failures[3]
    assert len(provider.asked_at) == 4


async def test_a_lasting_failure_is_raised_at_once() -> None:
    """A request with a bad key is not repeated."""
    clock = FakeClock()
    provider = Provider(clock, ModelFailed("m", "bad key", status=401))

    with pytest.raises(ModelFailed):
        await a_gate(clock).call(provider)

    assert len(provider.asked_at) == 1


async def test_other_errors_are_raised_unchanged() -> None:
    """A reservation that does not fit is no failure of the provider, and does not close the gate."""
    clock = FakeClock()
    gate = a_gate(clock)

    with pytest.raises(BudgetExceeded):
        await gate.call(Provider(clock, BudgetExceeded("calls", asked=1, left=0, scope="main")))

    assert gate.closed_for_s == 0


async def test_retry_after_holds_for_all_calls() -> None:
    """One call is told to wait four seconds: no call asks before, whether it waits already or comes later."""
    clock = FakeClock()
    gate = a_gate(clock)
    provider = Provider(clock, busy_error(retry_after_s=4))
    first = asyncio.create_task(gate.call(provider))
    await wait_until(lambda: clock.sleeping == 1)

    siblings = [asyncio.create_task(gate.call(provider)) for _ in range(50)]
    await wait_until(lambda: clock.sleeping == 51)
    await clock.advance(3.9)
    assert len(provider.asked_at) == 1
    assert 0 < gate.closed_for_s < 1

    await clock.advance(0.2)
    assert await asyncio.gather(first, *siblings) == ["answer"] * 51
    assert provider.asked_at == [0, *[4] * 51]


async def test_waiting_calls_ask_at_different_times() -> None:
    """Calls that waited together do not ask at the same moment."""
    clock = FakeClock()
    chances = iter([0.0, 0.1, 0.9, 0.5, *[0.0] * 10])
    gate = RateLimiter("m", clock=clock, chance=lambda: next(chances), policy=EXACT)
    provider = Provider(clock, busy_error(retry_after_s=4))
    first = asyncio.create_task(gate.call(provider))
    await wait_until(lambda: clock.sleeping == 1)
    others = [asyncio.create_task(gate.call(provider)) for _ in range(3)]
    await wait_until(lambda: clock.sleeping == 4)

    await clock.advance(6)
    await asyncio.gather(first, *others)

    assert provider.asked_at == [0, 4, 4.1, 4.5, 4.9]


async def test_a_server_error_of_one_call_does_not_stop_the_others() -> None:
    """Status 500 is about one request; only failures that concern each request close the gate."""
    clock = FakeClock()
    gate = a_gate(clock)
    failing = asyncio.create_task(gate.call(Provider(clock, busy_error(status=500))))
    await wait_until(lambda: clock.sleeping == 1)

    assert await gate.call(Provider(clock)) == "answer"

    await clock.advance(1)
    await failing


@pytest.mark.parametrize("status", [429, 503, 529])
async def test_an_overload_without_retry_after_closes_the_gate_for_our_own_wait(status: int) -> None:
    """The server gave no time; the growing wait is as good for the other calls."""
    clock = FakeClock()
    gate = a_gate(clock)
    failing = asyncio.create_task(gate.call(Provider(clock, busy_error(status=status))))
    await wait_until(lambda: clock.sleeping == 1)

    assert gate.closed_for_s == 1.0

    await clock.advance(1)
    await failing


async def test_no_call_waits_longer_than_the_limit() -> None:
    """An hour of Retry-After is a failure that says so, not a silent hour."""
    clock = FakeClock()
    provider = Provider(clock, busy_error(retry_after_s=3600))
    gate = a_gate(clock)

    with pytest.raises(ModelFailed) as failure:
        await gate.call(provider)

    assert failure.value.retry_after_s == 3600
    assert "answers again in 3600 s, at 2026-01-01 01:00:00 UTC" in str(failure.value)
    assert gate.closed_for_s == EXACT.max_wait_s


@pytest.mark.parametrize("is_closed", [True, False], ids=["at the gate", "between attempts"])
async def test_cancelling_ends_a_wait_at_once(is_closed: bool) -> None:
    """The clock does not move, and the call has ended."""
    clock = FakeClock()
    gate = a_gate(clock)
    waiting = asyncio.create_task(
        gate.call(Provider(clock, busy_error(7 if is_closed else None, status=429 if is_closed else 500)))
    )
    await wait_until(lambda: clock.sleeping == 1)
    if is_closed:
        waiting.cancel()
        waiting = asyncio.create_task(gate.call(Provider(clock)))
        await wait_until(lambda: clock.sleeping == 1)

    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting

    await clock.advance(7)
    assert await gate.call(Provider(clock)) == "answer"


def test_jitter_shortens_only_our_own_wait() -> None:
    """A wait with a jitter of half is between half and all of it; it is limited, and never earlier than asked."""
    policy = RetryPolicy(attempts=100, base_s=1.0, max_s=8.0, jitter=0.5)

    assert policy.wait_s(1, busy_error(), 0.0) == 1.0
    assert policy.wait_s(1, busy_error(), 1.0) == 0.5
    assert policy.wait_s(10, busy_error(), 0.0) == 8.0
    assert policy.wait_s(99, busy_error(), 0.0) == 8.0
    assert policy.wait_s(1, busy_error(retry_after_s=5), 0.0) == 5.0
    assert policy.wait_s(1, busy_error(retry_after_s=5), 1.0) == 5.5
    assert policy.wait_s(1, busy_error(retry_after_s=0), 0.0) == 0.0
    assert policy.wait_s(100, busy_error(), 0.0) is None


@pytest.mark.parametrize(
    "wrong",
    [{"attempts": 0}, {"jitter": 2.0}, {"jitter": float("nan")}, {"base_s": -1.0}, {"max_s": float("nan")},
     {"max_wait_s": float("inf")}],
)  # fmt: skip
def test_an_invalid_policy_is_refused(wrong: dict[str, float]) -> None:
    """The error names its field."""
    with pytest.raises(InvalidValue, match=next(iter(wrong))):
        RetryPolicy(**wrong)  # type: ignore[arg-type]
