"""Cached results of equal calls: found again after restarts, computed once, and never shared with a different call."""

from __future__ import annotations

import asyncio
import pathlib
from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from typing import Any

import pytest

from ramet import Agent, AgentRuntime, Policy, ScriptedModel, chain, parallel
from ramet.concurrency.clock import FakeClock, SystemClock
from ramet.core.events import ResultReused, RunEnded, SandboxStarted, TurnEnded, decode
from ramet.core.outcome import Result, Status
from ramet.host.journal.result_cache import RESULTS
from ramet.host.retention.sweep import sweep
from ramet.store.memory import MemoryStore
from ramet.store.sqlite.store import SqliteStore
from tests.support.cut_journals import cut_behind
from tests.support.waiting import eventually
from tests.trips.agents.composed import Point, double, norm, pid, to_point, untyped


class CallCount:
    """The number of calls of a function, kept outside of its definition."""

    calls = 0


def counted_function(value: Any = None) -> Any:
    """Count the call, and return the argument."""
    CallCount.calls += 1
    return value


def failing() -> None:
    """Count the call, and fail."""
    CallCount.calls += 1
    raise ValueError("no")


@pytest.fixture(autouse=True)
def reset_call_count() -> None:
    """Begin each test with no calls."""
    CallCount.calls = 0


@pytest.fixture
async def runtime(tmp_path: pathlib.Path) -> AsyncIterator[AgentRuntime]:
    """A runtime with a journal, whose sandboxes are processes."""
    async with AgentRuntime(tmp_path, backend="local") as runtime:
        yield runtime


COUNTED = Agent(name="counted", function=counted_function, cache_ttl_seconds=60)


async def result_of(runtime: AgentRuntime, agent: Agent, *args: Any, **options: Any) -> Result:
    """Spawn an agent and return its result."""
    return await (await runtime.spawn(agent, args=args, **options)).result()


async def test_an_equal_call_returns_the_cached_result(runtime: AgentRuntime) -> None:
    """The second run has the value, names the first run in an event, and used nothing."""
    first = await runtime.spawn(COUNTED, args=([1],))
    await first.result()
    second = await runtime.spawn(COUNTED, args=([1],))
    second_result = await second.result()

    assert (second_result.status, second_result.value, CallCount.calls) == (Status.COMPLETED, [1], 1)
    reused = [event async for event in events_of(second.id, runtime) if isinstance(event, ResultReused)]
    assert [event.made_by for event in reused] == [first.id]
    assert second_result.usage_subtree.model_calls == 0


async def events_of(run: str, runtime: AgentRuntime) -> AsyncIterator[Any]:
    """Yield the recorded events of a run."""
    assert runtime.journal is not None
    for entry in await runtime.journal.store.read(run=run, limit=1_000):
        yield decode(entry.data)


async def test_an_equal_prompt_does_not_ask_the_model_again(runtime: AgentRuntime) -> None:
    """The prompt is the input of the call. Another prompt, or other instructions, are another call."""
    model = ScriptedModel(["one", "two", "three"])
    agent = Agent(name="asked", model=model, instructions="Answer.", cache_ttl_seconds=60)
    texts = [
        (await result_of(runtime, each, prompt=prompt)).value
        for each, prompt in [(agent, "a"), (agent, "a"), (agent, "b"), (agent.with_instructions("Answer!"), "a")]
    ]

    assert texts == ["one", "one", "two", "three"]
    assert len(model.requests) == 3


def adder(amount: int) -> Callable[[int], int]:
    """Return a function: functions with different amounts have equal code."""

    def add(number: int) -> int:
        CallCount.calls += 1
        return number + amount

    return add


async def test_every_part_of_an_agent_changes_the_cache_key(runtime: AgentRuntime) -> None:
    """Input, name, closed-over values, code, policy and steps are parts of the key."""
    agents = [
        COUNTED,
        COUNTED.with_name("other"),
        COUNTED.replace(function=adder(1)),
        COUNTED.replace(function=adder(2)),
        COUNTED.with_timeout(50),
        chain(counted_function).with_cache(60),
        chain(counted_function, adder(3)).with_cache(60),
        chain(counted_function, adder(4)).with_cache(60),
    ]
    values = [(await result_of(runtime, each, 1)).value for each in agents]
    calls = CallCount.calls

    assert values == [1, 1, 2, 3, 1, 1, 4, 5]
    assert calls == 10
    assert [(await result_of(runtime, each, 1)).value for each in agents] == values
    assert CallCount.calls == calls
    await result_of(runtime, COUNTED, 2)
    assert CallCount.calls == calls + 1


async def test_a_failure_is_not_cached(runtime: AgentRuntime) -> None:
    """A second equal call runs again after a failure."""
    agent = Agent(name="failing", function=failing, cache_ttl_seconds=60)

    for _ in range(2):
        assert (await result_of(runtime, agent)).status is Status.FAILED
    assert CallCount.calls == 2


