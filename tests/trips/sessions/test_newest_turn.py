"""`Session.listen` and `Session.result`: the turn that goes on, and the result of the newest turn that ended."""

from __future__ import annotations

import pathlib
from contextlib import aclosing

import pytest
from langchain_core.messages import AIMessageChunk

from ramet import AgentRuntime, Session, SyncSession
from ramet.core.events import Event, ToolStarted, TurnStarted
from ramet.core.outcome import Status
from ramet.models.scripted.model import Call, ScriptedModel
from ramet.store.memory import MemoryStore
from tests.support.cut_journals import cut_behind
from tests.support.waiting import eventually
from tests.trips.kits.sessions import Gate, background


async def _cut_in_second_turn() -> MemoryStore:
    """A journal whose kernel was killed in the second turn of the conversation `talk`, with its prompt on record."""
    store = MemoryStore()
    async with AgentRuntime(store=store) as runtime:
        session = Session(ScriptedModel(["one", "two"]), runtime=runtime, session_id="talk")
        await session.ask("first")
        await session.ask("second")
    prompts = iter((False, True))
    return await cut_behind(store, lambda event: _is_prompt(event) and next(prompts))


def _is_prompt(event: Event) -> bool:
    return getattr(event, "message", {}).get("type") == "human"


def _text(items: list[AIMessageChunk | Event]) -> str:
    return "".join(str(each.text) for each in items if isinstance(each, AIMessageChunk))


async def test_a_resumed_turn_is_read_by_iterating_over_listen() -> None:
    """`async for item in session.listen()` yields what `submit_message` does, and `result` is that turn's."""
    async with AgentRuntime(store=await _cut_in_second_turn()) as runtime:
        session = await Session.resume("talk", ScriptedModel(["two again"]), runtime=runtime)
        turn = session.listen()
        assert turn is not None

        items = [item async for item in turn]

        assert _text(items) == "two again"
        assert session.result is turn.result
        assert session.result is not None
        assert (session.result.status, session.result.value) == (Status.COMPLETED, "two again")
        assert session.listen() is None


async def test_the_result_after_a_turn_begun_by_mail_is_that_turns() -> None:
    """A child's end wakes the root: the newest turn is no prompt's, and nobody has to read it."""
    gate = Gate()
    model = ScriptedModel(
        {"Go.": [background("Look.", "scout"), "It looks.", "It has seen."], "Look.": [Call("gate"), "seen"]}
    )
    async with Session(model, [gate.tool]) as session:
        assert (await session.ask("Go.")).value == "It looks."
        gate.open.set()

        await eventually(lambda: session.result is not None and session.result.value == "It has seen.")


async def test_a_turn_begun_by_mail_can_be_listened_to() -> None:
    """Leaving the iteration does not interrupt the turn, and another reader may come."""
    gate = Gate()
    model = ScriptedModel({"Go.": ["Ready."], "One more.": [Call("gate"), "Done."]})
    async with Session(model, [gate.tool]) as session:
        await session.ask("Go.")
        session.send("One more.")
        first = session.listen()
        assert first is not None
        async with aclosing(first.read()) as items:
            async for _ in items:
                break
        await gate.entered.wait()
        second = session.listen()
        assert second is not None
        gate.open.set()

        assert _text([item async for item in second]) == "Done."
        assert session.result is not None
        assert session.result.value == "Done."


async def test_the_result_after_a_turn_that_was_interrupted_is_that_turns() -> None:
    """`result` is not that of the turn before."""
    gate = Gate()
    async with Session(ScriptedModel(["One.", Call("gate")]), [gate.tool]) as session:
        await session.ask("Go.")
        async with aclosing(session.submit_message("On.")) as items:
            async for item in items:
                if isinstance(item, ToolStarted):
                    break
        assert session.result is not None
        assert session.result.status is Status.CANCELLED


async def test_the_result_is_not_to_be_set() -> None:
    """It is the session's word, not a field."""
    async with Session(ScriptedModel(["One."])) as session:
        assert session.result is None
        with pytest.raises(AttributeError):
            session.result = None  # type: ignore[misc]  # the act under test


def test_a_program_without_an_event_loop_listens_to_a_resumed_turn(tmp_path: pathlib.Path) -> None:
    """Where no turn goes on, there is nothing to read."""
    with SyncSession(ScriptedModel(["one", "two"]), cwd=tmp_path, session_id="talk") as session:
        session.ask("first")
        assert list(session.listen()) == []
        session.send("second")
        assert [each for each in session.listen() if isinstance(each, TurnStarted)]
