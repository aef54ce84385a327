"""State on every store: a commit is durable before its answer, happens once, and is readable as of any event."""

from __future__ import annotations

import asyncio
import math
import pathlib
from typing import Any

import pytest

from ramet import Agent, AgentRuntime, SpawnRequest
from ramet.core import events
from ramet.core.errors import InvalidValue, Unknown
from ramet.core.events import AgentCreated, Event, StateCommitted
from ramet.core.outcome import Status
from ramet.host.dynamic.registry import REGISTRY, STATE
from ramet.store.contract import Document
from ramet.store.memory import MemoryStore
from ramet.store.state.namespaced import Namespaced
from ramet.sub_agent_client import agent_state
from ramet.tools.context import current
from tests.support.empty_stores import store_address
from tests.support.store_addresses import run_program_until_killed, store_at
from tests.support.waiting import eventually
from tests.trips.agents import stateful as agents
from tests.trips.programs import stateful_kernel
from tests.trips.recovery.test_resume import lost_runtime

__all__ = ["store_address"]  # fixtures are used by their names
PROGRAM = pathlib.Path(stateful_kernel.__file__)


async def recorded_events(runtime: AgentRuntime) -> list[Event]:
    """Return every recorded event."""
    store = await runtime.open_store()
    return [events.decode(each.data) for each in await store.read()]


async def test_a_commit_is_not_made_twice_after_a_kill_before_its_answer(store_address: str) -> None:
    """The resumed run gets the commit that was made before the kill, and the journal records it."""
    await run_program_until_killed(PROGRAM, store_address, "plans", 1)

    async with AgentRuntime(store=store_at(store_address)) as runtime:
        state = await runtime.state(STATE)
        (before,) = await state.history()
        (handle,) = await runtime.resume()
        result = await handle.result()

        assert result.value == before.id, result.error
        await state.checkout()
        assert [each.id for each in await state.history()] == [before.id]
        assert before.author == handle.id
        assert {each.commit for each in await recorded_events(runtime) if isinstance(each, StateCommitted)} == {
            before.id
        }


@pytest.mark.parametrize("nth", [1, 2, 3, 4])
async def test_ac_s4_10_a_delegates_branch_outlives_its_parent(store_address: str, nth: int) -> None:
    """AC-S4-10: after a kill at commit, fork, the child's commit or merge, every commit exists once."""
    await run_program_until_killed(PROGRAM, store_address, "delegates", nth)

    async with AgentRuntime(store=store_at(store_address)) as runtime:
        handle, *_ = await runtime.resume()
        result = await handle.result()
        await runtime.result(handle.id)
        state = await runtime.state(STATE)
        history = [each.message for each in await state.history()]
        births = [each for each in await recorded_events(runtime) if isinstance(each, events.RunSpawned)]

    assert result.status is Status.COMPLETED, result.error
    child, value, _, answer, _ = result.value
    assert (value, answer) == (42, 42)
    assert sorted(history) == ["a plan", "an answer", f"merge the branch of {child}"]
    assert [each.run for each in births] == [handle.id, child]


async def idles() -> None:
    """Do nothing: a delegate that never uses its state."""


async def delegate_and_find_branch() -> bool:
    """Return whether the delegate's branch exists after the delegate has ended."""
    context = current()
    assert context.tree is not None
    child = await context.tree.spawn(context, SpawnRequest(agent=idles, branch=True))
    await child.result()
    return child.id in await agent_state().branches()


class Stuck(MemoryStore):
    """A store that never finishes writing a child's branch."""

    is_stuck = True

    async def put(self, kind: str, key: str, data: bytes, **more: Any) -> Document:
        if self.is_stuck and kind == "state" and key.count("/") == 2:
            await asyncio.Event().wait()
        return await super().put(kind, key, data, **more)


async def test_a_delegates_branch_exists_after_a_kill_before_its_creation() -> None:
    """The recorded spawn is not repeated. The branch is created, also if the delegate wrote nothing to it."""
    store = Stuck()
    async with lost_runtime(store) as runtime:
        await runtime.spawn(delegate_and_find_branch)
        await eventually(lambda: any(each.type == "run_ended" for each in store._tables.all_events))

    store.is_stuck = False
    async with AgentRuntime(store=store) as runtime:
        handle, *_ = await runtime.resume()
        result = await handle.result()
    assert result.value is True, result.error


async def test_a_later_run_of_the_agent_can_merge_a_branch(store_address: str) -> None:
    """The parent is never resumed. Another run finds the branch by the child's id, and merges it."""
    await run_program_until_killed(PROGRAM, store_address, "delegates", 3)

    async with AgentRuntime(store=store_at(store_address)) as runtime:
        births = [each for each in await recorded_events(runtime) if isinstance(each, events.RunSpawned)]
        second_agent = Agent(name="delegates", function=stateful_kernel.takes_over)
        result = await (await runtime.spawn(second_agent)).result()

    assert result.value == {"branches": [births[1].run], "answer": 42}, result.error


