"""Results that stand for equal calls: found again, over restarts, worked on once, and never somebody else's."""

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


class Counted:
    """A function's work, counted outside of what its definition is made of."""

    calls = 0


def counted(value: Any = None) -> Any:
    """Counts its calls; a class is known by its name."""
    Counted.calls += 1
    return value


def failing() -> None:
    """Counts, and fails."""
    Counted.calls += 1
    raise ValueError("no")


@pytest.fixture(autouse=True)
def from_zero() -> None:
    """Each test counts by itself."""
    Counted.calls = 0


@pytest.fixture
async def runtime(tmp_path: pathlib.Path) -> AsyncIterator[AgentRuntime]:
    """A runtime with a journal, whose sandboxes are processes."""
    async with AgentRuntime(tmp_path, backend="local") as runtime:
        yield runtime


COUNTED = Agent(name="counted", function=counted, cache_ttl_seconds=60)


async def result_of(runtime: AgentRuntime, agent: Agent, *args: Any, **options: Any) -> Result:
    """Its result."""
    return await (await runtime.spawn(agent, args=args, **options)).result()


async def test_an_equal_call_is_not_worked_on_and_says_so(runtime: AgentRuntime) -> None:
    """The second run has the value, names the first, and used nothing."""
    first = await runtime.spawn(COUNTED, args=([1],))
    await first.result()
    second = await runtime.spawn(COUNTED, args=([1],))
    again = await second.result()

    assert (again.status, again.value, Counted.calls) == (Status.COMPLETED, [1], 1)
    reused = [event async for event in followed(second.id, runtime) if isinstance(event, ResultReused)]
    assert [event.made_by for event in reused] == [first.id]
    assert again.usage_subtree.model_calls == 0


async def followed(run: str, runtime: AgentRuntime) -> AsyncIterator[Any]:
    """What is on record of a run."""
    assert runtime.journal is not None
    for stored in await runtime.journal.store.read(run=run, limit=1_000):
        yield decode(stored.data)


async def test_a_model_is_not_asked_again(runtime: AgentRuntime) -> None:
    """Its prompt is the input; another prompt is another call, and so is an agent with other instructions."""
    model = ScriptedModel(["one", "two", "three"])
    agent = Agent(name="asked", model=model, instructions="Answer.", cache_ttl_seconds=60)
    said = [
        (await result_of(runtime, each, prompt=prompt)).value
        for each, prompt in [(agent, "a"), (agent, "a"), (agent, "b"), (agent.with_instructions("Answer!"), "a")]
    ]

    assert said == ["one", "one", "two", "three"]
    assert len(model.requests) == 3


def adder(amount: int) -> Callable[[int], int]:
    """Functions with one code and different meanings."""

    def add(number: int) -> int:
        Counted.calls += 1
        return number + amount

    return add


async def test_whatever_makes_another_agent_is_another_key(runtime: AgentRuntime) -> None:
    """Input, name, what a function closes over, its code, its policy, a step of it: each is worked on."""
    agents = [
        COUNTED,
        COUNTED.with_name("other"),
        COUNTED.replace(function=adder(1)),
        COUNTED.replace(function=adder(2)),
        COUNTED.with_timeout(50),
        chain(counted).with_cache(60),
        chain(counted, adder(3)).with_cache(60),
        chain(counted, adder(4)).with_cache(60),
    ]
    values = [(await result_of(runtime, each, 1)).value for each in agents]
    calls = Counted.calls

    assert values == [1, 1, 2, 3, 1, 1, 4, 5]
    assert calls == 10
    assert [(await result_of(runtime, each, 1)).value for each in agents] == values
    assert Counted.calls == calls
    await result_of(runtime, COUNTED, 2)
    assert Counted.calls == calls + 1


async def test_only_what_was_completed_stands(runtime: AgentRuntime) -> None:
    """A failure is tried again."""
    agent = Agent(name="failing", function=failing, cache_ttl_seconds=60)

    for _ in range(2):
        assert (await result_of(runtime, agent)).status is Status.FAILED
    assert Counted.calls == 2


