"""Another process resumes sessions, mail, functions and budgets, and forks recorded conversations."""

from __future__ import annotations

import asyncio
import pathlib
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import aclosing, asynccontextmanager
from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage

from ramet import Agent, AgentRuntime, Limits, Session
from ramet.cli.ask.facts import record_command
from ramet.concurrency.clock import Clock
from ramet.core.errors import BusyError, DefinitionMissing, StoreInUse, Unknown
from ramet.core.events import Event, MailPushed, RunEnded, RunResumed, TurnEnded, TurnStarted
from ramet.core.outcome import Status
from ramet.host.safety.write_approval import require_approval_for_writes
from ramet.models.scripted.model import Call, Script, ScriptedModel
from ramet.spawn.handle import Handle
from ramet.store.contract import Store
from ramet.store.memory import MemoryStore
from ramet.store.sqlite.store import SqliteStore
from ramet.tools.context import require_current_call
from ramet.tools.spawn_request import SpawnRequest
from ramet.tools.workspace import workspace_tools
from tests.support.cut_journals import cut_behind
from tests.support.empty_stores import empty_store_address
from tests.support.store_addresses import KINDS, store_at
from tests.support.waiting import eventually
from tests.trips.kits.sessions import Gate, async_tool, background_call, of_kind, run_of, session_events

MakeStore = Callable[[], Store]


@pytest.fixture(params=["memory", *KINDS])
def make_store(request: pytest.FixtureRequest, tmp_path: pathlib.Path) -> Iterator[MakeStore]:
    """A function that opens one and the same store, as often as a test needs."""
    if request.param == "memory":
        store = MemoryStore()
        yield lambda: store
        return
    with empty_store_address(request.param, tmp_path) as store_address:
        yield lambda: store_at(store_address)


@asynccontextmanager
async def lost_runtime(store: Store, clock: Clock | None = None, **settings: Any) -> AsyncIterator[AgentRuntime]:
    """A runtime whose process is killed at the end of the block: nothing it does after that is recorded."""
    runtime = AgentRuntime(store=store, clock=clock, grace_s=0.1, **settings)
    await runtime.start()
    yield runtime
    assert runtime.journal is not None
    for tree in runtime.trees.values():
        await tree.recorder.durable()  # type: ignore[misc]  # it has a journal
    await store.close()
    await runtime.stop()


async def test_a_resumed_session_keeps_its_conversation(make_store: MakeStore) -> None:
    """The third request holds every message of both processes, after a kill between two turns."""
    async with lost_runtime(make_store()) as runtime:
        session = Session(ScriptedModel(["one", "two"]), runtime=runtime, session_id="talk")
        await session.ask("first")
        await session.ask("second")

    model = ScriptedModel(["three"])
    async with AgentRuntime(store=make_store()) as runtime:
        session = await Session.resume("talk", model, runtime=runtime)
        result = await session.ask("third")

        assert result.value == "three"
        texts = [message.text for message in model.requests[0].messages]
        assert texts == ["first", "one", "second", "two", "third"]
        assert session.usage.model_calls == 3


async def test_a_resumed_run_is_shown_its_types_of_agents() -> None:
    """The tool Agent describes them as before the kill."""
    store = MemoryStore()
    worker = Agent(name="worker", description="Counts birds.", model=ScriptedModel([]))
    descriptions: list[str] = []

    async def ask(session: Session) -> None:
        await session.ask("Go on.")
        tools = run_of(session, session.id).context.tools
        descriptions.extend(tool.description for tool in tools if tool.name == "Agent")

    async with lost_runtime(store) as runtime:
        await ask(Session(ScriptedModel(["one"]), agents=[worker], runtime=runtime, session_id="talk"))
    async with AgentRuntime(store=store) as runtime:
        await ask(await Session.resume("talk", ScriptedModel(["two"]), agents=[worker], runtime=runtime))

    assert "Counts birds." in descriptions[0]
    assert descriptions[1:] == descriptions[:1]


