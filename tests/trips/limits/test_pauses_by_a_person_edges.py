"""Pauses by a person at their edges: nested, cut, of functions, over a kill, with mail, and refused."""

from __future__ import annotations

import asyncio
import pathlib
from typing import Any

import pytest
from langchain_core.messages import BaseMessage, ToolMessage

from ramet import Agent, AgentRuntime, Limits, Policy, ScriptedModel, Session, Status, workspace_tools
from ramet.concurrency.clock import FakeClock
from ramet.core.errors import InvalidValue
from ramet.core.events import ModelAsked, PauseEnded, RunPaused, ToolStarted
from ramet.models.scripted.dialogue import Call, Hang, ReplyStep
from ramet.store.memory import MemoryStore
from tests.support.providers import provider
from tests.support.waiting import alive, eventually
from tests.trips.kits.isolated import BackendName, backend
from tests.trips.kits.pausing import paused, states
from tests.trips.kits.sessions import (
    Gate,
    answers,
    brief_of,
    has_no_reservation,
    of_kind,
    run_of,
    session_events,
    typed_texts,
)
from tests.trips.recovery.test_resume import lost_runtime

__all__ = ["backend"]


def digging(messages: list[BaseMessage]) -> ReplyStep:
    """Reply as a root with one child, each of which calls a gate once."""
    if brief_of(messages) == "dig":
        return Call("gate", {}) if messages[-1].type == "human" else "dug"
    if isinstance(messages[-1], ToolMessage):
        return "done"
    return Call("Agent", {"prompt": "dig", "subagent_type": "digger", "name": "digger"})


DIGGER = Agent(name="digger", description="Digs.")


async def test_a_run_goes_on_when_neither_it_nor_a_run_above_it_is_paused() -> None:
    """Both the child and the root are paused, and the end of one pause is not enough."""
    gate = Gate()
    async with Session(ScriptedModel(digging), [gate.tool], agents=[DIGGER]) as session:
        turn = asyncio.create_task(session.ask("go"))
        await gate.entered.wait()
        child = session.handle("main/digger")
        await child.pause("mine")
        await session.handle().pause("all")
        with pytest.raises(InvalidValue, match="reason"):
            await child.pause("two\nlines")
        gate.open.set()
        await paused(session, "main/digger")
        assert states(session) == {"main": "paused", "main/digger": "paused"}
        await session.handle().resume()
        await eventually(lambda: states(session)["main"] == "waiting")
        assert states(session) == {"main": "waiting", "main/digger": "paused"}
        await child.resume()
        assert (await turn).value == "done"
        assert [each.path for each in of_kind(session_events(session), PauseEnded)] == ["main", "main/digger"]
        with pytest.raises(InvalidValue, match="has not ended"):
            await child.pause()


async def test_a_run_below_a_paused_one_is_not_resumed_alone() -> None:
    """The error names the run that is paused; to resume a run that is not paused does nothing."""
    gate = Gate()
    async with Session(ScriptedModel(digging), [gate.tool], agents=[DIGGER]) as session:
        turn = asyncio.create_task(session.ask("go"))
        await gate.entered.wait()
        child = session.handle("main/digger")
        await child.resume()
        await session.handle().pause()
        with pytest.raises(InvalidValue, match="main, which is paused with all below it"):
            await child.resume()
        await session.handle().pause()
        await session.handle().resume()
        gate.open.set()
        assert (await turn).value == "done"
        assert len(of_kind(session_events(session), RunPaused)) == 1


@pytest.mark.parametrize("way", ["cancel", "interrupt", "close"])
async def test_a_paused_tree_can_be_stopped(way: str) -> None:
    """Nothing is held afterwards; an interrupted session takes the next prompt after its pause."""
    gate = Gate()
    async with Session(ScriptedModel(digging), [gate.tool], agents=[DIGGER]) as session:
        turn = asyncio.create_task(session.ask("go"))
        await gate.entered.wait()
        await session.handle().pause()
        gate.open.set()
        await paused(session, "main/digger")
        await getattr(session, way)()
        assert (await turn).status is Status.CANCELLED
        assert has_no_reservation(session)
        if way == "interrupt":
            next_turn = asyncio.create_task(session.ask("go"))
            await paused(session)
            await session.handle().resume()
            assert (await next_turn).value == "done"


