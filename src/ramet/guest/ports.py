"""The ports of a `ToolUseContext` in a sandbox: model, record, hooks, approval, each by the host over the channel."""

from __future__ import annotations

import pathlib
import tempfile
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any

import msgspec
from langchain_core.exceptions import ContextOverflowError
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage, ToolMessage

from ramet.core import events
from ramet.core.budget import NO_LIMITS, Budget, Limits
from ramet.core.errors import InvalidValue, ModelFailed, ProtocolError
from ramet.core.events import Compacted, Event, MailDelivered, MessageRecorded
from ramet.core.ids import CallId, safe_name
from ramet.guest.async_channel import Answered, AsyncChannel
from ramet.models.json_values import sanitize
from ramet.models.messages import decode, encode
from ramet.models.relay import RelayModel, decode_chunk
from ramet.models.request_codec import SharedHistory, decode_question, encode_question, untrusted_message
from ramet.tools.context import (
    Approval,
    HookDecision,
    ModelRequest,
    SafetyDecision,
    ToolUseContext,
    current,
    current_call,
)
from ramet.wire import guest_protocol
from ramet.wire.guest_protocol import Record, Reply

#: Characters of a text that hooks are told of; what is beyond it they do not see.
MAX_TOLD = 1_000_000
#: Bytes of arguments that a tool asks a person about.
MAX_SHOWN = 256 * 1024


class ChannelModel:
    """The loop's way to the run's model."""

    def __init__(self, link: AsyncChannel, kept: SharedHistory) -> None:
        self._link, self.kept = link, kept

    async def __call__(
        self, context: ToolUseContext, request: ModelRequest
    ) -> AsyncGenerator[AIMessageChunk | AIMessage]:
        """Ask. The host streams the reply to whoever follows the run; here it comes whole.

        Of its tool calls no more may run than the host granted: the context's budget says so.
        """
        body = encode_question(self.kept, request.messages, [tool.name for tool in request.tools])
        answer = await self._link.ask(
            guest_protocol.AskModel,
            body,
            step=request.step,
            max_tokens=request.max_tokens,
            last_word=request.last_word,
            aside=request.aside,
        )
        reply = _replied(answer)
        context.last_usage = reply.usage
        if not request.aside:
            granted = NO_LIMITS if reply.granted is None else Limits(tool_calls=reply.granted)
            context.budget = Budget(granted, scope=reply.scope or context.run.path)
        yield _message(answer)

    def relay(self, context: ToolUseContext) -> RelayModel:
        """The same model as LangChain takes one, for questions beside the conversation."""

        async def ask(
            messages: Sequence[BaseMessage], tools: Sequence[dict[str, Any]], *, max_tokens: int | None, stream: bool
        ) -> AsyncGenerator[AIMessageChunk | AIMessage]:
            body = encode_question(self.kept, messages, tools)
            try:
                decode_question(self.kept, body)
            except ProtocolError as refusal:  # Said here, it is an error of the tool; said there, the end of the run.
                raise InvalidValue("question", f"{len(body)} bytes", str(refusal)) from None
            step = context.next_step()
            pieces = self._link.pieces(
                guest_protocol.AskModel, body, step=step, max_tokens=max_tokens, aside=True, stream=stream
            )
            async with aclosing(pieces):
                async for piece in pieces:
                    if isinstance(piece, Answered):
                        _replied(piece)
                        yield _message(piece)
                    else:
                        yield decode_chunk(piece)

        return RelayModel(ask)


def relay_model() -> RelayModel:
    """The run's model as LangChain takes one, for code of a tool call in a sandbox. Raises LookupError elsewhere."""
    context = current()
    if not isinstance(context.ask, ChannelModel):
        raise LookupError("no channel leads to a model from here: this run works in the host")
    return context.ask.relay(context)


def _replied(answer: Answered) -> Reply:
    """The reply. Raises ModelFailed where the question was too long: the loop makes room then."""
    reply = answer.as_(Reply)
    if reply.is_too_long:
        raise ModelFailed("the model", "the question is longer than its window") from ContextOverflowError()
    return reply


def _message(answer: Answered) -> AIMessage:
    message = decode(msgspec.json.decode(answer.body))
    if not isinstance(message, AIMessage):
        raise ProtocolError(f"a reply of type {message.type}")
    return message