async def test_a_killed_turn_resumes_in_its_middle(make_store: MakeStore) -> None:
    """NEG-15, AC-S2-7: an answered call is not made again, and an interrupted call gets an answer that says so."""
    texts: list[str] = []
    gate = Gate("slow")

    async def quick() -> str:
        """Is done at once."""
        texts.append(require_current_call().step_id)
        return "quick is done"

    script: Script = [[Call("quick"), Call("slow")], "not reached"]
    async with lost_runtime(make_store()) as runtime:
        handle = await runtime.spawn(
            Agent(name="lead", model=ScriptedModel(script)),
            "go",
            tools=[async_tool(quick, concurrency_safe=True), gate.tool],
        )
        await gate.entered.wait()
        await eventually(lambda: texts)

    model = ScriptedModel(["it goes on"])
    async with AgentRuntime(store=make_store()) as runtime:
        [resumed_handle] = await runtime.resume(
            llm=model, tools=[async_tool(quick, concurrency_safe=True), Gate("slow").tool]
        )
        result = await resumed_handle.result()

        assert resumed_handle.id == handle.id
        assert (result.status, result.value) == (Status.COMPLETED, "it goes on")
        assert len(texts) == 1
        answers = [each for each in model.requests[0].messages if isinstance(each, ToolMessage)]
        assert answers[0].text == "quick is done"
        assert "cut off" in answers[1].text
        [resumption] = [event async for event in events_of(resumed_handle) if isinstance(event, RunResumed)]
        assert len(resumption.cut) == 1


async def test_an_interrupt_after_resume_ends_the_killed_turn(make_store: MakeStore) -> None:
    """The next prompt starts a new turn, whose request has an answer for the interrupted call."""
    gate = Gate()
    async with lost_runtime(make_store()) as runtime:
        session = Session(ScriptedModel([[Call("gate")], "no"]), [gate.tool], runtime=runtime, session_id="talk")
        turn = asyncio.create_task(session.ask("first"))
        await gate.entered.wait()
    turn.cancel()

    model = ScriptedModel(["two"])
    async with AgentRuntime(store=make_store()) as runtime:
        session = await Session.resume("talk", model, [gate.tool], runtime=runtime)
        await session.interrupt()
        await session.ask("second")

        assert [each.type for each in model.requests[0].messages] == ["human", "ai", "tool", "human"]
        assert [each.turn for each in of_kind(session_events(session), TurnStarted)] == [2]


async def events_of(handle: Handle) -> AsyncIterator[Event]:
    """Yield the events of a run up to its end."""
    async with aclosing(handle.events()) as events:
        async for event in events:
            yield event
            if isinstance(event, RunEnded):
                return


async def test_a_repeated_call_has_the_arguments_that_a_hook_rewrote(make_store: MakeStore) -> None:
    """Resume does not use the arguments of the model, which no hook would inspect a second time."""
    paths, has_entered = list[str](), asyncio.Event()

    async def remove(path: str) -> str:
        """May be called again."""
        paths.append(path)
        if len(paths) == 1:
            has_entered.set()
            await asyncio.Event().wait()
        return f"removed {path}"

    def rewrites(_: object) -> dict[str, Any]:
        allow_decision = {"permissionDecision": "allow", "updatedInput": {"path": "/tmp/old"}}
        return {"hookSpecificOutput": {"hookEventName": "PreToolUse", **allow_decision}}

    def lead(model: ScriptedModel) -> Agent:
        return Agent(name="lead", model=model, hooks={"PreToolUse": [rewrites]})

    tools = [async_tool(remove, repeatable=True)]
    async with lost_runtime(make_store()) as runtime:
        await runtime.spawn(lead(ScriptedModel([[Call("remove", {"path": "/"})], "no"])), "go", tools=tools)
        await has_entered.wait()

    model = ScriptedModel(["it goes on"])
    async with AgentRuntime(store=make_store()) as runtime:
        [handle] = await runtime.resume(llm=model, tools=tools, agents=[lead(model)])
        assert (await handle.result()).value == "it goes on"
    assert paths == ["/tmp/old", "/tmp/old"]


async def test_resume_delivers_unread_mail(make_store: MakeStore) -> None:
    """AC-S1-8, AC-S2-3, NEG-14: the next process puts an accepted message of the user into its first request."""
    gate = Gate()
    async with lost_runtime(make_store()) as runtime:
        handle = await runtime.spawn(
            Agent(name="lead", model=ScriptedModel([[Call("gate")], "no"])), "go", tools=[gate.tool]
        )
        await gate.entered.wait()
        handle.send("look at the second log, too")

    model = ScriptedModel(["I did"])
    async with AgentRuntime(store=make_store()) as runtime:
        [resumed_handle] = await runtime.resume(llm=model, tools=[Gate().tool])
        await resumed_handle.result()

        assert any("second log" in message.text for message in model.requests[0].messages)


