"""Waits, mail, stopped children and transcripts outlive a process, on every store."""

from __future__ import annotations

from typing import Any

import pytest
from langchain_core.messages import BaseMessage, HumanMessage

from ramet import Agent, AgentRuntime, Session
from ramet.concurrency.clock import FakeClock
from ramet.core import events
from ramet.core.errors import MailRefused
from ramet.core.events import MessageRecorded, RunEnded
from ramet.core.outcome import Status
from ramet.core.replay.replay import TreeReplay
from ramet.host.trees.project import Project
from ramet.models.scripted.dialogue import ReplyStep
from ramet.models.scripted.model import Call, ScriptedModel
from ramet.tools.run_info import StopReceipt
from tests.support.waiting import eventually
from tests.trips.kits.sessions import Gate, background_call, specialist_call
from tests.trips.recovery.test_resume import MakeStore, lost_runtime, make_store

__all__ = ["make_store"]  # a fixture is used by its name


async def test_a_parent_waits_for_its_child_across_a_restart(make_store: MakeStore) -> None:
    """AC-S0-7: a child works for five minutes, its kernel dies in between, and the parent still gets the result."""
    gate, handles = Gate(), Gate()
    plan: dict[str, Any] = {"toil": [Call("gate"), "no"], "": [specialist_call("toil", "kid"), "no"]}
    agents = Project.open(None, user_dir=None)
    clock = FakeClock()
    async with lost_runtime(make_store(), clock) as runtime:
        lead = Agent(name="lead", model=ScriptedModel(plan))
        handle = await runtime.spawn(lead, "go", tools=[gate.tool], agents=agents)
        await gate.entered.wait()
        await clock.advance(150)
        assert handle.run.result is None

    def answer(messages: list[BaseMessage]) -> ReplyStep:
        if "five minutes' work" in messages[-1].text:
            return "the lead has it"
        return Call("gate") if "cut off" in messages[-1].text else "five minutes' work"

    model = ScriptedModel(answer)
    clock = FakeClock()
    async with AgentRuntime(store=make_store(), clock=clock) as runtime:
        [handle] = await runtime.resume(llm=model, tools=[handles.tool])
        await handles.entered.wait()
        await clock.advance(150)
        assert handle.run.result is None
        handles.open.set()
        result = await handle.result()

        assert (result.status, result.value) == (Status.COMPLETED, "the lead has it")
        assert "five minutes' work" in str(model.requests[-1].messages)


async def test_the_journal_records_who_was_cancelled_with_a_parent(make_store: MakeStore) -> None:
    """AC-S0-6: the journal names the parent's cancellation as the reason for each run of its subtree."""
    gate = Gate()
    plan: dict[str, Any] = {
        "toil": [Call("gate"), "no"],
        "lead": [specialist_call("toil", "leaf"), "no"],
        "": [specialist_call("lead", "kid"), "no"],
    }
    async with lost_runtime(make_store()) as runtime:
        lead = Agent(name="lead", model=ScriptedModel(plan))
        handle = await runtime.spawn(lead, "go", tools=[gate.tool], agents=Project.open(None, user_dir=None))
        await gate.entered.wait()
        await handle.cancel("enough")

    store = await make_store().open()
    tree_events = [events.decode(each.data) for each in await store.read(tree=handle.id)]
    await store.close()
    ends = {each.path: each.result for each in tree_events if isinstance(each, RunEnded)}
    assert {path: str(end.status) for path, end in ends.items()} == dict.fromkeys(
        ("main", "main/kid", "main/kid/leaf"), "cancelled"
    )
    for path in ("main/kid", "main/kid/leaf"):
        error = ends[path].error
        assert error is not None
        assert error.message == "stopped with its parent: enough"


async def test_mail_wakes_a_child_that_finished_in_another_process(make_store: MakeStore) -> None:
    """AC-S1-8, AC-S2-3: the child continues with its whole history, and its parent receives its new answer once."""
    plan: dict[str, Any] = {"toil": ["the first finding"], "": [specialist_call("toil", "kid"), "ok"]}
    async with lost_runtime(make_store()) as runtime:
        session = Session(ScriptedModel(plan), runtime=runtime, session_id="talk")
        await session.ask("go")

    def answer(messages: list[BaseMessage]) -> ReplyStep:
        return "the second finding" if "look again" in messages[-1].text else "heard"

    model = ScriptedModel(answer)
    async with AgentRuntime(store=make_store()) as runtime:
        session = await Session.resume("talk", model, runtime=runtime)
        session.handle("kid").send("look again")
        await eventually(lambda: len(model.requests) == 2 and str(session.messages[-1].text) == "heard")

        texts = [message.text for message in model.requests[0].messages]
        assert "the first finding" in texts
        assert "look again" in texts[-1]
        notices = [each.text for each in session.messages if isinstance(each, HumanMessage)]
        assert sum("the second finding" in each for each in notices) == 1


async def test_a_stopped_child_stays_stopped(make_store: MakeStore) -> None:
    """AC-S1-9, AC-S2-7: another process refuses mail to a stopped child, and shows the child as cancelled."""
    gate = Gate()
    plan: dict[str, Any] = {"toil": [Call("gate"), "no"], "": [background_call("toil", "kid"), "started"]}
    async with lost_runtime(make_store()) as runtime:
        session = Session(ScriptedModel(plan), [gate.tool], runtime=runtime, session_id="talk")
        await session.ask("go")
        await gate.entered.wait()
        receipt = await session.handle("kid").cancel("not needed")
        assert isinstance(receipt, StopReceipt)

    async with AgentRuntime(store=make_store()) as runtime:
        session = await Session.resume("talk", ScriptedModel({"": ["ok"] * 3}), [Gate().tool], runtime=runtime)
        with pytest.raises(MailRefused, match="stopped"):
            session.handle("kid").send("go on")
        [kid] = [view for view in session.runs() if view.path == "main/kid"]
        assert kid.state == "cancelled"


async def test_the_messages_of_a_child_are_recorded_in_order_up_to_a_kill(make_store: MakeStore) -> None:
    """AC-S1-5: the journal has every published message in order, with its agent and the call of its parent."""
    gate = Gate()
    plan: dict[str, Any] = {"toil": [Call("gate"), "no"], "": [specialist_call("toil", "kid"), "no"]}
    recorded_messages: list[MessageRecorded] = []
    async with lost_runtime(make_store()) as runtime:
        lead = Agent(name="lead", model=ScriptedModel(plan))
        handle = await runtime.spawn(lead, "go", tools=[gate.tool], agents=Project.open(None, user_dir=None))
        reader = runtime.trees[handle.id].recorder.subscribe()
        await gate.entered.wait()
        reader.close()
        recorded_messages = [each async for each in reader.items() if isinstance(each, MessageRecorded)]

    store = await make_store().open()
    tree_events = [events.decode(each.data) for each in await store.read(tree=handle.id)]
    await store.close()
    messages = [each for each in tree_events if isinstance(each, MessageRecorded)]
    assert recorded_messages
    assert messages[: len(recorded_messages)] == recorded_messages
    replay = TreeReplay().apply_all(tree_events)
    [kid] = [run for run in replay.runs.values() if run.spawn_event.path == "main/kid"]
    assert [each["type"] for each in kid.messages] == ["human", "ai"]
    call = replay.root.messages[-1]["tool_calls"][0]["id"]
    assert kid.spawn_event.parent_call == call
