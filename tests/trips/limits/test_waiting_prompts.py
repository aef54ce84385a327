"""A prompt that waits for a slot is part of the conversation, also if it is interrupted before its turn begins."""

from __future__ import annotations

import asyncio

import pytest
from langchain_core.messages import BaseMessage

from ramet.core.limits import SpawnLimits
from ramet.core.outcome import Status
from ramet.host.session import Session
from ramet.models.scripted.dialogue import ReplyStep
from ramet.models.scripted.model import Call, ScriptedModel
from tests.support.waiting import eventually
from tests.trips.kits.sessions import Gate, background_call, brief_of, newest_human, run_of, typed_texts


async def test_a_prompt_that_is_interrupted_while_it_waits_for_a_slot_is_known_to_the_next_turn() -> None:
    """A child in the background has the only slot; the interrupt comes before the turn has begun, or as it begins."""
    gate = Gate()

    def reply(messages: list[BaseMessage]) -> ReplyStep:
        if brief_of(messages) == "wait":
            return Call("gate", {}) if messages[-1].type == "human" else "waited"
        return background_call("wait", "waiter") if newest_human(messages) == messages[-1].text == "start" else "ok"

    model = ScriptedModel(reply)
    async with Session(model, [gate.tool], spawn_limits=SpawnLimits(running=1)) as session:
        await session.ask("start")
        await gate.entered.wait()
        turn = asyncio.create_task(session.ask("first"))
        await eventually(lambda: str(run_of(session, "main").state) == "starting")
        await session.interrupt()
        assert (await turn).status is Status.CANCELLED
        gate.open.set()
        assert (await session.ask("second")).value == "ok"

    humans = [text for kind, text in typed_texts(model.requests[-1].messages) if kind == "human"]
    assert [text for text in humans if text in ("start", "first", "second")] == ["start", "first", "second"]


@pytest.mark.parametrize("steps", range(1, 12))
async def test_a_prompt_that_is_interrupted_at_any_step_is_known_to_the_next_turn(steps: int) -> None:
    """An interrupt before the first line of the task of a turn is one of them."""
    model = ScriptedModel(lambda messages: "ok")
    async with Session(model) as session:
        await session.ask("start")
        turn = asyncio.create_task(session.ask("first"))
        for _ in range(steps):
            await asyncio.sleep(0)
        await session.interrupt()
        await turn
        assert (await session.ask("second")).value == "ok"

    humans = [text for kind, text in typed_texts(model.requests[-1].messages) if kind == "human"]
    assert humans == ["start", "first", "second"]