async def test_mail_before_the_first_turn_wakes_the_session_after_a_kill() -> None:
    """The message was accepted, and the turn that it began is not recorded."""
    clerk, store = Agent(name="clerk", initial_prompt="Be brief."), MemoryStore()
    async with AgentRuntime(store=store) as runtime:
        earlier = await Session(ScriptedModel(["read"]), agent=clerk, runtime=runtime, session_id="talk").start()
        earlier.send("a word")
        await eventually(lambda: bool(earlier.messages) and earlier.messages[-1].type == "ai")
    cut_store = await cut_behind(store, lambda event: isinstance(event, MailPushed))

    model = ScriptedModel(["I have read it."])
    async with AgentRuntime(store=cut_store) as runtime:
        session = await Session.resume("talk", model, runtime=runtime)
        await eventually(lambda: bool(session.messages) and session.messages[-1].type == "ai")
        assert [each.text for each in session.messages] == ["Be brief.", "a word", "I have read it."]


async def test_an_initial_prompt_appears_once_after_a_kill(make_store: MakeStore) -> None:
    """The kill came before the first prompt of the session."""
    clerk = Agent(name="clerk", initial_prompt="Be brief.")
    async with lost_runtime(make_store()) as runtime:
        await Session(ScriptedModel(["never"]), agent=clerk, runtime=runtime, session_id="talk").start()

    model = ScriptedModel(["yes"])
    async with AgentRuntime(store=make_store()) as runtime:
        session = await Session.resume("talk", model, runtime=runtime)
        await session.ask("a word")
        texts = [each.text for each in session.messages if each.type == "human"]
    assert "\n\n".join(texts) == "Be brief.\n\na word"


async def test_a_notice_arrives_once_despite_a_kill(make_store: MakeStore) -> None:
    """AC-S1-7, AC-S2-6, NEG-14: one child ended before the kill and one ends later, and each is reported once."""
    gate = Gate()
    plan: dict[str, Any] = {
        "": [[background_call("quick", "one"), background_call("slow", "two")], [Call("gate")], "no"],
        "quick": ["q"],
    }
    async with lost_runtime(make_store()) as runtime:
        session = Session(ScriptedModel(plan | {"slow": [[Call("gate")], "no"]}), [gate.tool], runtime=runtime)
        turn = asyncio.create_task(session.ask("go"))
        await eventually(lambda: gate.calls == 2)
        await eventually(lambda: any(view.state == "completed" for view in session.runs()))
        root = session.id
    await asyncio.wait({turn})

    model = ScriptedModel({"": ["one is told", "two is told", "done"], "slow": ["s"]})
    async with AgentRuntime(store=make_store()) as runtime:
        session = await Session.resume(root, model, [Gate().tool], runtime=runtime)
        await eventually(lambda: all(view.state != "running" for view in session.runs()))
        await eventually(
            lambda: (
                sum("task-notification" in each.text for each in session.messages if isinstance(each, HumanMessage))
                == 2
            )
        )


async def test_a_kill_does_not_reset_the_count_of_wakes() -> None:
    """The count of turns that notices began stays after a kill, and a prompt of the user resets it."""
    store, gates = MemoryStore(), (Gate("one"), Gate("two"))
    tools = [each.tool for each in gates]
    plan: dict[str, Any] = {"": [[background_call("first", "a"), background_call("second", "b")], *["noted"] * 9]}
    plan |= {"first": [[Call("one")], "done"], "second": [[Call("two")], [Call("two")], [Call("two")], "no"]}
    model, wakes = ScriptedModel(plan), list[int]()
    async with lost_runtime(store) as runtime:
        session = Session(model, tools, runtime=runtime, session_id="talk")
        await session.ask("go")
        gates[0].open.set()
        await eventually(lambda: len(of_kind(session_events(session), TurnEnded, "main")) == 2)
    for _ in range(2):
        async with lost_runtime(store) as runtime:
            session = await Session.resume("talk", model, tools, runtime=runtime)
            wakes.append(run_of(session, "main").wake_count)
            await session.ask("and now?")

    assert wakes == [1, 0]


async def test_a_resumed_budget_keeps_what_was_spent(make_store: MakeStore) -> None:
    """AC-S1-10: one of three model calls was spent, so two are left, and the second is the last answer."""
    gate = Gate()
    script: Script = [[Call("gate")], "no"]
    async with lost_runtime(make_store()) as runtime:
        await runtime.spawn(
            Agent(name="lead", model=ScriptedModel(script)), "go", tools=[gate.tool], limits=Limits(model_calls=3)
        )
        await gate.entered.wait()

    model = ScriptedModel([[Call("gate")], "the last word", "too much"])
    async with AgentRuntime(store=make_store()) as runtime:
        open_gate = Gate()
        open_gate.open.set()
        [handle] = await runtime.resume(llm=model, tools=[open_gate.tool])
        result = await handle.result()

        assert result.usage.model_calls == 3
        assert len(model.requests) == 2
        assert result.status in (Status.COMPLETED, Status.BUDGET_EXHAUSTED)