async def test_a_failure_in_a_sandbox_is_not_cached(runtime: AgentRuntime) -> None:
    """A second equal call fails as well."""
    agent = Agent(name="failing", function=failing, cache_ttl_seconds=60, policy=Policy())

    assert [(await result_of(runtime, agent)).status for _ in range(2)] == [Status.FAILED] * 2


async def test_a_cached_result_expires_after_its_ttl(tmp_path: pathlib.Path) -> None:
    """A TTL of 60 s covers an equal call after 59 s, and one after 60 s runs again."""
    clock = FakeClock()
    async with AgentRuntime(tmp_path, clock=clock) as runtime:
        await result_of(runtime, COUNTED, 1)
        await clock.advance(59)
        await result_of(runtime, COUNTED, 1)
        assert CallCount.calls == 1
        await clock.advance(1)
        await result_of(runtime, COUNTED, 1)
        assert CallCount.calls == 2


async def test_concurrent_equal_calls_run_once(runtime: AgentRuntime) -> None:
    """One of forty concurrent calls runs. The others wait, and each gets the value."""
    agent = chain(Agent(name="counted", function=counted_function, cache_ttl_seconds=60))
    result = await result_of(runtime, parallel(*[agent] * 40, max_parallel=40), 7)

    assert (result.value, CallCount.calls) == ([7] * 40, 1)


async def test_a_call_that_waited_for_a_failed_equal_call_runs_itself(runtime: AgentRuntime) -> None:
    """Each of three equal calls runs, since each of them fails."""
    agent = Agent(name="failing", function=failing, cache_ttl_seconds=60)
    results = await asyncio.gather(*(result_of(runtime, agent) for _ in range(3)))

    assert [each.status for each in results] == [Status.FAILED] * 3
    assert CallCount.calls == 3


async def test_a_call_below_its_own_equal_runs_itself(runtime: AgentRuntime) -> None:
    """The child would wait for its own parent for ever."""
    inner = COUNTED.replace(function=spawn_equal_call)

    assert (await result_of(runtime, inner, 3)).value == 3
    assert CallCount.calls == 2


async def spawn_equal_call(number: int) -> int:
    """Spawn an equal call once, from the root."""
    from ramet.tools.context import current
    from ramet.tools.spawn_request import SpawnRequest

    CallCount.calls += 1
    context = current()
    if context.run.depth == 0 and context.tree is not None:
        agent = Agent(name="counted", function=spawn_equal_call, cache_ttl_seconds=60)
        handle = await context.tree.spawn(context, SpawnRequest(agent=agent, args=(number,)))
        return int((await handle.result()).value)
    return number


async def test_a_waiting_call_can_be_cancelled(runtime: AgentRuntime) -> None:
    """The cancel does not reach the equal call that runs."""
    has_entered, gate = asyncio.Event(), asyncio.Event()

    async def slow() -> str:
        CallCount.calls += 1
        has_entered.set()
        await gate.wait()
        return "done"

    doors[:] = [slow]
    agent = Agent(name="slow", function=call_function_of_test, cache_ttl_seconds=60)
    first = await runtime.spawn(agent)
    await has_entered.wait()
    second = await runtime.spawn(agent)
    await eventually(lambda: second.run.waits_for)
    await second.cancel()
    gate.set()

    assert (await second.result()).status is Status.CANCELLED
    assert (await first.result()).value == "done"
    assert CallCount.calls == 1


doors: list[Any] = []


async def call_function_of_test() -> Any:
    """Call the function that a test sets, which is no part of the cache key."""
    return await doors[0]()


async def test_cached_results_outlive_their_process(tmp_path: pathlib.Path) -> None:
    """The store has results as data. An object is rebuilt from the return annotation."""
    agent = Agent(name="point", function=to_point, cache_ttl_seconds=60)
    async with AgentRuntime(tmp_path) as runtime:
        assert (await result_of(runtime, agent, 3)).value == Point(3)
    async with AgentRuntime(tmp_path) as runtime:
        handle = await runtime.spawn(agent, args=(3,))

        assert (await handle.result()).value == Point(3)
        assert any([isinstance(event, ResultReused) async for event in events_of(handle.id, runtime)])


