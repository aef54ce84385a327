"""Conversations that grow beyond the context window of their model."""

from __future__ import annotations

from typing import Any

import pytest
from langchain_core.exceptions import ContextOverflowError
from langchain_core.messages import BaseMessage
from langchain_core.outputs import ChatResult

from ramet import ScriptedModel, Session, Status
from ramet.core.events import Compacted
from tests.trips.kits.sessions import of_kind, session_events

LONG = "word " * 400


class Narrow(ScriptedModel):
    """A scripted model that refuses prompts longer than its window, as providers do."""

    def __init__(self, script: list[str]) -> None:
        super().__init__(script, streaming=False)

    async def _agenerate(self, messages: list[BaseMessage], *args: Any, **kwargs: Any) -> ChatResult:
        if sum(len(str(message.content)) for message in messages) > 3_000:
            raise ContextOverflowError("prompt is too long")
        return await super()._agenerate(messages, *args, **kwargs)


async def test_a_conversation_is_compacted_before_its_window_is_full() -> None:
    """The model's profile has the size of the window, so a user need not configure it."""
    model = ScriptedModel([LONG, LONG, "A summary.", "Still here."])
    model.profile = {"max_input_tokens": 1_200}
    async with Session(model) as session:
        for prompt in ("First.", "Second.", "Third."):
            result = await session.ask(prompt)

        assert result.value == "Still here."
        assert len(of_kind(session_events(session), Compacted)) == 1


async def test_compaction_can_be_switched_off() -> None:
    """`compaction=False` keeps every message."""
    model = ScriptedModel([LONG, LONG, "Still here."])
    model.profile = {"max_input_tokens": 1_200}
    async with Session(model, compaction=False) as session:
        for prompt in ("First.", "Second.", "Third."):
            await session.ask(prompt)

        assert of_kind(session_events(session), Compacted) == []


@pytest.mark.parametrize("compacts", [True, False])
async def test_a_prompt_refused_as_too_long_is_compacted_and_sent_again(compacts: bool) -> None:
    """A retry alone cannot help. Without compaction, the turn fails."""
    model = Narrow([LONG, LONG, *["A summary."] * compacts, "Still here."])
    async with Session(model, compaction=None if compacts else False) as session:
        for prompt in ("First.", "Second."):
            await session.ask(prompt)

        result = await session.ask("Third.")

        assert result.status is (Status.COMPLETED if compacts else Status.FAILED)
        assert bool(of_kind(session_events(session), Compacted)) is compacts
