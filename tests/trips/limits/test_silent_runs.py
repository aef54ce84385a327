"""A watched run that shows no sign of life is reported once for each silence, and as configured told of or ended."""

from __future__ import annotations

import asyncio
import pathlib
from datetime import timedelta
from typing import Any

import pytest
from langchain_core.messages import AIMessageChunk, BaseMessage

from ramet import Agent, AgentRuntime, Limits, Policy, ScriptedModel, Session, SpawnLimits, Watch, workspace_tools
from ramet.concurrency.clock import FakeClock
from ramet.core.errors import InvalidValue
from ramet.core.events import MailPushed, RunEnded, RunSilent
from ramet.core.ids import StepId
from ramet.core.outcome import Status
from ramet.models.scripted.dialogue import Call, Hang, ReplyStep
from ramet.models.scripted.model import Script
from ramet.spawn.run import Run
from ramet.store.memory import MemoryStore
from ramet.tools.context import current
from ramet.tools.spawn_request import SpawnRequest
from tests.support.waiting import eventually
from tests.trips.kits.isolated import BackendName, backend
from tests.trips.kits.sessions import (
    Gate,
    async_tool,
    background_call,
    of_kind,
    run_of,
    session_events,
    specialist_call,
)
from tests.trips.kits.watching import silences, view_at
from tests.trips.limits.test_standing_time import Decision
from tests.trips.recovery.test_resume import lost_runtime

__all__ = ["backend"]

MINUTE = Watch(silent_s=60)


async def test_a_silent_run_is_reported_once_for_each_silence() -> None:
    """The event says for how long, and what the run waits for; an event of the run ends the silence."""
    clock, first, second = FakeClock(), Gate("first"), Gate("second")
    model = ScriptedModel([Call("first"), Call("second"), "done"])
    async with AgentRuntime(clock=clock) as runtime:
        session = Session(model, [first.tool, second.tool], runtime=runtime, watch=MINUTE)
        turn = asyncio.create_task(session.ask("Go."))
        await first.entered.wait()
        await clock.advance(59)
        assert silences(session) == []
        await clock.advance(1)
        [silence] = silences(session)
        assert (silence.path, silence.silent_s, silence.waits_for, silence.action) == ("main", 60, "tool", "report")
        await clock.advance(3600)
        assert len(silences(session)) == 1, "once for each silence"

        first.open.set()
        await second.entered.wait()
        await clock.advance(60)
        assert len(silences(session)) == 2
        second.open.set()
        assert (await turn).value == "done"
        await clock.advance(3600)
        assert len(silences(session)) == 2, "an idle session is not silent"


async def test_a_part_of_a_reply_is_a_sign_of_life() -> None:
    """Also in the listing, although no event records a part."""
    clock = FakeClock()
    model = ScriptedModel([Hang(12)])
    async with AgentRuntime(clock=clock, grace_s=0.1) as runtime:
        session = Session(model, runtime=runtime, watch=MINUTE)
        began = clock.now()
        turn = asyncio.create_task(session.ask("Go."))
        run = await _asking(session)
        await clock.advance(40)
        run.activity.feed(AIMessageChunk(content="part"), StepId("step"))
        assert view_at(session).last_event_at == began + timedelta(seconds=40)
        await clock.advance(59)
        assert silences(session) == []
        await clock.advance(1)
        assert [(each.silent_s, each.waits_for) for each in silences(session)] == [(60, "model")]
        assert view_at(session).last_event_at == clock.now(), "the event of the silence is an event, too"
        await session.cancel()
        await turn


async def _asking(session: Session[Any]) -> Run:
    await eventually(lambda: bool(session.runs()) and view_at(session).waits_for == "model")
    run = run_of(session, "main")
    await eventually(lambda: run.activity.streamed_text)
    return run


