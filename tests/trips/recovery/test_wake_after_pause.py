"""Work that continues after a pause: finished agents, late prompts, sessions in another event loop."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from langchain_core.messages import BaseMessage

from ramet.agent.definition import Agent
from ramet.core.errors import MailRefused
from ramet.core.events import RunEnded
from ramet.core.limits import Limits
from ramet.core.outcome import Status
from ramet.host.session import Session
from ramet.models.scripted.dialogue import ReplyStep
from ramet.models.scripted.model import Call, Hang, ScriptedModel
from tests.support.waiting import eventually
from tests.trips.kits.sessions import (
    Gate,
    answers,
    async_tool,
    background_call,
    is_tree_idle,
    of_kind,
    run_of,
    session_events,
    typed_texts,
)

WORKER = Agent(name="worker", instructions="Work.")


def call_of_a_forbidden_type() -> Call:
    """Return a call that spawns an agent of a type that is not allowed."""
    return Call("Agent", {"prompt": "be evil", "subagent_type": "general-purpose"})


def leader_and_worker(**more: Any) -> tuple[ScriptedModel, list[Agent]]:
    """Return a model and agent types: the leader may spawn workers only, and its worker tries another type."""
    middle = Agent(name="leader", instructions="Lead.", tools=("Agent(worker)",), **more)
    model = ScriptedModel(
        {
            "be evil": ["evil was done"],
            "Work.": [call_of_a_forbidden_type(), "refused", call_of_a_forbidden_type(), "refused again"],
            "Lead.": [Call("Agent", {"prompt": "toil", "subagent_type": "worker", "name": "w"}), "led"],
            "Go.": [Call("Agent", {"prompt": "lead", "subagent_type": "leader", "name": "lead"}), "ok"],
            "": ["noted"],
        }
    )
    return model, [WORKER, middle]


async def test_a_woken_agent_may_spawn_no_more_than_before() -> None:
    """A finished agent whose parent has ended continues below its grandparent, with its original rights."""
    model, agents = leader_and_worker()
    async with Session(model, agents=agents) as session:
        await session.ask("Go.")
        worker = run_of(session, "w")
        before = len(session_events(session))

        session.handle("w").send("Try again.")
        await eventually(lambda: worker.activations == 2 and is_tree_idle(session))

        tried = [text for text in answers(worker.context.history).values() if "unknown agent type" in text]
        assert worker.info.path == "main/lead/w"
        assert typed_texts(worker.context.history)[-1] == ("ai", "refused again")
        assert tried
        assert "evil was done" not in str(typed_texts(worker.context.history))
        assert {view.agent for view in session.runs()} == {"main", "leader", "worker"}
        assert (
            len(of_kind(session_events(session)[before:], RunEnded, worker.info.path)) == 1
        )  # Its new life is on record, too.


async def test_a_woken_agent_cannot_use_the_budget_of_its_grandparent() -> None:
    """Mail to an agent is refused, with the reason, if the parent whose budget it shared has ended."""
    model, agents = leader_and_worker(limits=Limits(model_calls=5))
    async with Session(model, agents=agents) as session:
        await session.ask("Go.")
        worker, before = run_of(session, "w"), session_events(session)
        scope = worker.context.budget

        with pytest.raises(MailRefused, match="whose budget it shared, has ended"):
            session.handle("w").send("Try again.")

        assert scope.scope == "main/lead"
        assert (worker.activations, worker.context.budget, session_events(session)) == (1, scope, before)


async def test_a_prompt_at_the_end_of_a_notice_turn_gets_its_own_answer() -> None:
    """A user prompts while a Stop hook inspects the answer to a notice. The reply answers the user."""
    gate, looking, go_on = Gate(), asyncio.Event(), asyncio.Event()
    look_count = 0

    async def look(_: dict[str, Any]) -> None:
        nonlocal look_count
        look_count += 1
        if look_count == 2:
            looking.set()
            await go_on.wait()

    def answer(messages: list[BaseMessage]) -> ReplyStep:
        human = [str(each.text) for each in messages if each.type == "human"]
        if "toil" in human[0]:
            return Call("gate") if messages[-1].type == "human" else "found"
        if "question" in human[-1]:
            return "the answer"
        if "task-notification" in human[-1]:
            return "noted"
        return "started" if messages[-1].type == "tool" else background_call("toil", "kid")

    async with Session(ScriptedModel(answer), [gate.tool], hooks={"Stop": look}) as session:
        await session.ask("Go.")
        gate.open.set()
        await looking.wait()
        asking = asyncio.create_task(session.ask("My question?"))
        await eventually(lambda: len(run_of(session, "main").context.mailbox))
        go_on.set()

        assert (await asking).value == "the answer"
        assert typed_texts(session.messages)[-3:] == [("ai", "noted"), ("human", "My question?"), ("ai", "the answer")]
        assert is_tree_idle(session)


def test_a_session_continues_in_another_event_loop() -> None:
    """The end of the first `asyncio.run` ends the active child and wakes no run. The next prompt is answered."""
    model = ScriptedModel(
        {
            "hang": [Hang(2)],
            "Go.": [background_call("hang", "kid"), "started"],
            "Again.": ["here I am"],
            "": ["here I am"],
        }
    )
    session = Session(model)

    async def again() -> str:
        try:
            return str((await session.ask("Again.")).value)
        finally:
            await session.close()

    assert asyncio.run(session.ask("Go.")).value == "started"
    states = {view.path: view.state for view in session.runs()}

    assert states == {"main": "idle", "main/kid": "cancelled"}
    assert asyncio.run(again()) == "here I am"


async def test_an_interrupted_turn_keeps_tool_answers_that_are_not_plain_json() -> None:
    """A tool answers with a NaN, and an interrupt comes before the answer is in the history. The session continues."""
    gate = Gate()

    async def odd() -> list[dict[str, Any]]:
        """Answer strangely."""
        return [{"type": "text", "text": "odd", "score": float("nan")}]

    model = ScriptedModel([[Call("odd"), Call("gate")], "ok"])
    async with Session(model, [async_tool(odd), gate.tool]) as session:
        turn = asyncio.create_task(session.ask("Go."))
        await gate.entered.wait()
        await session.interrupt()

        assert (await turn).status is Status.CANCELLED
        assert (await session.ask("Go on.")).status is Status.COMPLETED
        assert len(answers(session.messages)) == 2
