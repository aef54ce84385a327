"""`RelayModel`: a BaseChatModel that has no provider of its own but asks whoever can, such as a guest's host.

Pieces of a reply cross as data, too; the whole message is what `ramet.models.messages` makes of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import aclosing
from typing import Any, Protocol

import msgspec
from langchain_core.callbacks import AsyncCallbackManagerForLLMRun, CallbackManagerForLLMRun
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
    """The way to a model elsewhere: yields pieces if they are wanted and there are any, then the whole message."""

    def __call__(
        self,
        messages: Sequence[BaseMessage],
        tools: Sequence[dict[str, Any]],  # Any: JSON schemas
        *,
        max_tokens: int | None,
        stream: bool,
    ) -> AsyncGenerator[AIMessageChunk | AIMessage]: ...


class RelayModel(BaseChatModel):
    """Asks through a `Relay`, which decides what model that is and who pays; made in the event loop that it works in.

    Tools are shown by their schemas. Stop words and a choice of tool cannot be passed on and are refused.
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
        """This model with tools. Raises InvalidValue for a choice among them."""
        if tool_choice not in (None, "auto"):
            raise InvalidValue("tool_choice", tool_choice, "'auto', or none: the model chooses")
        return self.bind(tools=[_schema(tool) for tool in tools], **kwargs)

    async def _agenerate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        async with aclosing(self._pieces(messages, stop, kwargs, stream=False)) as pieces:
            async for piece in pieces:
                if not isinstance(piece, AIMessageChunk):
                    return ChatResult(generations=[ChatGeneration(message=piece)])
        raise ProtocolError("a reply without a message")

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        """For synchronous tools, in their threads. Raises RametError in the event loop, which would wait for itself."""
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            asked = self._agenerate(messages, stop, **kwargs)
            return asyncio.run_coroutine_threadsafe(asked, self._loop).result()
        raise RametError("this model is asked with `await`, or from a thread")

    async def _astream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> AsyncIterator[ChatGenerationChunk]:
        heard: list[str] = []
        async with aclosing(self._pieces(messages, stop, kwargs, stream=True)) as pieces:
            async for piece in pieces:
                if isinstance(piece, AIMessageChunk):
                    heard.append(piece.text)
                    yield ChatGenerationChunk(message=piece)
                elif not heard:
                    yield ChatGenerationChunk(message=AIMessageChunk(**piece.model_dump(exclude={"type"})))
                elif "".join(heard) != piece.text:
                    raise ModelFailed(self.model_name, "the stream was cut and begun anew; ask again", retryable=True)

    def _pieces(
        self, messages: list[BaseMessage], stop: list[str] | None, kwargs: dict[str, Any], *, stream: bool
    ) -> AsyncGenerator[AIMessageChunk | AIMessage]:
        if stop:
            raise InvalidValue("stop", stop, "no stop words: they cannot be passed on")
        tools, most = kwargs.get("tools", ()), kwargs.get("max_tokens", self.max_tokens)
        return self._relay(messages, tools, max_tokens=most, stream=stream)


def encode_chunk(chunk: AIMessageChunk) -> bytes:
    """A piece of a reply as JSON for a guest; what of it is no data is left out: the whole message supersedes it."""
    fields = redact_for_guest({name: getattr(chunk, name) for name in _CHUNK_FIELDS})
    return msgspec.json.encode({name: value for name, value in plain_parts(fields, "chunk", []).items() if value})


def decode_chunk(body: bytes) -> AIMessageChunk:
    """The piece that `encode_chunk` was given. Raises ProtocolError."""
    try:
        fields = msgspec.json.decode(body, type=dict[str, Any])
        if not fields.keys() <= _CHUNK_FIELDS:
            raise ValueError("a field that no piece has")
        return AIMessageChunk(**{"content": "", **fields})
    except (ValueError, TypeError) as problem:  # those of msgspec and pydantic are ValueErrors
        raise ProtocolError(f"no piece of a reply: {problem}") from None


def _schema(tool: dict[str, Any] | type | Callable[..., Any] | BaseTool) -> dict[str, Any]:
    """A tool's name, description and parameters, written out: schemas that refer to themselves are not passed on."""
    function = convert_to_openai_function(tool["function"] if isinstance(tool, dict) and "function" in tool else tool)
    parameters = dict(dereference_refs(function.get("parameters", {})))
    parameters.pop("$defs", None)
    return {"name": function["name"], "description": function.get("description", ""), "parameters": parameters}
