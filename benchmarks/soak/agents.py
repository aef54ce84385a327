"""Agent types of the soaked server: a model that answers, fails or is slow as its prompt says, and a function."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any, Final

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage, HumanMessage
from langchain_core.messages.ai import UsageMetadata
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult

from ramet.core.errors import ModelFailed
from ramet.services.agent_types.function.type import FunctionType
from ramet.services.agent_types.llm.type import LlmType
from ramet.services.contract import Image

SLOW_S: Final = 5.0  #: how long a slow answer takes where nobody interrupts it
PIECES: Final = 8  #: of each answer
PLUGIN: Final = f"[ramet.agent_types]\nsoak = {__name__}:SoakType\nsoak-function = {__name__}:SoakFunctions\n"


class ObedientModel(BaseChatModel):
    """A model that obeys the newest prompt, "ACT TOKEN": `say`, `slow`, or `fail`, which fails as a provider does."""

    @property
    def _llm_type(self) -> str:
        return "told"

    def bind_tools(self, tools: Sequence[Any], **_: Any) -> Any:
        """Return the model itself: no tools are needed."""
        return self

    def _generate(self, messages: list[BaseMessage], *_: Any, **__: Any) -> ChatResult:
        return ChatResult(generations=[ChatGeneration(message=AIMessage(answer(_prompt(messages))))])

    async def _astream(self, messages: list[BaseMessage], *_: Any, **__: Any) -> AsyncIterator[ChatGenerationChunk]:
        prompt = _prompt(messages)
        if prompt.startswith("fail"):
            raise ModelFailed("told", "it was told to")
        text = answer(prompt)
        size = len(text) // PIECES + 1
        for at in range(0, len(text), size):
            yield ChatGenerationChunk(message=AIMessageChunk(content=text[at : at + size]))
            if prompt.startswith("slow"):
                await asyncio.sleep(SLOW_S / PIECES)
        used = UsageMetadata(input_tokens=10, output_tokens=PIECES, total_tokens=10 + PIECES)
        yield ChatGenerationChunk(message=AIMessageChunk(content="", usage_metadata=used))


def answer(prompt: str) -> str:
    """Return the answer to a prompt: some hundred characters that name the prompt's token."""
    return f"heard {prompt.split()[-1]} " + "and so on " * 40


def works(text: str) -> str:
    """Answer as the model does, in its own process."""
    return f"heard {text.split()[-1]} "


def _prompt(messages: Sequence[BaseMessage]) -> str:
    return next((each.text for each in reversed(messages) if isinstance(each, HumanMessage)), "say nothing")


class SoakType(LlmType):
    """An agent type for conversations with that model, in the host."""

    name = "soak"

    def __init__(self) -> None:
        super().__init__({"told": ObedientModel()}, default="told")


class SoakFunctions(FunctionType):
    """An agent type for functions of this module, in a sandbox if a policy says so."""

    name = "soak-function"

    def __init__(self) -> None:
        super().__init__([__name__])

    def needs_sandbox(self, info: Any, image: Image) -> bool:
        """Work in the host unless a policy is given."""
        return False