async def test_a_run_is_not_silent_while_it_waits_for_a_known_cause() -> None:
    """A child that is watched itself, and a quota, explain a silence."""
    clock, decision, gate = FakeClock(), Decision(), Gate()
    plan: Script = {
        "": [[Call("Agent", {"prompt": "sit", "subagent_type": "patient", "name": "sitter"})], "done"],
        "sit": [[Call("gate")], [Call("decide")], "sat"],
    }
    patient = Agent(name="patient", description="Is patient.", watch=Watch(silent_s=10_000))
    async with AgentRuntime(clock=clock) as runtime:
        session = Session(
            ScriptedModel(plan),
            [gate.tool, decision.tool],
            agents=[patient],
            runtime=runtime,
            watch=Watch(silent_s=10),
        )
        turn = asyncio.create_task(session.ask("Go."))
        await gate.entered.wait()
        assert view_at(session).waits_for == "child"
        await clock.advance(9_000)
        assert silences(session) == []
        gate.open.set()
        await eventually(lambda: view_at(session, "main/sitter").waits_for == "quota")
        await clock.advance(20_000)
        assert silences(session) == []
        decision.made.set()
        assert (await turn).value == "done"


async def test_a_run_that_waits_for_a_person_a_slot_or_a_limit_is_not_silent() -> None:
    """What follows the wait is watched again."""
    clock, gate = FakeClock(), Gate()

    async def ask() -> str:
        """Ask a person."""
        context = current()
        assert context.approve is not None
        return str((await context.approve(context, tool="ask", question="May I?", args={})).is_allowed)

    plan: Script = {
        "": [[Call("ask"), background_call("a", "one"), background_call("b", "two")], "asked", *["told"] * 5],
        "a": [[Call("gate")], "a is done"],
        "b": ["b is done"],
    }
    async with AgentRuntime(clock=clock) as runtime:
        session = Session(
            ScriptedModel(plan),
            [gate.tool, async_tool(ask)],
            runtime=runtime,
            watch=MINUTE,
            spawn_limits=SpawnLimits(running=1),
            limits=Limits(model_calls=3, at_limit="pause"),
        )
        turn = asyncio.create_task(session.ask("Go."))
        await eventually(lambda: session.approvals.pending)
        assert view_at(session).waits_for == "person"
        await clock.advance(500)
        assert silences(session) == []
        session.approvals.answer(session.approvals.pending[0].id, True)
        await gate.entered.wait()
        assert view_at(session, "main/two").waits_for == "slot"
        await clock.advance(30)
        gate.open.set()
        await eventually(lambda: "limit" in {each.waits_for for each in session.runs()})
        await clock.advance(86_400)
        assert silences(session) == []
        await session.raise_limits(Limits(model_calls=20))
        assert (await turn).value in ("asked", "told")


async def test_a_spawn_that_waits_for_room_explains_a_silence() -> None:
    """The row says that the run waits for room."""
    clock, gate = FakeClock(), Gate()
    async with AgentRuntime(clock=clock) as runtime:
        model = ScriptedModel(
            {
                "": [[background_call("sit", "one"), background_call("sit", "two")], *["done"] * 4],
                "sit": [[Call("gate")], "sat"],
            }
        )
        session = Session(model, [gate.tool], runtime=runtime, watch=MINUTE, spawn_limits=SpawnLimits(children=1))
        run_of(session, "main")
        turn = asyncio.create_task(session.ask("Go."))
        await gate.entered.wait()
        await eventually(lambda: view_at(session).waits_for == "room")
        await clock.advance(50)
        assert silences(session, "main") == []
        await clock.advance(3600)
        assert silences(session, "main") == []
        assert len(silences(session, "main/one")) == 1
        gate.open.set()
        await turn


async def test_the_end_of_a_silent_run_has_a_typed_reason() -> None:
    """Its parent goes on with what it was told; only the silent run ends."""
    clock, gate = FakeClock(), Gate()
    plan: Script = {"": [[specialist_call("sit", "sitter")], "done"], "sit": [[Call("gate")], "never"]}
    async with AgentRuntime(clock=clock, grace_s=0.1) as runtime:
        session = Session(ScriptedModel(plan), [gate.tool], runtime=runtime, watch=Watch(silent_s=60, on_silent="end"))
        turn = asyncio.create_task(session.ask("Go."))
        await gate.entered.wait()
        await clock.advance(60)
        assert (await turn).value == "done"

        [end] = of_kind(session_events(session), RunEnded, "main/sitter")
        assert end.result.status is Status.CANCELLED
        assert end.result.error is not None
        assert end.result.error.type == "RunSilent"
        assert end.result.error.message == "it showed no sign of life for 60 s while it waited for its tool"
        assert [(each.path, each.action) for each in silences(session)] == [("main/sitter", "end")]