@pytest.mark.parametrize(
    "rubbish", [b"", b"{", b"null", b'{"value":1}', b'{"value":1,"run":"r","at":"x","until":"y"}', b"\xff\xfe" * 100]
)
async def test_an_unreadable_cache_entry_is_replaced(tmp_path: pathlib.Path, rubbish: bytes) -> None:
    """The call runs again, and its result overwrites the entry."""
    async with AgentRuntime(tmp_path) as runtime:
        await result_of(runtime, COUNTED, 1)
    store = await SqliteStore(tmp_path / ".ramet" / "journal.db").open()
    [document] = await store.list(RESULTS)
    await store.put(RESULTS, document.key, rubbish)
    await store.close()

    async with AgentRuntime(tmp_path) as runtime:
        for _ in range(2):
            assert (await result_of(runtime, COUNTED, 1)).value == 1
    assert CallCount.calls == 2


async def test_a_cache_entry_that_no_longer_fits_the_annotation_is_ignored(tmp_path: pathlib.Path) -> None:
    """The call runs again if the annotated type refuses the stored value."""
    agent = Agent(name="point", function=to_point, cache_ttl_seconds=60)
    async with AgentRuntime(tmp_path) as runtime:
        await result_of(runtime, agent, 3)
        assert runtime.journal is not None
        [document] = await runtime.journal.store.list(RESULTS)
        data = document.data.replace(b'"x"', b'"z"')
        await runtime.journal.store.put(RESULTS, document.key, data)
    async with AgentRuntime(tmp_path) as runtime:
        assert (await result_of(runtime, agent, 3)).value == Point(3)


async def test_a_cached_call_starts_no_sandbox(runtime: AgentRuntime) -> None:
    """The second call has the value of the first one, and one sandbox was started."""
    agent = Agent(name="pid", function=pid, cache_ttl_seconds=60, policy=Policy())
    values, start_count = [], 0
    for _ in range(2):
        handle = await runtime.spawn(agent)
        values.append((await handle.result()).value)
        async for event in events_of(handle.id, runtime):
            start_count += isinstance(event, SandboxStarted)

    assert (len(set(values)), start_count) == (1, 1)


async def test_a_call_without_a_key_always_runs(runtime: AgentRuntime) -> None:
    """An input that is no data, or a function that closes over an object, has no cache key."""
    argument = object()

    def closing(value: Any = None) -> int:
        CallCount.calls += 1
        return len(repr(argument)[:1])

    for _ in range(2):
        await result_of(runtime, COUNTED, argument)
        await result_of(runtime, COUNTED.replace(function=closing), 1)
    assert CallCount.calls == 4


async def test_a_step_of_a_chain_is_cached(runtime: AgentRuntime) -> None:
    """A step of a composition has a cache entry of its own."""
    line = chain(double, COUNTED, to_point, norm, untyped)

    assert [(await result_of(runtime, line, 2)).value for _ in range(2)] == [16, 16]
    assert CallCount.calls == 1


async def test_a_cache_entry_from_the_future_is_ignored(tmp_path: pathlib.Path) -> None:
    """The clock was set back by a day, so the call runs again."""
    async with AgentRuntime(tmp_path) as runtime:
        await result_of(runtime, COUNTED, 1)
        assert runtime.journal is not None
        tree_events = [decode(each.data) for each in await runtime.journal.store.read(limit=100)]
        at = next(event.at for event in tree_events if isinstance(event, RunEnded))
    assert at is not None
    async with AgentRuntime(tmp_path, clock=FakeClock(at - timedelta(days=1))) as runtime:
        await result_of(runtime, COUNTED, 1)
    assert CallCount.calls == 2


async def test_sweep_removes_expired_results(tmp_path: pathlib.Path) -> None:
    """Sweep removes expired and unreadable entries, and keeps the others."""
    async with AgentRuntime(tmp_path) as runtime:
        await result_of(runtime, COUNTED, 1)
        await result_of(runtime, COUNTED.with_cache(10**6), 1)
    store = await SqliteStore(tmp_path / ".ramet" / "journal.db").open()
    try:
        await store.put(RESULTS, "rubbish", b"{")
        now = SystemClock().now()
        await sweep(store, tmp_path, before=now)
        assert len(await store.list(RESULTS)) == 2
        await sweep(store, tmp_path, before=now + timedelta(seconds=100))
        assert len(await store.list(RESULTS)) == 1
    finally:
        await store.close()


async def test_a_kill_after_a_cached_result_leaves_no_empty_result() -> None:
    """The turn of a cached call has no answer in the journal, so the next kernel runs the call."""
    store = MemoryStore()
    model = ScriptedModel(["one", "two"])
    agent = Agent(name="asked", model=model, instructions="Answer.", cache_ttl_seconds=60)
    async with AgentRuntime(store=store) as runtime:
        values = [(await result_of(runtime, agent, prompt="a")).value for _ in range(2)]
    assert values == ["one", "one"]
    cut_store = await cut_behind(store, lambda event: isinstance(event, TurnEnded), 2)
    async with AgentRuntime(store=cut_store) as runtime:
        [handle] = await runtime.resume(llm=model, agents=[agent])
        assert (await handle.result()).value == "two"