class ChannelRecord:
    """Tells the host what happens, and keeps the conversation as the host has it: the same messages at the same places.

    What the host puts on record by itself, replies and the text of mail, is not told again.
    """

    def __init__(self, link: AsyncChannel, model: ChannelModel, context: ToolUseContext) -> None:
        self._link, self._model, self._context = link, model, context
        self._mail_follows = False
        self._count = 0

    def __call__(self, event: Event) -> Event:
        """Take an event of the loop."""
        match event:
            case MessageRecorded():
                self._message(event)
            case Compacted():
                context = self._context
                left = msgspec.json.encode(self._model.kept.told(context.history))
                self._tell(events.encode(event) + b"\n" + left)
                self._model.kept = SharedHistory([*context.system_messages, *context.history])
            case _:
                self._mail_follows = isinstance(event, MailDelivered)
                self._tell(events.encode(event))
        return event

    def _tell(self, body: bytes) -> None:
        self._count += 1
        self._link.tell(Record(number=self._count), body)

    def _message(self, event: MessageRecorded) -> None:
        newest = self._context.history[-1]
        if event.step_id is None and not self._mail_follows:
            if isinstance(newest, ToolMessage):
                event = msgspec.structs.replace(event, message=_sayable(newest))
            self._tell(events.encode(event))
        self._mail_follows = False
        self._model.kept.add(newest)


def _sayable(result: ToolMessage) -> dict[str, Any]:
    """A tool's result as the host takes it, without its artifact and without what a provider would have to fetch."""
    result.artifact = None
    try:
        untrusted_message(encode(result))
    except ProtocolError as refusal:
        result.content, result.status = f"The result cannot be shown to a model from a sandbox: {refusal}", "error"
    return encode(result)


class ChannelHooks:
    """The host's hooks."""

    def __init__(self, link: AsyncChannel, events: Sequence[str]) -> None:
        self._link, self._events = link, frozenset(events)

    def listens(self, event: str) -> bool:
        """Whether anything is registered for `event`."""
        return event in self._events

    async def fire(
        self, event: str, context: ToolUseContext, payload: dict[str, Any], *, matcher: str = ""
    ) -> HookDecision:
        """Let the host ask its hooks. Raises Aborted if one of them stopped the run."""
        told = {key: value[:MAX_TOLD] if isinstance(value, str) else value for key, value in payload.items()}
        body = msgspec.json.encode(sanitize(told))
        answer = await self._link.ask(guest_protocol.FireHook, body, event=event, matcher=matcher)
        word = answer.as_(guest_protocol.HookReply)
        return HookDecision(**msgspec.structs.asdict(word))


class ChannelApproval:
    """The way to a person's word."""

    def __init__(self, link: AsyncChannel) -> None:
        self._link = link

    async def __call__(self, context: ToolUseContext, *, tool: str, question: str, args: dict[str, Any]) -> Approval:
        """Ask; only a yes is a yes."""
        call = current_call.get()
        call_id = call.call_id if call is not None else None
        shown = args if len(msgspec.json.encode(sanitize(args))) <= MAX_SHOWN else {}  # The host has them, too.
        answer = await self._link.ask(guest_protocol.Approve, tool=tool, question=question, args=shown, call_id=call_id)
        word = answer.as_(guest_protocol.ApprovalReply)
        return Approval(word.allowed, word.reason)


class ChannelSafety:
    """The host's safety gate: it knows the call, and is told only which one."""

    def __init__(self, link: AsyncChannel) -> None:
        self._link = link

    async def __call__(
        self, context: ToolUseContext, *, call_id: CallId, tool: str, args: dict[str, Any]
    ) -> SafetyDecision:
        """Have it voted on."""
        decided = (await self._link.ask(guest_protocol.ProposeCall, call_id=call_id)).as_(guest_protocol.SafetyReply)
        return SafetyDecision(decided.committed, decided.reason)


class Spilled:
    """Large results of tools, in files of this sandbox that the run may read until its turn is over."""

    def __init__(self, context: ToolUseContext) -> None:
        self._context = context
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._count = 0

    def __call__(self, call_id: str, text: str) -> pathlib.Path:
        """Put a result away; returns where."""
        if self._folder is None:
            self._folder = tempfile.TemporaryDirectory(prefix="ramet-results-", ignore_cleanup_errors=True)
            self._context.read_roots = (pathlib.Path(self._folder.name),)
        self._count += 1
        file = pathlib.Path(self._folder.name) / f"{self._count}-{safe_name(call_id, 'result')}.txt"
        file.write_text(text, encoding="utf-8", errors="surrogateescape")
        return file

    def close(self) -> None:
        """Remove them."""
        if self._folder is not None:
            self._folder.cleanup()