async def test_a_silent_root_of_a_session_loses_its_turn_only() -> None:
    """The session takes the next prompt."""
    clock, gate = FakeClock(), Gate()
    model = ScriptedModel([Call("gate"), "again"])
    async with AgentRuntime(clock=clock, grace_s=0.1) as runtime:
        session = Session(model, [gate.tool], runtime=runtime, watch=Watch(silent_s=60, on_silent="end"))
        turn = asyncio.create_task(session.ask("Go."))
        await gate.entered.wait()
        await clock.advance(60)
        result = await turn
        assert result.status is Status.CANCELLED
        assert result.error is not None
        assert result.error.type == "RunSilent"
        assert (await session.ask("Again.")).value == "again"


async def test_the_parent_of_a_silent_run_gets_a_notice() -> None:
    """An idle parent wakes, as for the end of a background child."""
    clock, gate = FakeClock(), Gate()
    plan: Script = {
        "": [[background_call("sit", "sitter")], "waiting", "noticed", "over"],
        "sit": [[Call("gate")], "sat"],
    }
    watch = Watch(silent_s=60, on_silent="notify_parent")
    async with AgentRuntime(clock=clock) as runtime:
        session = Session(ScriptedModel(plan), [gate.tool], runtime=runtime, watch=watch)
        await session.ask("Go.")
        await gate.entered.wait()
        await clock.advance(60)
        await eventually(lambda: view_at(session).state == "idle" and len(session.messages) == 6)
        [mail] = of_kind(session_events(session), MailPushed, "main")
        assert (mail.sender, mail.kind) == ("main/sitter", "notice")
        assert 'status="running"' in mail.text
        assert "Agent sitter has not ended, but it showed no sign of life for 60 s" in mail.text
        gate.open.set()
        await eventually(lambda: view_at(session, "main/sitter").state == "completed")


async def test_children_inherit_the_watch_and_may_have_their_own() -> None:
    """The nearest setting counts: of the request, of the definition, of the parent, of the runtime."""
    slow = Agent(name="slow", description="Is slow.", watch=Watch(silent_s=500))
    model = ScriptedModel({"": ["done"]})
    async with AgentRuntime(watch=MINUTE) as runtime:
        session = Session(model, agents=[slow], runtime=runtime)
        plain = await session.spawn(SpawnRequest(prompt="Go.", mode="fresh"))
        own = await session.spawn(SpawnRequest(prompt="Go.", subagent_type="slow"))
        asked = await session.spawn(SpawnRequest(prompt="Go.", subagent_type="slow", watch=Watch(silent_s=7)))
        assert [each.run.watch.silent_s for each in (plain, own, asked)] == [60, 500, 7]
        assert run_of(session, "main").watch == MINUTE


async def test_runs_without_a_watch_have_no_timer() -> None:
    """A thousand watched runs have one task for all their timers, also in several trees of a runtime."""
    clock, gate = FakeClock(), Gate()

    async def sit() -> str:
        gate.calls += 1
        await gate.open.wait()
        return "sat"

    async with AgentRuntime(clock=clock) as runtime:
        await runtime.spawn(sit)
        await eventually(lambda: gate.calls == 1)
        assert clock.sleeping == 0
        handles = [await runtime.spawn(sit, watch=MINUTE) for _ in range(1_000)]
        await eventually(lambda: gate.calls == 1_001)
        assert clock.sleeping == 1
        await clock.advance(60)
        found = [
            event
            for opened in runtime.trees.values()
            for event in opened.recorder.recent_events
            if isinstance(event, RunSilent)
        ]
        assert len(found) == 1_000
        gate.open.set()
        await asyncio.gather(*(each.result() for each in handles))
        assert clock.sleeping == 0


