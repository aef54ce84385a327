"""Runs that begin with the messages and the state of a run of another tree, which stays as it was."""

from __future__ import annotations

import asyncio
import pathlib
from typing import Any

import pytest

from ramet import Agent, AgentRuntime, Policy, Session, SpawnRequest
from ramet.core import events
from ramet.core.errors import DefinitionMissing, InvalidValue, Unknown
from ramet.core.events import RunSpawned
from ramet.host.control.run_queries import JournalReader
from ramet.host.dynamic.registry import STATE
from ramet.host.safety.gate import SafetyGate
from ramet.host.sessions.trees import remove
from ramet.models.scripted.model import Call, ScriptedModel
from ramet.store.memory import MemoryStore
from ramet.store.state.namespaced import Namespaced
from ramet.sub_agent_client import agent_state
from ramet.tools.context import current
from tests.support.store_addresses import run_program_until_killed, store_at
from tests.trips.programs import fork_kernel
from tests.trips.programs.fork_kernel import recall, remember
from tests.trips.programs.safety_gate import ALLOWS

PROGRAM = pathlib.Path(fork_kernel.__file__)


def texts(model: ScriptedModel, request: int = 0) -> list[str]:
    """Return the messages of a request of a model."""
    return [each.text for each in model.requests[request].messages]


async def recorded(runtime: AgentRuntime, tree: str) -> list[bytes]:
    """Return the recorded events of a tree."""
    store = await runtime.open_store()
    return [each.data for each in await store.read(tree=tree)]


async def test_a_delegate_forks_a_conversation_of_a_dead_process_and_survives_a_kill(tmp_path: pathlib.Path) -> None:
    """A delegate has messages and memory as of an event, under its own budget. Its source may go on, or be removed."""
    address = f"sqlite {tmp_path / 'journal.db'}"
    await run_program_until_killed(PROGRAM, address)

    model = ScriptedModel([[Call("recall")], "done"])
    async with AgentRuntime(store=store_at(address)) as runtime:
        store, main = await runtime.open_store(), await runtime.state(STATE)
        spawns = [events.decode(each.data) for each in await store.read()]
        source, lead, delegate = [each for each in spawns if isinstance(each, RunSpawned)]
        assert [each.message for each in await main.history()] == ["second", "first"], "the delegate commits elsewhere"
        async with await Session.resume(
            "source", ScriptedModel(["still here"]), [remember], runtime=runtime
        ) as session:
            assert (await session.ask("three")).value == "still here", "the source is not locked"
        await remove(JournalReader(store, ()), tmp_path, "source")

        [handle] = await runtime.resume(only=lead.run, llm=model, tools=[remember, recall])
        result = await handle.result()

        assert result.value == [delegate.run, "done"], result.error
        assert runtime.get(delegate.run).run.limits.tokens == 50_000
        assert texts(model)[:5] == ["one", "", "it was None", "first", "what else?"]
        assert texts(model, 1)[-1] == "forked", "the commit of the killed process is on the delegate's branch"
        [branch] = [each for each in await main.branches() if each.endswith(f"/{delegate.run}")]
        history = await (await runtime.state(STATE, branch)).history()
        assert [(each.message, each.author) for each in history] == [("forked", delegate.run), ("first", source.run)]


async def test_a_fork_at_another_kernel_works_on_a_branch_that_the_source_can_merge() -> None:
    """The source is at work in another kernel. A root begins as of an event, and no other run sees its commits."""
    store = MemoryStore()
    async with AgentRuntime(store=store) as busy, AgentRuntime(store=store) as runtime:
        script: list[Any] = [[Call("remember", {"note": "first"})], "a", [Call("remember", {"note": "second"})], "b"]
        session = Session(ScriptedModel(script), [remember], runtime=busy)
        await session.ask("one")
        at = max(each.seq for each in session._open_tree.recorder.recent_events)
        await session.ask("two")

        source_events = await recorded(busy, session.id)

        model = ScriptedModel([[Call("recall")], [Call("remember", {"note": "other"})], "done"])
        other = Agent(name="other", model=model)
        fork = await runtime.spawn(other, "go on", tools=[remember, recall], fork_of=session.id, fork_at=at)
        state = await runtime.state(STATE)
        assert f"main/{fork.id}" in await state.branches(), "it exists before the first commit"
        first = await runtime.state_at(fork.id, 1)
        assert Namespaced(first, "main").get("note") == "first"
        assert (await fork.result()).value == "done"
        assert texts(model) == ["one", "", "it was None", "a", "go on"]
        assert texts(model, 1)[-1] == "first"
        assert texts(model, 2)[-1] == "it was first"
        assert Namespaced(await runtime.state(STATE), "main").get("note") == "second"

        again = await runtime.fork(
            session.id,
            "and?",
            at=at,
            llm=ScriptedModel([[Call("remember", {"note": "x"})], "e"]),
            tools=[remember],
            branch=True,
        )
        assert (await again.result()).value == "e"
        assert Namespaced(await runtime.state(STATE), "main").get("note") == "second"

        empty = await runtime.spawn(note_or_none, fork_of=session.id, fork_at=1)
        assert (await empty.result()).value is None, "the state was empty then, and later commits are not seen"
        below = await runtime.spawn(delegates_below, fork_of=fork.id)
        assert (await below.result()).value == "other"
        assert await recorded(runtime, session.id) == source_events

        lead = Session(ScriptedModel([]), [recall], runtime=runtime, policy=Policy())
        model = ScriptedModel([[Call("recall")], "in a sandbox"])
        request = SpawnRequest(agent=Agent(name="boxed", model=model), prompt="go on", fork_of=session.id, fork_at=at)
        child = await lead.spawn(request)
        assert (await child.result()).value == "in a sandbox"
        assert child.run.grant is not None, "it is confined like every child of its parent"
        assert (texts(model)[:4], texts(model, 1)[-1]) == (["one", "", "it was None", "a"], "first")
        await lead.close()
        merged = await (await runtime.spawn(Agent(name="main", function=merges), args=(fork.id,))).result()
        assert merged.value == "other", merged.error


