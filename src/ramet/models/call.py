"""Send one request to a LangChain model, and return its reply. Budgets, retries and rate limits are handled elsewhere.

A call of `model.ainvoke` costs 115 µs for callbacks, tracing, caches and rate limiters, whether any are configured or
not. So each request first checks (8 µs, by LangChain's own `CallbackManager.configure`) whether there are listeners.
Without listeners, the model's `_agenerate` or `_astream` is awaited directly: LangChain documents these methods for
authors of models. With listeners, the public method is called, and all of them work as their owner expects.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, Final, cast

from langchain_core.callbacks import AsyncCallbackManager
from langchain_core.globals import get_llm_cache
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage, message_chunk_to_message
from langchain_core.outputs import ChatGenerationChunk
from langchain_core.runnables import Runnable, RunnableBinding
from langchain_core.runnables.config import var_child_runnable_config
from langchain_core.tools import BaseTool

from ramet.concurrency.clock import Clock, SystemClock
from ramet.core.errors import InvalidValue, ModelFailed, RametError
from ramet.models.chunks import (
    MAX_ARGUMENT_BYTES,
    arguments_bytes,
    check_arguments,
    check_reply,
    merge,
    reply_size,
    validate_message,
)
from ramet.models.errors import translate
from ramet.models.providers import stream_usage
from ramet.models.providers.payloads import Payloads, with_unchecked_payload
from ramet.models.resolve import model_name

__all__ = ["MAX_ARGUMENT_BYTES", "Bound", "bind", "can_stream", "complete", "merge", "output_limit", "stream_reply"]

SYSTEM_CLOCK: Final[Clock] = SystemClock()

Tools = Sequence[BaseTool | dict[str, Any]]  # Any: a tool's JSON schema, as LangChain takes it

#: Methods whose override means that the public way must be used.
_PUBLIC_PATH_METHODS: Final = (
    "ainvoke",
    "agenerate",
    "agenerate_prompt",
    "astream",
    "_agenerate_with_cache",
    "_convert_input",
)
#: Blocks that LangChain rewrites into its current form before a model gets them.
_REWRITTEN_BLOCKS: Final = frozenset({"image", "audio", "file", "input_audio"})
#: Metadata set by the last event of a stream: without it, the stream was cut, even if it ended cleanly.
_END_METADATA: Final = ("stop_reason", "finish_reason", "status", "incomplete_details")
_PROVIDERS_WITH_END: Final = frozenset({"anthropic", "openai", "azure", "deepseek", "xai"})
#: Packages whose models take a `max_tokens` per call only through one of their fields.
_LIMIT_BY_FIELD: Final = ("langchain_aws", "langchain_google_genai", "langchain_google_vertexai", "langchain_ollama")
_LIMIT_FIELDS: Final = ("max_tokens", "max_output_tokens", "num_predict")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Bound:
    """A model with its tools, created once and used for many requests."""

    model: BaseChatModel
    name: str
    streams: bool  #: it can stream; otherwise use `complete`
    has_tools: bool  #: the model has the tools: False if it has no `bind_tools`
    kwargs: Mapping[str, Any]  #: keywords passed with each call
    runnable: Runnable[Any, AIMessage] | None  #: result of `bind_tools`, if that is not the model with some keywords
    is_direct: bool  #: it may be awaited without LangChain's machinery while there are no listeners
    run_manager: bool  #: its `_agenerate` requires this argument
    payloads: Payloads = field(default_factory=Payloads)  #: encodes requests with long conversations


def bind(model: BaseChatModel, tools: Tools = ()) -> Bound:
    """Bind tools to a model. Keep the result: binding one tool costs twice as much as a request."""
    target, kwargs, runnable, offered = model, cast("Mapping[str, Any]", {}), None, not tools
    if tools and type(model).bind_tools is not BaseChatModel.bind_tools:
        bound_model = model.bind_tools(list(tools))
        offered = True
        if isinstance(bound_model, BaseChatModel):
            target = bound_model
        elif (
            isinstance(bound_model, RunnableBinding)
            and isinstance(bound_model.bound, BaseChatModel)
            and not bound_model.config
        ):
            target, kwargs = bound_model.bound, dict(bound_model.kwargs)
        else:
            runnable = bound_model
    cls = type(target)
    return Bound(
        model=target,
        name=model_name(model),
        streams=can_stream(target),
        has_tools=offered,
        kwargs=kwargs,
        runnable=runnable,
        is_direct=runnable is None
        and all(getattr(cls, name) is getattr(BaseChatModel, name) for name in _PUBLIC_PATH_METHODS),
        run_manager=_requires_run_manager(cls),
    )


def can_stream(model: BaseChatModel) -> bool:
    """Return whether the model streams natively and streaming is not switched off."""
    cls = type(model)
    if cls._astream is BaseChatModel._astream and cls._stream is BaseChatModel._stream:
        return False
    if cls.__module__ == "langchain_core.language_models.fake_chat_models":
        return False  # stock fakes drop tool calls and usage when they stream
    if model.disable_streaming:
        return False
    return not ("streaming" in model.model_fields_set and getattr(model, "streaming", None) is False)


def output_limit(model: BaseChatModel) -> int | None:
    """Return the output tokens that the model itself allows for one reply; None if unknown."""
    field = _limit_field(model)
    extra = getattr(model, "model_kwargs", None)
    limits = [getattr(model, field, None)] if field else []
    if isinstance(extra, Mapping):
        limits += [extra.get("max_tokens"), extra.get("max_completion_tokens")]
    return min((limit for limit in limits if isinstance(limit, int) and limit > 0), default=None)


async def complete(
    model: BaseChatModel | Bound,
    messages: Sequence[BaseMessage],
    *,
    tools: Tools = (),
    max_tokens: int | None = None,
    clock: Clock = SYSTEM_CLOCK,
) -> AIMessage:
    """Return the model's complete reply. Raises ModelFailed for every provider error; cancellation passes through.

    `max_tokens` limits the output, if the model supports this; it never raises the model's own limit.
    """
    bound = model if isinstance(model, Bound) else bind(model, tools)
    target, kwargs = _with_limit(bound, max_tokens)
    cancel_check, wait_probe = _CancelCheck(), None
    try:
        is_direct = _is_direct(bound, target, messages)
        target = await _with_payload(bound, target, messages, kwargs, is_direct=is_direct, streams=False)
        wait_probe = _WaitProbe()
        if bound.runnable is not None:
            reply: object = await bound.runnable.ainvoke(list(messages), **kwargs)
        elif is_direct:
            reply = await _generate_directly(bound, target, list(messages), kwargs)
        else:
            reply = await target.ainvoke(list(messages), **kwargs)
    except RametError:
        raise
    except Exception as error:
        raise _as_model_failed(bound, error, clock, wait_probe) from error
    cancel_check.check()
    if not isinstance(reply, AIMessage):
        raise ModelFailed(bound.name, f"it returned {type(reply).__name__}, which is not an AIMessage")
    if isinstance(reply, AIMessageChunk):
        reply = cast(AIMessage, message_chunk_to_message(reply))
    return validate_message(reply, bound.name)


async def stream_reply(
    model: BaseChatModel | Bound,
    messages: Sequence[BaseMessage],
    *,
    tools: Tools = (),
    max_tokens: int | None = None,
    clock: Clock = SYSTEM_CLOCK,
    usage: bool = True,
) -> AsyncGenerator[AIMessageChunk, None]:
    """Yield the model's reply in chunks, for models that `can_stream`; join the chunks with `merge`.

    Raises ModelFailed if a stream breaks off, even if it ends cleanly without the provider's closing event. Raises
    UsageRefused if the endpoint may have refused only the request for usage: then ask again, with `usage` False.
    """
    bound = model if isinstance(model, Bound) else bind(model, tools)
    target, kwargs = _with_limit(bound, max_tokens)
    requests_usage = stream_usage.needs_request(target, kwargs, bound.runnable)
    endpoint = stream_usage.endpoint_of(target) if requests_usage else None
    if requests_usage and usage:
        kwargs = {**kwargs, "stream_usage": True}
    provider, has_end, size, total_size, has_chunks = "", False, 0, 0, False
    cancel_check, wait_probe = _CancelCheck(), None
    try:
        is_direct = _is_direct(bound, target, messages)
        target = await _with_payload(bound, target, messages, kwargs, is_direct=is_direct, streams=True)
        wait_probe = _WaitProbe()
        async with aclosing(_open_stream(bound, target, list(messages), kwargs, is_direct=is_direct)) as pieces:
            async for piece in pieces:
                cancel_check.check()
                chunk, has_chunks = _chunk(piece), True
                if metadata := chunk.response_metadata:
                    provider = metadata.get("model_provider", provider)
                    has_end = has_end or any(metadata.get(key) is not None for key in _END_METADATA)
                if chunk.tool_call_chunks:
                    size += arguments_bytes(chunk)
                    check_arguments(size, bound.name)
                total_size += reply_size(chunk)
                check_reply(total_size, bound.name)
                yield chunk
    except RametError:
        raise
    except Exception as error:
        failure = _as_model_failed(bound, error, clock, wait_probe)
        if endpoint is not None and usage and not has_chunks:
            failure = stream_usage.refusal(endpoint, error, failure) or failure
        raise failure from error
    if provider in _PROVIDERS_WITH_END and not has_end:
        raise ModelFailed(bound.name, "the stream ended before the reply was complete", retryable=True)
    if endpoint is not None and has_chunks:
        stream_usage.remember_answer(endpoint, is_accepted=usage)


class _CancelCheck:
    """A check for a swallowed cancellation.

    `asyncio.wait_for` of Python 3.11, used by ChatOpenAI's streams, returns its result if result and cancellation come
    together. The agent would then continue to run.
    """

    __slots__ = ("_cancels_before", "_task")

    def __init__(self) -> None:
        self._task = asyncio.current_task()
        self._cancels_before = self._task.cancelling() if self._task else 0

    def check(self) -> None:
        """Raise CancelledError if this task was cancelled meanwhile without receiving it."""
        if self._task is not None and self._task.cancelling() > self._cancels_before:
            raise asyncio.CancelledError


class _WaitProbe:
    """A check whether a request has yielded to the event loop; before that, no answer can have arrived.

    A callback scheduled now runs before anything that the request may wait for.
    """

    __slots__ = ("has_waited",)

    def __init__(self) -> None:
        self.has_waited = False
        asyncio.get_running_loop().call_soon(self._note)

    def _note(self) -> None:
        self.has_waited = True


def _as_model_failed(bound: Bound, error: Exception, clock: Clock, wait_probe: _WaitProbe | None) -> ModelFailed:
    """Return the failure of a request as ModelFailed. A runnable around the model may have sent several requests."""
    has_waited = wait_probe is not None and wait_probe.has_waited
    return translate(error, bound.name, clock.now(), has_waited=has_waited, asks_once=bound.runnable is None)


async def _generate_directly(
    bound: Bound, model: BaseChatModel, messages: list[BaseMessage], kwargs: Mapping[str, Any]
) -> AIMessage:
    if bound.run_manager:
        kwargs = {**kwargs, "run_manager": None}
    result = await model._agenerate(messages, stop=None, **kwargs)
    if not result.generations:
        raise ModelFailed(bound.name, "it returned no reply")
    generation = result.generations[0]
    if generation.generation_info or result.llm_output:
        reply = generation.message
        metadata = {**(result.llm_output or {}), **(generation.generation_info or {}), **reply.response_metadata}
        return cast(AIMessage, reply.model_copy(update={"response_metadata": metadata}))
    return cast(AIMessage, generation.message)


async def _with_payload(
    bound: Bound,
    model: BaseChatModel,
    messages: Sequence[BaseMessage],
    kwargs: Mapping[str, Any],
    *,
    is_direct: bool,
    streams: bool,
) -> BaseChatModel:
    """Return the model, with the request encoded if it is long.

    Listeners may change the request, so it is not encoded then.
    """
    if bound.runnable is not None:
        return model
    if not is_direct:
        return with_unchecked_payload(model, messages)
    return await bound.payloads.encode(model, messages, kwargs, streams=streams)


def _is_direct(bound: Bound, model: BaseChatModel, messages: Sequence[BaseMessage]) -> bool:
    return bound.is_direct and not _has_listeners(model) and not _has_rewritten_blocks(messages)


def _open_stream(
    bound: Bound, model: BaseChatModel, messages: list[BaseMessage], kwargs: Mapping[str, Any], *, is_direct: bool
) -> AsyncGenerator[object, None]:
    if is_direct:
        pieces: object = model._astream(messages, stop=None, **kwargs)
    else:
        pieces = (bound.runnable or model).astream(messages, **kwargs)
    return cast("AsyncGenerator[object, None]", pieces)


def _chunk(piece: object) -> AIMessageChunk:
    """Return a stream's item as a chunk: direct streams yield generations, the public way yields messages."""
    if isinstance(piece, ChatGenerationChunk):
        chunk = cast("AIMessageChunk", piece.message)
        if piece.generation_info:
            chunk.response_metadata = {**piece.generation_info, **chunk.response_metadata}
        return chunk
    if isinstance(piece, AIMessageChunk):
        return piece
    if isinstance(piece, AIMessage):
        return AIMessageChunk(**piece.model_dump(exclude={"type"}))
    raise TypeError(f"a stream of {type(piece).__name__}, not of message chunks")


