"""Models for tests of several kernels: one counts and waits for a file, two call a tool and repeat its result."""

from __future__ import annotations

import asyncio
import pathlib
from collections.abc import AsyncIterator, Sequence
from typing import Any

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult

from ramet.services.agent_types.llm.type import LlmType
from tests.support.plain_models import AnsweringModel

LOOK_S = 0.01


class CountingModel(BaseChatModel):
    """A model that counts to N on "count N WAIT FOLDER". Before the number WAIT it waits until FOLDER/go exists."""

    @property
    def _llm_type(self) -> str:
        return "counting"

    def _generate(self, messages: list[BaseMessage], *args: Any, **options: Any) -> ChatResult:
        raise NotImplementedError

    def bind_tools(self, tools: Sequence[Any], **options: Any) -> BaseChatModel:
        return self

    async def _astream(self, messages: list[BaseMessage], *args: Any, **options: Any) -> AsyncIterator[Any]:
        most, wait, folder = _parse_prompt(messages)
        (folder / f"asked-{len(list(folder.glob('asked-*')))}").touch()
        for number in range(1, most + 1):
            if number == wait:
                while not await asyncio.to_thread((folder / "go").exists):  # noqa: ASYNC110 - by another process
                    await asyncio.sleep(LOOK_S)
            yield ChatGenerationChunk(message=AIMessageChunk(content=f"{number} "))

    async def _agenerate(self, messages: list[BaseMessage], *args: Any, **options: Any) -> ChatResult:
        most, _, _ = _parse_prompt(messages)
        text = "".join(f"{number} " for number in range(1, most + 1))
        return ChatResult(generations=[ChatGeneration(message=AIMessage(content=text))])


def _parse_prompt(messages: list[BaseMessage]) -> tuple[int, int, pathlib.Path]:
    _, most, wait, folder = str(messages[-1].text).split()
    return int(most), int(wait), pathlib.Path(folder)


class HoldingModel(AnsweringModel):
    """A model that calls its tool `hold` once with the prompt, and repeats the result."""

    def answer(self, messages: list[BaseMessage]) -> AIMessage:
        """Return the call, or its result."""
        newest = messages[-1]
        reply = AIMessage(f"heard {newest.text}")
        if newest.type != "tool":
            text = str.__str__(newest.text)  # LangChain's own kind of text is no JSON.
            reply = AIMessage("calling ", tool_calls=[{"name": "hold", "args": {"text": text}, "id": "call-1"}])
        return reply


class WritingModel(AnsweringModel):
    """A model that writes the prompt into a file `note` once, and repeats the result of the call."""

    def answer(self, messages: list[BaseMessage]) -> AIMessage:
        """Return the call, or its result."""
        newest = messages[-1]
        if newest.type == "tool":
            return AIMessage(f"heard {newest.text}")
        args = {"file_path": "note", "content": str.__str__(newest.text)}
        return AIMessage("", tool_calls=[{"name": "Write", "args": args, "id": "call-1"}])


class SlowType(LlmType):
    """An agent type whose agents use one of these models."""

    name = "slow"

    def __init__(self) -> None:
        models = {"slow": CountingModel(), "hearing": HoldingModel(), "writing": WritingModel()}
        super().__init__(models, default="slow")
