"""A model that plays a written dialogue, for tests and demos. It streams, calls tools, reports usage, and fails."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, NamedTuple, NoReturn

from langchain_core.language_models import BaseChatModel, LanguageModelInput
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.messages.ai import UsageMetadata
from langchain_core.messages.tool import tool_call
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langchain_core.runnables import Runnable
from langchain_core.tools import BaseTool
from pydantic import PrivateAttr

from ramet.concurrency.clock import Clock, SystemClock
from ramet.core.errors import ModelFailed
from ramet.models.errors import RETRYABLE_STATUSES
from ramet.models.made_stream import chunk, to_chunks, tool_name
from ramet.models.scripted.dialogue import Call, Cut, Dialogue, Fail, Hang, ResolvedStep, Say, Script

__all__ = ["Call", "Cut", "Fail", "Hang", "Request", "Say", "Script", "ScriptedModel", "reply_of"]


class Request(NamedTuple):
    """A request that a scripted model received."""

    messages: tuple[BaseMessage, ...]
    tools: tuple[str, ...]  #: names of the bound tools
    max_tokens: int | None


class ScriptedModel(BaseChatModel):
    """A model that plays `script` (see `ramet.models.scripted.dialogue`), one step per request, and keeps requests.

    >>> ScriptedModel([Call("grep", {"pattern": "error"}), "Found it."])  # doctest: +SKIP
    """

    model_name: str = "scripted"
    max_tokens: int | None = None
    streaming: bool = True  #: False: requests use `complete`, as with models that cannot stream
    keep_requests: bool = True  #: False for a benchmark that sends a million requests

    _dialogue: Dialogue = PrivateAttr()
    _clock: Clock = PrivateAttr()
    _requests: list[Request] = PrivateAttr(default_factory=list)

    def __init__(self, script: Script, *, clock: Clock | None = None, **fields: Any) -> None:
        super().__init__(**fields)
        self._dialogue = Dialogue(script)
        self._clock = clock or SystemClock()

    @property
    def requests(self) -> list[Request]:
        return self._requests

    @property
    def steps_left(self) -> int | None:
        """The number of steps of a script that is a list which no request has taken; None for any other script."""
        return self._dialogue.steps_left

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def bind_tools(
        self,
        tools: Sequence[dict[str, Any] | type | Callable[..., Any] | BaseTool],
        *,
        tool_choice: str | None = None,
        **kwargs: Any,
    ) -> Runnable[LanguageModelInput, AIMessage]:
        """Return this model with tools; their names are recorded with each request."""
        return self.bind(tools=[tool_name(tool) for tool in tools], **kwargs)

    # Any: LangChain's stop words and run managers, which are not used here, and what was bound to the model.
    def _generate(self, messages: list[BaseMessage], *_: Any, **kwargs: Any) -> ChatResult:
        """Answer at once: delays apply only to the asynchronous methods."""
        return self._answer(messages, self._next(messages, kwargs))

    async def _agenerate(self, messages: list[BaseMessage], *_: Any, **kwargs: Any) -> ChatResult:
        resolved_step = self._next(messages, kwargs)
        await self._delay(resolved_step)
        if isinstance(resolved_step.step, Cut | Hang):
            await self._interrupt(resolved_step.step)
        return self._answer(messages, resolved_step)

    async def _astream(self, messages: list[BaseMessage], *_: Any, **kwargs: Any) -> AsyncIterator[ChatGenerationChunk]:
        resolved_step = self._next(messages, kwargs)
        await self._delay(resolved_step)
        if isinstance(resolved_step.step, Cut | Hang):
            yield chunk(content=resolved_step.step.text[: resolved_step.step.after_chars])
            await self._interrupt(resolved_step.step)
        texts = resolved_step.step.chunks if isinstance(resolved_step.step, Say) else None
        for piece in to_chunks(self._reply(messages, resolved_step), texts or ()):
            yield piece

    def _next(self, messages: Sequence[BaseMessage], kwargs: dict[str, Any]) -> ResolvedStep:
        if self.keep_requests:
            tools = tuple(tool_name(tool) for tool in kwargs.get("tools", ()))
            self._requests.append(Request(tuple(messages), tools, kwargs.get("max_tokens", self.max_tokens)))
        return self._dialogue.next_step(messages)

    async def _delay(self, resolved_step: ResolvedStep) -> None:
        if isinstance(resolved_step.step, Say) and resolved_step.step.delay_s > 0:
            await self._clock.sleep(resolved_step.step.delay_s)

    async def _interrupt(self, step: Cut | Hang) -> NoReturn:
        if isinstance(step, Hang):
            await asyncio.get_running_loop().create_future()
        raise self._cut_error()

    def _answer(self, messages: Sequence[BaseMessage], resolved_step: ResolvedStep) -> ChatResult:
        if isinstance(resolved_step.step, Cut | Hang):
            raise self._cut_error()
        return ChatResult(generations=[ChatGeneration(message=self._reply(messages, resolved_step))])

    def _reply(self, messages: Sequence[BaseMessage], resolved_step: ResolvedStep) -> AIMessage:
        if isinstance(resolved_step.step, Fail):
            raise _failure(resolved_step.step, self.model_name)
        return reply_of(resolved_step, messages, self.model_name)

    def _cut_error(self) -> ModelFailed:
        return ModelFailed(self.model_name, "the stream was cut before its end", retryable=True)


def reply_of(resolved_step: ResolvedStep, messages: Sequence[BaseMessage], model: str) -> AIMessage:
    """Return the complete message of a step that is no failure, with usage and call ids."""
    step = resolved_step.step
    metadata = {"model_name": model}
    if isinstance(step, AIMessage):
        usage = step.usage_metadata or _usage(messages, step)
        return step.model_copy(update={"usage_metadata": usage, "response_metadata": metadata | step.response_metadata})
    if isinstance(step, str | Say):
        reply = AIMessage(step if isinstance(step, str) else step.text, response_metadata=metadata)
        reply.usage_metadata = (step.usage if isinstance(step, Say) else None) or _usage(messages, reply)
        return reply
    if isinstance(step, Fail | Cut | Hang):
        raise TypeError("a failure is no reply")
    calls = [step] if isinstance(step, Call) else list(step)
    tool_calls = [
        tool_call(name=call.tool, args=dict(call.args), id=call.id or f"call_{resolved_step.label}_{number}")
        for number, call in enumerate(calls, 1)
    ]
    reply = AIMessage("", tool_calls=tool_calls, response_metadata=metadata)
    reply.usage_metadata = _usage(messages, reply)
    return reply


def _usage(messages: Sequence[BaseMessage], reply: AIMessage) -> UsageMetadata:
    """Compute usage from texts and calls alone: one token per four characters, eight per call, more for a large one.

    Otherwise a budget would not believe it: see `ramet.models.providers.reported_usage`.
    """
    input_tokens = sum(2 + len(message.content) // 4 for message in messages)
    call_tokens = sum(max(8, 1 + len(json.dumps(call["args"], default=str)) // 100) for call in reply.tool_calls)
    output_tokens = 1 + len(reply.content) // 4 + call_tokens
    return {"input_tokens": input_tokens, "output_tokens": output_tokens, "total_tokens": input_tokens + output_tokens}


def _failure(fail: Fail, model: str) -> Exception:
    error = fail.error
    if isinstance(error, int):
        retryable = error in RETRYABLE_STATUSES or error >= 500
        return ModelFailed(
            model, "scripted failure", status=error, retryable=retryable, retry_after_s=fail.retry_after_s
        )
    return ModelFailed(model, error) if isinstance(error, str) else error