async def test_what_failed_in_a_sandbox_does_not_stand_either(runtime: AgentRuntime) -> None:
    """Nor does what it had left by then."""
    agent = Agent(name="failing", function=failing, cache_ttl_seconds=60, policy=Policy())

    assert [(await result_of(runtime, agent)).status for _ in range(2)] == [Status.FAILED] * 2


async def test_it_stands_for_its_time(tmp_path: pathlib.Path) -> None:
    """And not a second longer, nor longer than the one who asks would have it."""
    clock = FakeClock()
    async with AgentRuntime(tmp_path, clock=clock) as runtime:
        await result_of(runtime, COUNTED, 1)
        await clock.advance(59)
        await result_of(runtime, COUNTED, 1)
        assert Counted.calls == 1
        await clock.advance(1)
        await result_of(runtime, COUNTED, 1)
        assert Counted.calls == 2


async def test_equal_calls_at_once_are_worked_on_once(runtime: AgentRuntime) -> None:
    """The others wait, however few may be at work, and each has the value."""
    agent = chain(Agent(name="counted", function=counted, cache_ttl_seconds=60))
    result = await result_of(runtime, parallel(*[agent] * 40, max_parallel=40), 7)

    assert (result.value, Counted.calls) == ([7] * 40, 1)


async def test_who_waits_for_a_call_that_fails_does_the_work_itself(runtime: AgentRuntime) -> None:
    """One after the other, since each is the first of those left."""
    agent = Agent(name="failing", function=failing, cache_ttl_seconds=60)
    results = await asyncio.gather(*(result_of(runtime, agent) for _ in range(3)))

    assert [each.status for each in results] == [Status.FAILED] * 3
    assert Counted.calls == 3


async def test_a_call_below_its_own_equal_does_not_wait_for_it(runtime: AgentRuntime) -> None:
    """It would wait for ever."""
    inner = COUNTED.replace(function=itself)

    assert (await result_of(runtime, inner, 3)).value == 3
    assert Counted.calls == 2


async def itself(number: int) -> int:
    """Starts its own equal once."""
    from ramet.tools.context import SpawnRequest, current

    Counted.calls += 1
    context = current()
    if context.run.depth == 0 and context.tree is not None:
        agent = Agent(name="counted", function=itself, cache_ttl_seconds=60)
        handle = await context.tree.spawn(context, SpawnRequest(agent=agent, args=(number,)))
        return int((await handle.result()).value)
    return number


async def test_a_waiting_call_can_be_cancelled(runtime: AgentRuntime) -> None:
    """And leaves the one that works alone."""
    entered, gate = asyncio.Event(), asyncio.Event()

    async def slow() -> str:
        Counted.calls += 1
        entered.set()
        await gate.wait()
        return "done"

    doors[:] = [slow]
    agent = Agent(name="slow", function=behind_a_door, cache_ttl_seconds=60)
    first = await runtime.spawn(agent)
    await entered.wait()
    second = await runtime.spawn(agent)
    await eventually(lambda: second.run.waits_for)
    await second.cancel()
    gate.set()

    assert (await second.result()).status is Status.CANCELLED
    assert (await first.result()).value == "done"
    assert Counted.calls == 1


doors: list[Any] = []


async def behind_a_door() -> Any:
    """Does what the test says, which is no part of it."""
    return await doors[0]()


async def test_results_outlive_their_process(tmp_path: pathlib.Path) -> None:
    """In the store, as data: an object is again what its annotation says."""
    agent = Agent(name="point", function=to_point, cache_ttl_seconds=60)
    async with AgentRuntime(tmp_path) as runtime:
        assert (await result_of(runtime, agent, 3)).value == Point(3)
    async with AgentRuntime(tmp_path) as runtime:
        handle = await runtime.spawn(agent, args=(3,))

        assert (await handle.result()).value == Point(3)
        assert any([isinstance(event, ResultReused) async for event in followed(handle.id, runtime)])