async def parent(times: int) -> list[Any]:
    """Spawn children one after the other, and return their results."""
    context = require_current_call().context
    assert context.tree is not None
    values = []
    for number in range(times):
        handle = await context.tree.spawn(context, SpawnRequest(agent=child, args=(number,), prompt=f"child {number}"))
        values.append((await handle.result()).value)
    return values


COUNTED: list[int] = []
WAITS: list[asyncio.Event] = []


async def child(number: int) -> int:
    """Count the call; the second child waits while a test holds it."""
    COUNTED.append(number)
    if number == 1 and WAITS:
        await WAITS[0].wait()
    return number * number


async def test_a_function_is_called_again_and_its_finished_children_are_not(make_store: MakeStore) -> None:
    """The first child's result comes from the journal. The second child was active, so it starts again."""
    COUNTED.clear()
    WAITS[:] = [asyncio.Event()]
    async with lost_runtime(make_store()) as runtime:
        await runtime.spawn(parent, args=(3,))
        await eventually(lambda: COUNTED == [0, 1])

    WAITS.clear()
    async with AgentRuntime(store=make_store()) as runtime:
        [handle] = await runtime.resume()
        result = await handle.result()

        assert result.value == [0, 1, 4]
        assert COUNTED == [0, 1, 1, 2]
        assert handle.run.admitted_spawns == 3, "each child counts once against what it may start in its life"


async def test_resume_names_a_missing_definition_and_starts_nothing(make_store: MakeStore) -> None:
    """Resume names the missing model object or tool, and succeeds once both are supplied."""
    gate = Gate("special")
    async with lost_runtime(make_store()) as runtime:
        await runtime.spawn(Agent(name="lead", model=ScriptedModel([[Call("special")], "no"])), "go", tools=[gate.tool])
        await gate.entered.wait()

    async with AgentRuntime(store=make_store()) as runtime:
        with pytest.raises(DefinitionMissing, match="model 'scripted'"):
            await runtime.resume(tools=[gate.tool])
        with pytest.raises(DefinitionMissing, match="tool 'special'"):
            await runtime.resume(llm=ScriptedModel(["x"]))
        assert runtime.trees == {}
        with pytest.raises(Unknown, match="session"):
            await Session.resume("nobody", ScriptedModel([]), runtime=runtime)
        [handle] = await runtime.resume(llm=ScriptedModel(["there it is"]), tools=[Gate("special").tool])
        assert (await handle.result()).value == "there it is"
        assert await runtime.resume() == []


async def test_a_fork_begins_at_any_event(make_store: MakeStore) -> None:
    """A new tree knows the conversation up to that event, and the old tree does not change."""
    async with AgentRuntime(store=make_store()) as runtime:
        session = Session(ScriptedModel(["one", "two"]), runtime=runtime)
        await session.ask("first")
        last_seq = max(event.seq for event in session._open_tree.recorder.recent_events)
        await session.ask("second")
        model = ScriptedModel(["another way"])

        early = await runtime.fork(session.id, "what else?", at=last_seq, llm=model)
        late = await runtime.fork(session.id, "and now?", llm=ScriptedModel(["later"]))

        assert (await early.result()).value == "another way"
        assert [message.text for message in model.requests[0].messages] == ["first", "one", "what else?"]
        assert (await late.result()).value == "later"
        assert [each.text for each in session.messages if isinstance(each, AIMessage)] == ["one", "two"]
        with pytest.raises(Unknown):
            await runtime.fork("run-nobody", "x")


async def test_a_fork_includes_messages_that_are_not_durable_yet(make_store: MakeStore) -> None:
    """The fork also has messages of a run that was spawned a moment ago."""
    async with AgentRuntime(store=make_store()) as runtime:
        handle = await runtime.spawn(Agent(name="lead", model=ScriptedModel(["one"])), "first")
        model = ScriptedModel(["another way"])
        fork = await runtime.fork(handle.id, "what else?", llm=model)
        assert (await fork.result()).value == "another way"
        assert model.requests[0].messages[-1].text == "what else?"