def _has_listeners(model: BaseChatModel) -> bool:
    """Return whether LangChain must see this request: callbacks, tracers, a cache, a rate limiter, v1 output."""
    if model.rate_limiter is not None or (model.output_version or "v0") != "v0":
        return True
    if model.cache is not False and (model.cache or get_llm_cache() is not None):
        return True
    config = var_child_runnable_config.get()  # `ensure_config` would also copy the rest of it.
    callbacks = config.get("callbacks") if config is not None else None
    return bool(AsyncCallbackManager.configure(callbacks, model.callbacks, model.verbose).handlers)


def _has_rewritten_blocks(messages: Sequence[BaseMessage]) -> bool:
    for message in messages:
        if type(message.content) is not str:
            for block in message.content:
                if isinstance(block, dict) and block.get("type") in _REWRITTEN_BLOCKS:
                    return True
    return False


def _with_limit(bound: Bound, max_tokens: int | None) -> tuple[BaseChatModel, Mapping[str, Any]]:
    model = bound.model
    if max_tokens is None:
        return model, bound.kwargs
    if max_tokens < 1:
        raise InvalidValue("max_tokens", max_tokens, "at least 1")
    field = _limit_field(model)
    model_limit = output_limit(model)
    if field is None or (model_limit is not None and model_limit <= max_tokens):
        return model, bound.kwargs
    if field == "max_tokens" and not type(model).__module__.startswith(_LIMIT_BY_FIELD):
        return model, {**bound.kwargs, "max_tokens": max_tokens}
    return model.model_copy(update={field: max_tokens}), bound.kwargs


def _limit_field(model: BaseChatModel) -> str | None:
    fields = type(model).model_fields
    return next((name for name in _LIMIT_FIELDS if name in fields), None)


def _requires_run_manager(cls: type[BaseChatModel]) -> bool:
    parameter = inspect.signature(cls._agenerate).parameters.get("run_manager")
    return parameter is not None and parameter.default is inspect.Parameter.empty