async def test_a_silence_is_counted_from_the_restart() -> None:
    """What the killed process had waited does not count."""
    clock, store, gate = FakeClock(), MemoryStore(), Gate()
    script: Script = [Call("gate"), "done"]
    tools = [gate.tool]
    async with lost_runtime(store, clock) as runtime:
        await runtime.spawn(Agent(name="lead", model=ScriptedModel(script)), "go", tools=tools, watch=MINUTE)
        await gate.entered.wait()
        await clock.advance(50)
    clock, gate = FakeClock(), Gate()
    async with AgentRuntime(store=store, clock=clock) as runtime:
        lead = Agent(name="lead", model=ScriptedModel([Call("gate"), "done"]))
        [handle] = await runtime.resume(agents=[lead], tools=[gate.tool])
        assert handle.run.watch == MINUTE
        await gate.entered.wait()
        await clock.advance(59)
        recorder = runtime.trees[handle.id].recorder
        assert of_kind(list(recorder.recent_events), RunSilent) == []
        await clock.advance(1)
        assert len(of_kind(list(recorder.recent_events), RunSilent)) == 1
        gate.open.set()
        await handle.result()


async def test_a_silent_function_in_a_sandbox_is_ended(tmp_path: pathlib.Path, backend: BackendName) -> None:
    """Its process has ended as well."""
    clock = FakeClock()
    async with AgentRuntime(tmp_path, backend=backend, clock=clock) as runtime:
        handle = await runtime.spawn(_never_returns, policy=Policy(), watch=Watch(silent_s=60, on_silent="end"))
        sandbox = handle.run.sandbox
        await eventually(lambda: sandbox.folder is not None and (sandbox.folder.workspace / "on").exists())
        await clock.advance(60)
        result = await handle.result()
        assert result.error is not None
        assert (result.status, result.error.type) == (Status.CANCELLED, "RunSilent")
        assert sandbox.current is None


def _never_returns() -> None:
    import pathlib
    import time

    pathlib.Path("on").touch()
    while True:
        time.sleep(60)


async def test_a_silent_tool_of_a_conversation_in_a_sandbox_is_reported(
    tmp_path: pathlib.Path, backend: BackendName
) -> None:
    """The host sees the calls that the guest reports."""
    clock = FakeClock()

    def reply(messages: list[BaseMessage]) -> ReplyStep:
        return (
            Call("Bash", {"command": "touch on; while [ ! -e off ]; do sleep 0.01; done"})
            if len(messages) < 3
            else "done"
        )

    async with AgentRuntime(tmp_path, backend=backend, clock=clock) as runtime:
        session = Session(
            ScriptedModel(reply),
            workspace_tools(),
            runtime=runtime,
            root_policy=Policy(),
            unattended=True,
            watch=MINUTE,
        )
        turn = asyncio.create_task(session.ask("Go."))
        await eventually(lambda: bool(session.runs()))
        run = run_of(session, "main")
        await eventually(lambda: run.sandbox.folder is not None and (run.sandbox.folder.workspace / "on").exists())
        await eventually(lambda: view_at(session).waits_for == "tool")
        await clock.advance(60)
        await eventually(lambda: silences(session))
        assert run.sandbox.folder is not None
        (run.sandbox.folder.workspace / "off").touch()
        assert (await turn).value == "done"
        assert [each.waits_for for each in silences(session)] == ["tool"]


@pytest.mark.parametrize("value", [None, 60, {"silent_s": 60}])
async def test_a_watch_of_a_wrong_type_is_refused(value: Any) -> None:
    """By each way in which it can be set."""
    model = ScriptedModel(["done"])
    for make in (
        lambda: Session(model, watch=value),
        lambda: Agent(name="a", watch=value),
        lambda: SpawnRequest(prompt="Go.", watch=value),
        lambda: AgentRuntime(watch=value),
    ):
        with pytest.raises(InvalidValue, match="watch"):
            make()


async def test_a_silent_run_is_paused_and_what_it_does_is_cut() -> None:
    """Its call is answered as cut; resumed, the run goes on."""
    clock, gate = FakeClock(), Gate()
    model = ScriptedModel([Call("gate"), "done"])
    async with AgentRuntime(clock=clock, grace_s=0.1) as runtime:
        session = Session(model, [gate.tool], runtime=runtime, watch=Watch(silent_s=60, on_silent="pause"))
        turn = asyncio.create_task(session.ask("Go."))
        await gate.entered.wait()
        await clock.advance(60)
        await eventually(lambda: view_at(session).waits_for == "pause")
        await clock.advance(86_400)
        assert len(silences(session)) == 1
        await session.handle("main").resume()
        assert (await turn).value == "done"
