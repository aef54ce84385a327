"""`RelayModel`: a BaseChatModel without a provider, which forwards requests, for example to a guest's host.

Chunks of a reply are also passed as data; the complete message is decoded by `ramet.models.messages`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import aclosing
from typing import Any, Protocol

import msgspec
from langchain_core.language_models import BaseChatModel, LanguageModelInput
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langchain_core.runnables import Runnable
from langchain_core.tools import BaseTool
from langchain_core.utils.function_calling import convert_to_openai_function
from langchain_core.utils.json_schema import dereference_refs
from pydantic import PrivateAttr

from ramet.core.errors import InvalidValue, ModelFailed, ProtocolError, RametError
from ramet.models.json_values import plain_parts
from ramet.models.request_codec import redact_for_guest

_CHUNK_FIELDS = frozenset(
    {"content", "tool_call_chunks", "usage_metadata", "id", "additional_kwargs", "response_metadata", "chunk_position"}
)


class Relay(Protocol):
    """The function that calls a remote model: yields chunks, if requested and available, then the complete message."""

    def __call__(
        self,
        messages: Sequence[BaseMessage],
        tools: Sequence[dict[str, Any]],  # Any: JSON schemas
        *,
        max_tokens: int | None,
        stream: bool,
    ) -> AsyncGenerator[AIMessageChunk | AIMessage]: ...


class RelayModel(BaseChatModel):
    """A model that asks through a `Relay`, which chooses the model and the payer; create it in its event loop.

    Tools are passed as schemas. Stop words and a choice of tool cannot be passed on and are refused.
    """

    model_name: str = "relay"
    max_tokens: int | None = None

    _relay: Relay = PrivateAttr()
    _loop: asyncio.AbstractEventLoop = PrivateAttr()

    def __init__(self, relay: Relay, **fields: Any) -> None:
        super().__init__(**fields)
        self._relay = relay
        self._loop = asyncio.get_running_loop()

    @property
    def _llm_type(self) -> str:
        return "relay"

    def bind_tools(
        self,
        tools: Sequence[dict[str, Any] | type | Callable[..., Any] | BaseTool],
        *,
        tool_choice: str | None = None,
        **kwargs: Any,
    ) -> Runnable[LanguageModelInput, AIMessage]:
        """Return this model with tools. Raises InvalidValue for a tool choice."""
        if tool_choice not in (None, "auto"):
            raise InvalidValue("tool_choice", tool_choice, "'auto', or none: the model chooses")
        return self.bind(tools=[_schema(tool) for tool in tools], **kwargs)

    async def _agenerate(
        self, messages: list[BaseMessage], stop: list[str] | None = None, *_: Any, **kwargs: Any
    ) -> ChatResult:
        async with aclosing(self._pieces(messages, stop, kwargs, stream=False)) as pieces:
            async for piece in pieces:
                if not isinstance(piece, AIMessageChunk):
                    return ChatResult(generations=[ChatGeneration(message=piece)])
        raise ProtocolError("a reply without a message")

    def _generate(
        self, messages: list[BaseMessage], stop: list[str] | None = None, *_: Any, **kwargs: Any
    ) -> ChatResult:
        """Generate for synchronous tools, in their threads.

        Raises RametError in the event loop, which would block itself.
        """
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            request = self._agenerate(messages, stop, **kwargs)
            return asyncio.run_coroutine_threadsafe(request, self._loop).result()
        raise RametError("call this model with `await`, or from a thread without an event loop")

    async def _astream(
        self, messages: list[BaseMessage], stop: list[str] | None = None, *_: Any, **kwargs: Any
    ) -> AsyncIterator[ChatGenerationChunk]:
        texts: list[str] = []
        async with aclosing(self._pieces(messages, stop, kwargs, stream=True)) as pieces:
            async for piece in pieces:
                if isinstance(piece, AIMessageChunk):
                    texts.append(piece.text)
                    yield ChatGenerationChunk(message=piece)
                elif not texts:
                    yield ChatGenerationChunk(message=AIMessageChunk(**piece.model_dump(exclude={"type"})))
                elif "".join(texts) != piece.text:
                    raise ModelFailed(
                        self.model_name, "the stream was interrupted and restarted; ask again", retryable=True
                    )

    def _pieces(
        self, messages: list[BaseMessage], stop: list[str] | None, kwargs: dict[str, Any], *, stream: bool
    ) -> AsyncGenerator[AIMessageChunk | AIMessage]:
        if stop:
            raise InvalidValue("stop", stop, "no stop words: they cannot be forwarded")
        tools, max_tokens = kwargs.get("tools", ()), kwargs.get("max_tokens", self.max_tokens)
        return self._relay(messages, tools, max_tokens=max_tokens, stream=stream)


def encode_chunk(chunk: AIMessageChunk) -> bytes:
    """Return a chunk as JSON for a guest.

    Parts that are not data are omitted: the complete message replaces the chunk.
    """
    fields = redact_for_guest({name: getattr(chunk, name) for name in _CHUNK_FIELDS})
    return msgspec.json.encode({name: value for name, value in plain_parts(fields, "chunk", []).items() if value})


def decode_chunk(body: bytes) -> AIMessageChunk:
    """Return the chunk that `encode_chunk` encoded. Raises ProtocolError if the data is no chunk."""
    try:
        fields = msgspec.json.decode(body, type=dict[str, Any])
        if not fields.keys() <= _CHUNK_FIELDS:
            raise ValueError("an unknown field")
        return AIMessageChunk(**{"content": "", **fields})
    except (ValueError, TypeError) as problem:  # errors of msgspec and pydantic are ValueErrors
        raise ProtocolError(f"not a chunk of a reply: {problem}") from None


def _schema(tool: dict[str, Any] | type | Callable[..., Any] | BaseTool) -> dict[str, Any]:
    """Return a tool's name, description and parameters, with references resolved; recursive ones are not passed on."""
    function = convert_to_openai_function(tool["function"] if isinstance(tool, dict) and "function" in tool else tool)
    parameters = dict(dereference_refs(function.get("parameters", {})))
    parameters.pop("$defs", None)
    return {"name": function["name"], "description": function.get("description", ""), "parameters": parameters}