@pytest.fixture(params=["memory", "nothing"])
def store(request: pytest.FixtureRequest) -> MemoryStore | None:
    """A store of the process, or none."""
    return MemoryStore() if request.param == "memory" else None


async def test_state_can_be_read_as_of_any_event(store: MemoryStore | None) -> None:
    """The event of a commit, and the events before and after it, each give the state at that time."""
    async with AgentRuntime(store=store) as runtime:
        first = await runtime.spawn(agents.keeps, args=(1,))
        await first.result()
        second = await runtime.spawn(agents.keeps, args=(2,))
        await second.result()
        commits = [each async for each in second.events() if isinstance(each, StateCommitted)]

        async def seen(run: str, seq: int) -> Any:
            return Namespaced(await runtime.state_at(run, seq), "keeps").get("seen")

        (at,) = [each.seq for each in commits]
        assert await seen(second.id, at - 1) == [1]
        assert await seen(second.id, at) == [1, 2]
        assert await seen(first.id, 1_000) == [1]
        assert await seen(first.id, 1) is None
        with pytest.raises(Unknown):
            await runtime.state_at("run-0", 1)
        with pytest.raises(InvalidValue):
            await runtime.state_at(first.id, 0)


async def test_the_state_of_a_branch_can_be_read_as_of_an_event(store: MemoryStore | None) -> None:
    """A delegate's state is that of its branch, from the commit where it begins. The parent has it after the merge."""
    async with AgentRuntime(store=store) as runtime:
        parent = await runtime.spawn(stateful_kernel.delegates)
        child = (await parent.result()).value[0]
        commits = [each async for each in runtime.get(child).events() if isinstance(each, StateCommitted)]
        merge_commit = [each async for each in parent.events() if isinstance(each, StateCommitted)][-1]

        async def seen(run: str, seq: int) -> list[Any]:
            state = Namespaced(await runtime.state_at(run, seq), "delegates")
            return [state.get("plan"), state.get("answer")]

        assert [each.branch for each in commits] == [f"delegates/{child}"]
        assert await seen(child, commits[0].seq) == ["made", 42]
        assert await seen(parent.id, merge_commit.seq - 1) == ["made", None]
        assert await seen(parent.id, merge_commit.seq) == ["made", 42]
        if store is not None:  # Without a journal no birth says where a branch began.
            assert await seen(child, commits[0].seq - 1) == ["made", None]


def architect() -> Agent:
    """Return an agent that may create others."""
    agent = Agent(name="architect", primer="You make specialists.")
    agent.cls(Agent)
    agent.module(math, include=["pi"])
    return agent


async def test_a_registry_follows_checkout_and_fork(store_address: str) -> None:
    """An older commit has the recipes of its time, and a branch has its own."""
    async with AgentRuntime(store=store_at(store_address)) as runtime:
        one = await runtime.dynamic.create(architect(), Agent(name="one", primer="first").recipe())
        old = await runtime.dynamic.create(architect(), Agent(name="two", primer="old").recipe())
        new = await runtime.dynamic.create(architect(), Agent(name="two", primer="new").recipe())

        state = await runtime.state(STATE)
        namespace = Namespaced(state, "architect")
        primers = []
        for commit in (one, old, new):
            await state.checkout(commit.commit)
            primers.append({name: entry["primer"] for name, entry in namespace.get(REGISTRY).items()})
        await state.checkout(old.commit)
        fork = Namespaced(await state.fork("what-if"), "architect")
        fork.remove_entry(REGISTRY, "one")
        await fork.commit()
        await state.checkout()

        assert primers == [{"one": "first"}, {"one": "first", "two": "old"}, {"one": "first", "two": "new"}]
        assert list(fork.get(REGISTRY)) == ["two"]
        assert fork.entry(REGISTRY, "two")["primer"] == "old"
        assert list(namespace.get(REGISTRY)) == ["one", "two"]


def reads_its_registry() -> list[list[str]]:
    """Return the created agents of an agent's own registry, now and at its oldest commit."""
    state = agent_state()
    names, commits = [sorted(state.get(REGISTRY))], state.history()
    state.checkout(commits[-1])
    return [*names, sorted(state.get(REGISTRY))]


async def test_agent_code_can_read_an_older_registry(store_address: str) -> None:
    """Checkout of an older commit works from the agent's own code, too."""
    async with AgentRuntime(store=store_at(store_address)) as runtime:
        await runtime.dynamic.create(architect(), Agent(name="one", primer="first").recipe())
        await runtime.dynamic.create(architect(), Agent(name="two", primer="second").recipe())
        result = await (await runtime.spawn(Agent(name="architect", function=reads_its_registry))).result()

    assert result.value == [["one", "two"], ["one"]], result.error


def test_agent_created_and_state_committed_carry_commits() -> None:
    """Both events name a commit, so the state can be read as of either."""
    assert {"commit"} <= set(AgentCreated.__struct_fields__) & set(StateCommitted.__struct_fields__)
