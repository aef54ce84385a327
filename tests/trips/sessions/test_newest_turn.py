"""`Session.listen` and `Session.result`: the turn in progress, and the result of the newest turn that ended."""

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
from tests.trips.kits.sessions import Gate, background_call


async def _store_cut_in_second_turn() -> MemoryStore:
    """Return the store of a conversation `talk`, whose kernel was killed in its second turn, after the prompt."""
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


async def test_listen_yields_a_resumed_turn() -> None:
    """The items are those that `submit_message` would yield, and `result` is the result of that turn."""
    async with AgentRuntime(store=await _store_cut_in_second_turn()) as runtime:
        session = await Session.resume("talk", ScriptedModel(["two again"]), runtime=runtime)
        turn = session.listen()
        assert turn is not None

        items = [item async for item in turn]

        assert _text(items) == "two again"
        assert session.result is turn.result
        assert session.result is not None
        assert (session.result.status, session.result.value) == (Status.COMPLETED, "two again")
        assert session.listen() is None


async def test_result_is_that_of_a_turn_begun_by_mail() -> None:
    """The notice of a child's end begins the newest turn, and no reader need follow it."""
    gate = Gate()
    model = ScriptedModel(
        {"Go.": [background_call("Look.", "scout"), "It looks.", "It has seen."], "Look.": [Call("gate"), "seen"]}
    )
    async with Session(model, [gate.tool]) as session:
        assert (await session.ask("Go.")).value == "It looks."
        gate.open.set()

        await eventually(lambda: session.result is not None and session.result.value == "It has seen.")


async def test_listen_yields_a_turn_begun_by_mail() -> None:
    """A reader that leaves does not interrupt the turn, and another reader may come."""
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


async def test_result_is_that_of_an_interrupted_turn() -> None:
    """`result` does not stay the result of the turn before."""
    gate = Gate()
    async with Session(ScriptedModel(["One.", Call("gate")]), [gate.tool]) as session:
        await session.ask("Go.")
        async with aclosing(session.submit_message("On.")) as items:
            async for item in items:
                if isinstance(item, ToolStarted):
                    break
        assert session.result is not None
        assert session.result.status is Status.CANCELLED


async def test_result_is_read_only() -> None:
    """Setting `result` raises AttributeError."""
    async with Session(ScriptedModel(["One."])) as session:
        assert session.result is None
        with pytest.raises(AttributeError):
            session.result = None  # type: ignore[misc]  # the act under test


def test_a_sync_session_listens_to_a_turn_begun_by_mail(tmp_path: pathlib.Path) -> None:
    """`listen` yields nothing while no turn is in progress."""
    with SyncSession(ScriptedModel(["one", "two"]), cwd=tmp_path, session_id="talk") as session:
        session.ask("first")
        assert list(session.listen()) == []
        session.send("second")
        assert [each for each in session.listen() if isinstance(each, TurnStarted)]