async def test_a_caller_that_does_not_wait_learns_who_is_paused() -> None:
    """The result is not final; the turn goes on after the pause, and its result comes later."""
    gate = Gate()
    async with Session(ScriptedModel(digging), [gate.tool], agents=[DIGGER]) as session:
        turn = asyncio.create_task(session.ask("go", on_pause="return"))
        await gate.entered.wait()
        await session.handle("main/digger").pause("lunch")
        gate.open.set()
        result = await turn
        assert (result.status, result.exit_code) == (Status.PAUSED, 7)
        assert result.error is not None
        assert (result.error.type, result.error.scope) == ("RunPaused", "main/digger")
        assert result.error.message == "by a person: lunch"
        await session.handle("main/digger").resume()
        final = await session.wait_for_turn()
        assert final is not None
        assert final.value == "done"


async def test_mail_to_a_paused_run_is_kept_and_read_afterwards() -> None:
    """An idle session that is paused reads what came, in order, when the pause ends."""
    model = ScriptedModel(["one", "two"])
    async with Session(model, []) as session:
        await session.ask("first")
        await session.handle().pause()
        session.send("mail")
        await paused(session)
        assert len(model.requests) == 1
        await session.handle().resume()
        await eventually(lambda: len(session.messages) == 4)
        assert typed_texts(session.messages)[0] == ("human", "first")
        assert "mail" in str(session.messages[2].text)


async def test_no_time_passes_during_a_pause_whatever_a_run_waits_for() -> None:
    """Root and child have a minute each, and are paused for an hour: once in a call, once before a turn."""
    clock, gate = FakeClock(), Gate()
    async with (
        AgentRuntime(clock=clock, grace_s=0.05) as runtime,
        Session(
            ScriptedModel(digging),
            [gate.tool],
            agents=[DIGGER.replace(limits=Limits(seconds=60))],
            runtime=runtime,
            limits=Limits(seconds=60),
        ) as session,
    ):
        await session.handle().pause()
        turn = asyncio.create_task(session.ask("go"))
        await paused(session)
        for _ in range(60):
            await clock.advance(60)
        await session.handle().resume()
        await gate.entered.wait()
        await session.handle().pause()
        gate.open.set()
        await paused(session, "main/digger")
        for _ in range(60):
            await clock.advance(60)
        await session.handle().resume()
        assert (await turn).value == "done"


async def test_a_pause_now_cuts_a_request_which_is_made_again() -> None:
    """The provider gets the request twice; the one that was cut counts."""
    async with provider([Hang(2), "done"]) as server, Session(server.openai(), []) as session:
        turn = asyncio.create_task(session.ask("go"))
        await server.arrived(1)
        await session.handle().pause(now=True)
        await paused(session)
        await server.client_left.wait()
        assert has_no_reservation(session)
        await session.handle().resume()
        assert (await turn).value == "done"
        assert server.count == 2
        assert session.usage.model_calls == 2


async def test_a_pause_now_answers_a_call_as_cut_off_and_leaves_one_that_waits_for_a_child() -> None:
    """The gate's call of the child ends at once; the root's call goes on when the child does."""
    gate = Gate()
    async with Session(ScriptedModel(digging), [gate.tool], agents=[DIGGER]) as session:
        turn = asyncio.create_task(session.ask("go"))
        await gate.entered.wait()
        await session.handle().pause(now=True)
        await paused(session, "main/digger")
        assert states(session) == {"main": "paused", "main/digger": "paused"}
        (answer,) = answers(run_of(session, "main/digger").context.history).values()
        assert "was cut off by a pause" in answer
        await session.handle().resume()
        assert (await turn).value == "done"


async def test_a_pause_now_ends_the_process_of_a_conversation_which_goes_on_from_the_record(
    tmp_path: pathlib.Path, backend: BackendName
) -> None:
    """Its command would take a minute: it is answered as cut off, and no process is left meanwhile."""
    model = ScriptedModel([Call("Bash", {"command": "sleep 60"}), "done"])
    async with AgentRuntime(tmp_path, backend=backend) as runtime:
        session = await Session(
            model, workspace_tools(), runtime=runtime, root_policy=Policy(), unattended=True
        ).start()
        turn = asyncio.create_task(session.ask("go"))
        root = run_of(session, "main")
        await eventually(lambda: of_kind(session_events(session), ToolStarted))
        assert root.sandbox.current is not None
        pid = root.sandbox.current.pid
        await session.handle().pause(now=True)
        await paused(session)
        await eventually(lambda: not alive(pid))
        assert len(of_kind(session_events(session), ModelAsked)) == 1
        await session.handle().resume()
        assert (await turn).value == "done"
        (answer,) = answers(session.messages).values()
        assert "interrupted" in answer