async def note_or_none() -> str | None:
    """Return the note."""
    note: str | None = await agent_state().get("note")
    return note


async def merges(fork: str) -> str:
    """Return the note after the merge of a fork's branch, in favour of the fork."""
    state = agent_state()
    assert fork in await state.branches()
    await state.merge(fork, resolve=lambda key, base, ours, theirs: theirs)
    return str(await state.get("note"))


async def delegates_below() -> str | None:
    """Return the note that a delegate on a branch of this fork's state reads."""
    context = current()
    assert context.tree is not None
    child = await context.tree.spawn(context, SpawnRequest(agent=note_or_none, branch=True))
    return str((await child.result()).value)


async def test_a_fork_of_another_tree_that_cannot_be_is_refused_and_spawns_nothing() -> None:
    """Errors name the field: an unknown run, an event before it, another owner, a missing gate, no journal."""
    owner = "agent-0123456789abcdef"
    async with AgentRuntime() as runtime:
        with pytest.raises(InvalidValue, match=r"fork_of: .*journal"):
            await runtime.spawn(note_or_none, fork_of="run-1")
    async with AgentRuntime(store=MemoryStore()) as runtime:
        source = await runtime.spawn(note_or_none, state_owner=owner)
        await source.result()
        gated = Session(ScriptedModel(["a"]), runtime=runtime, gate=SafetyGate(ALLOWS))
        await gated.ask("one")
        lead = Session(ScriptedModel([]), runtime=runtime)
        await lead.start()
        before = len(await (await runtime.open_store()).read())

        with pytest.raises(Unknown, match="run-nobody"):
            await runtime.spawn(note_or_none, fork_of="run-nobody")
        with pytest.raises(InvalidValue, match="fork_at"):
            await runtime.spawn(note_or_none, fork_of=source.id, fork_at=0)
        with pytest.raises(InvalidValue, match=r"fork_of.*owner"):
            await runtime.spawn(note_or_none, fork_of=source.id, state_owner="agent-of-somebody-else")
        with pytest.raises(InvalidValue, match=r"fork_of.*owner"):
            await lead.spawn(SpawnRequest(agent=note_or_none, fork_of=source.id))
        with pytest.raises(DefinitionMissing, match="safety gate"):
            await lead.spawn(SpawnRequest(agent=note_or_none, fork_of=gated.id))
        with pytest.raises(InvalidValue, match="fork_of"):
            SpawnRequest(fork_of=source.id)
        assert len(await (await runtime.open_store()).read()) == before
        assert runtime.trees.keys() == {gated.id, lead.id}


async def test_a_child_that_code_spawns_below_a_session_works_on_a_branch() -> None:
    """The branch begins at the root's state; a mistake in the request is refused like anywhere else."""
    script: list[Any] = [[Call("remember", {"note": "first"})], "a"]
    async with AgentRuntime() as runtime, Session(ScriptedModel(script), [remember], runtime=runtime) as session:
        await session.ask("one")
        child = await session.spawn(SpawnRequest(agent=note_or_none, branch=True))
        assert (await child.result()).value == "first"
        assert f"main/{child.id}" in await (await runtime.dynamic.registries.state()).branches()


may_delegate = asyncio.Event()


async def leads_late() -> str:
    """Spawn a delegate of its own namespace when allowed; return the delegate's id."""
    await may_delegate.wait()
    context = current()
    assert context.tree is not None
    child = await context.tree.spawn(context, SpawnRequest(agent=commits))
    await child.result()
    return child.id


async def commits() -> None:
    """Commit a note."""
    await remember(f"by {current().run.id}")


async def test_a_delegate_below_a_fork_creates_the_branch_that_a_kill_prevented() -> None:
    """Otherwise the delegate's first commit would begin the branch without the state of the source."""
    may_delegate.clear()
    async with AgentRuntime(store=MemoryStore()) as runtime:
        source = await runtime.spawn(commits)
        await source.result()
        fork = await runtime.spawn(leads_late, fork_of=source.id)
        branch = await runtime.state(STATE, f"commits/{fork.id}")
        await branch.delete()  # As if the process had been killed behind the record of the spawn.
        may_delegate.set()
        result = await fork.result()
        history = await (await runtime.state(STATE, f"commits/{fork.id}")).history()

    assert [each.author for each in history] == [result.value, source.id]
