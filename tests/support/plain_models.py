"""Models written by hand, as users write them: the minimum that LangChain requires, and a little more."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from pydantic import Field


class AnsweringModel(BaseChatModel):
    """A model with the single method `answer`. It accepts tools, and ignores their descriptions."""

    @property
    def _llm_type(self) -> str:
        return type(self).__name__.lower()

    def bind_tools(self, tools: Sequence[Any], **kwargs: Any) -> Any:
        """Return the model itself: it knows its tools."""
        return self

    def answer(self, messages: list[BaseMessage]) -> AIMessage:
        """Return the reply to a conversation."""
        raise NotImplementedError

    def _generate(
        self, messages: list[BaseMessage], stop: list[str] | None = None, run_manager: object = None, **kwargs: Any
    ) -> ChatResult:
        return ChatResult(generations=[ChatGeneration(message=self.answer(messages))])


class Plain(BaseChatModel):
    """The minimum that LangChain requires of a model. It records the arguments of each request."""

    request_arguments: list[dict[str, Any]] = Field(default_factory=list)

    @property
    def _llm_type(self) -> str:
        return "plain"

    def _generate(
        self, messages: list[BaseMessage], stop: list[str] | None = None, run_manager: object = None, **kwargs: Any
    ) -> ChatResult:
        self.request_arguments.append(kwargs)
        return ChatResult(generations=[ChatGeneration(message=AIMessage("plain"))])


class Async(Plain):
    """A plain model that needs no thread."""

    async def _agenerate(
        self, messages: list[BaseMessage], stop: list[str] | None = None, run_manager: object = None, **kwargs: Any
    ) -> ChatResult:
        return self._generate(messages, stop, run_manager, **kwargs)


class Streaming(Async):
    """A plain model that streams."""

    async def _astream(
        self, messages: list[BaseMessage], stop: list[str] | None = None, run_manager: object = None, **kwargs: Any
    ) -> AsyncIterator[ChatGenerationChunk]:
        self.request_arguments.append(kwargs)
        for word in ("in ", "pieces"):
            yield ChatGenerationChunk(message=AIMessageChunk(content=word), generation_info={"finish_reason": "stop"})