def count() -> str:
    """Count in a file of the workspace until a file is there, without any request."""
    import pathlib
    import time

    with pathlib.Path("count").open("a", buffering=1) as file:
        while not pathlib.Path("over").exists():
            file.write("x")
            file.flush()
            time.sleep(0.001)
    return "counted"


async def test_a_function_in_a_sandbox_stands_still_at_once(tmp_path: pathlib.Path, backend: BackendName) -> None:
    """It makes no request; nothing of it runs during the pause, and no time of it passes."""
    clock = FakeClock()
    async with AgentRuntime(tmp_path, backend=backend, clock=clock) as runtime:
        handle = await runtime.spawn(count, policy=Policy(timeout_seconds=60))
        folder = handle.run.sandbox.folder
        assert folder is not None
        counted, over = folder.workspace / "count", folder.workspace / "over"
        await eventually(lambda: counted.exists() and counted.stat().st_size > 3)
        await handle.pause("lunch")
        await eventually(lambda: handle.view().state == "paused" and handle.run.sandbox.is_frozen)
        size = counted.stat().st_size
        for _ in range(10):
            await clock.advance(60)
        process = await asyncio.create_subprocess_exec("sleep", "0.05")
        await process.wait()
        assert counted.stat().st_size == size
        await handle.resume()
        await eventually(lambda: counted.stat().st_size > size)
        over.touch()
        assert (await handle.result()).value == "counted"


@pytest.mark.parametrize("policy", [None, Policy()], ids=["host", "sandbox"])
async def test_a_pause_before_a_turn_outlives_its_kernel(tmp_path: pathlib.Path, policy: Policy | None) -> None:
    """Nothing is asked in the next process before the end of the pause."""
    where: dict[str, Any] = {"working_dir": tmp_path, "backend": "local", "store": MemoryStore()}
    agent = Agent(name="slow", model=ScriptedModel(["never"]))
    async with lost_runtime(**where) as runtime:
        handle = await runtime.spawn(agent, "go", policy=policy)
        await handle.pause("over night")
        await eventually(lambda: handle.view().state == "paused")

    model = ScriptedModel(["done"])
    async with AgentRuntime(**where) as runtime:
        [handle] = await runtime.resume(llm=model)
        await eventually(lambda: handle.view().state == "paused")
        assert not model.requests
        assert handle.run.pauses.reason == "over night"
        await handle.resume()
        assert (await handle.result()).value == "done"


async def test_a_pause_in_a_turn_outlives_its_kernel(tmp_path: pathlib.Path) -> None:
    """The next process asks only for what was missing, after the end of the pause."""
    gate = Gate()
    where: dict[str, Any] = {"working_dir": tmp_path, "store": MemoryStore()}
    async with lost_runtime(**where) as runtime:
        session = Session(ScriptedModel([Call("gate", {})]), [gate.tool], runtime=runtime, session_id="talk")
        turn = asyncio.create_task(session.ask("go"))
        await gate.entered.wait()
        await session.handle().pause("over night")
        gate.open.set()
        await paused(session)
    turn.cancel()

    model = ScriptedModel(["done"])
    async with AgentRuntime(**where) as runtime:
        [handle] = await runtime.resume(llm=model, tools=[gate.tool])
        await eventually(lambda: handle.view().state == "paused")
        assert not model.requests
        await handle.resume()
        await eventually(lambda: handle.run.state == "idle")
        assert typed_texts(handle.run.context.history)[-2:] == [("tool", "the gate is open"), ("ai", "done")]
        assert gate.calls == 1


async def test_a_prompt_to_a_paused_session_outlives_its_kernel() -> None:
    """The next process answers it after the end of the pause."""
    store = MemoryStore()
    async with lost_runtime(store) as runtime:
        session = Session(ScriptedModel(["one"]), runtime=runtime, session_id="talk")
        await session.ask("first")
        await session.handle().pause("over night")
        turn = asyncio.create_task(session.ask("important"))
        await paused(session)
    turn.cancel()

    model = ScriptedModel(["two"])
    async with AgentRuntime(store=store) as runtime:
        session = await Session.resume("talk", model, runtime=runtime)
        await paused(session)
        assert not model.requests
        await session.handle().resume()
        await eventually(lambda: len(session.messages) == 4)
        assert [text for _, text in typed_texts(session.messages)] == ["first", "one", "important", "two"]