@pytest.mark.parametrize(
    "rubbish", [b"", b"{", b"null", b'{"value":1}', b'{"value":1,"run":"r","at":"x","until":"y"}', b"\xff\xfe" * 100]
)
async def test_an_entry_that_cannot_be_read_costs_the_work_only(tmp_path: pathlib.Path, rubbish: bytes) -> None:
    """It is overwritten by the next result."""
    async with AgentRuntime(tmp_path) as runtime:
        await result_of(runtime, COUNTED, 1)
    store = await SqliteStore(tmp_path / ".ramet" / "journal.db").open()
    [kept] = await store.list(RESULTS)
    await store.put(RESULTS, kept.key, rubbish)
    await store.close()

    async with AgentRuntime(tmp_path) as runtime:
        for _ in range(2):
            assert (await result_of(runtime, COUNTED, 1)).value == 1
    assert Counted.calls == 2


async def test_an_entry_of_another_shape_costs_the_work_only(tmp_path: pathlib.Path) -> None:
    """A value that the annotation does not take any more."""
    agent = Agent(name="point", function=to_point, cache_ttl_seconds=60)
    async with AgentRuntime(tmp_path) as runtime:
        await result_of(runtime, agent, 3)
        assert runtime.journal is not None
        [kept] = await runtime.journal.store.list(RESULTS)
        data = kept.data.replace(b'"x"', b'"z"')
        await runtime.journal.store.put(RESULTS, kept.key, data)
    async with AgentRuntime(tmp_path) as runtime:
        assert (await result_of(runtime, agent, 3)).value == Point(3)


async def test_in_a_sandbox_no_process_is_started(runtime: AgentRuntime) -> None:
    """The second has the first one's value."""
    agent = Agent(name="pid", function=pid, cache_ttl_seconds=60, policy=Policy())
    values, started = [], 0
    for _ in range(2):
        handle = await runtime.spawn(agent)
        values.append((await handle.result()).value)
        async for event in followed(handle.id, runtime):
            started += isinstance(event, SandboxStarted)

    assert (len(set(values)), started) == (1, 1)


async def test_what_has_no_key_is_worked_on_each_time(runtime: AgentRuntime) -> None:
    """Inputs that are no data, and a function that closes over an object."""
    thing = object()

    def closing(value: Any = None) -> int:
        Counted.calls += 1
        return len(repr(thing)[:1])

    for _ in range(2):
        await result_of(runtime, COUNTED, thing)
        await result_of(runtime, COUNTED.replace(function=closing), 1)
    assert Counted.calls == 4


async def test_a_cached_step_of_a_chain(runtime: AgentRuntime) -> None:
    """A composition's steps stand by themselves."""
    line = chain(double, COUNTED, to_point, norm, untyped)

    assert [(await result_of(runtime, line, 2)).value for _ in range(2)] == [16, 16]
    assert Counted.calls == 1


async def test_a_clock_that_went_back_finds_nothing(tmp_path: pathlib.Path) -> None:
    """What was left in the future is not believed."""
    async with AgentRuntime(tmp_path) as runtime:
        await result_of(runtime, COUNTED, 1)
        assert runtime.journal is not None
        ended = [decode(each.data) for each in await runtime.journal.store.read(limit=100)]
        at = next(event.at for event in ended if isinstance(event, RunEnded))
    assert at is not None
    async with AgentRuntime(tmp_path, clock=FakeClock(at - timedelta(days=1))) as runtime:
        await result_of(runtime, COUNTED, 1)
    assert Counted.calls == 2


async def test_results_whose_time_is_over_can_be_removed(tmp_path: pathlib.Path) -> None:
    """With what else is old; those that stand stay."""
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


async def test_a_kernel_killed_behind_a_result_that_stood_for_a_call_leaves_no_empty_one() -> None:
    """Its turn had said nothing of its own, so that nothing is on record of what it left: it is worked on."""
    store = MemoryStore()
    model = ScriptedModel(["one", "two"])
    agent = Agent(name="asked", model=model, instructions="Answer.", cache_ttl_seconds=60)
    async with AgentRuntime(store=store) as runtime:
        said = [(await result_of(runtime, agent, prompt="a")).value for _ in range(2)]
    assert said == ["one", "one"]
    left = await cut_behind(store, lambda event: isinstance(event, TurnEnded), 2)
    async with AgentRuntime(store=left) as runtime:
        [again] = await runtime.resume(llm=model, agents=[agent])
        assert (await again.result()).value == "two"