async def test_two_runtimes_of_one_folder_are_one_kernel(tmp_path: pathlib.Path) -> None:
    """A runtime does not resume trees of the other.

    The journal closes with the last runtime, and until then a second store is refused.
    """
    gate = Gate()
    async with AgentRuntime(tmp_path) as first:
        async with AgentRuntime(tmp_path) as second:
            assert first.durable
            agent = Agent(name="a", model=ScriptedModel([[Call("gate")], "one"]))
            handle = await first.spawn(agent, "go", tools=[gate.tool])
            await gate.entered.wait()
            assert await second.resume(llm=ScriptedModel([])) == []
            other = await second.spawn(Agent(name="b", model=ScriptedModel(["two"])), "go")
            assert (await other.result()).value == "two"
            with pytest.raises(StoreInUse, match="pid"):
                await SqliteStore(tmp_path / ".ramet" / "journal.db").open()
        gate.open.set()
        assert (await handle.result()).value == "one"
    store = await SqliteStore(tmp_path / ".ramet" / "journal.db").open()
    assert len({each.tree for each in await store.read()}) == 2
    await store.close()


async def test_resume_requires_the_hooks_of_a_tree(make_store: MakeStore) -> None:
    """Resume refuses a tree that had a hook if the hook is missing."""
    gate = Gate()

    def no(_: object) -> dict[str, str]:
        return {"decision": "block", "reason": "not that one"}

    hooks = {"PreToolUse": [{"matcher": "danger", "hooks": [no]}]}

    async def danger() -> str:
        """Must not happen."""
        raise AssertionError("it happened")

    async with lost_runtime(make_store()) as runtime:
        session = Session(ScriptedModel([[Call("gate")], "no"]), [gate.tool], runtime=runtime, hooks=hooks)
        turn = asyncio.create_task(session.ask("go"))
        await gate.entered.wait()
        turn.cancel()
        root = session.id

    tools = [Gate().tool, async_tool(danger)]
    async with AgentRuntime(store=make_store()) as runtime:
        with pytest.raises(DefinitionMissing, match="hooks"):
            await Session.resume(root, ScriptedModel([]), tools, runtime=runtime)
        session = await Session.resume(root, ScriptedModel(["on"]), tools, runtime=runtime, hooks=[hooks])
        assert session.context.hooks is not None
        assert session.context.hooks.listens("PreToolUse")


async def test_a_conversation_of_ramet_ask_keeps_its_gate_in_code(tmp_path: pathlib.Path) -> None:
    """The command's gate need not be supplied: a tool that writes is asked about, at the resumed session's approver."""
    calls = [Call("Write", {"file_path": f"{name}.md", "content": "x"}) for name in ("kept", "refused")]
    async with AgentRuntime(tmp_path) as runtime:
        session = Session(
            ScriptedModel([calls[0], "Done."]),
            workspace_tools(),
            cwd=tmp_path,
            runtime=runtime,
            hooks=require_approval_for_writes(),
            approver=lambda _: True,
        )
        await session.start()
        await record_command(session, is_approved=True, backend=None)
        await session.ask("Write it down.")
        await session.close()
        session = await Session.resume(
            session.id,
            ScriptedModel([calls[1], "It was refused."]),
            workspace_tools(),
            cwd=tmp_path,
            runtime=runtime,
            approver=lambda _: False,
        )
        assert (await session.ask("Once more.")).value == "It was refused."
        await session.close()
    assert [(tmp_path / f"{name}.md").exists() for name in ("kept", "refused")] == [True, False]


async def test_every_process_can_read_a_recorded_result(make_store: MakeStore) -> None:
    """The results of a root and of its child are readable.

    An interrupted run raises BusyError, and an unknown run Unknown.
    """
    gate = Gate()
    async with lost_runtime(make_store()) as runtime:
        handle = await runtime.spawn(parent, args=(2,))
        assert (await handle.result()).value == [0, 1]
        [child_run] = [run for run in handle.run.context.tree.views() if run.path.endswith("/1")]  # type: ignore[union-attr]
        busy = await runtime.spawn(
            Agent(name="lead", model=ScriptedModel([[Call("gate")], "no"])), "go", tools=[gate.tool]
        )
        await gate.entered.wait()

    async with AgentRuntime(store=make_store()) as runtime:
        assert (await runtime.result(handle.id)).value == [0, 1]
        assert (await runtime.result(child_run.id)).value == 0
        with pytest.raises(BusyError, match="resume"):
            await runtime.result(busy.id)
        with pytest.raises(Unknown):
            await runtime.result("run-nobody")
