"""The ports of a `ToolUseContext` in a sandbox: model, record, hooks, approval, each provided over the channel."""

from __future__ import annotations

import pathlib
import tempfile
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from typing import Any

import msgspec
from langchain_core.exceptions import ContextOverflowError
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage, ToolMessage

from ramet.core import events
from ramet.core.budget import Budget
from ramet.core.errors import InvalidValue, ModelFailed, ProtocolError
from ramet.core.events import Compacted, Event, MailDelivered, MessageRecorded
from ramet.core.ids import CallId, safe_name
from ramet.core.limits import NO_LIMITS, Limits
from ramet.core.media.blocks import without_data
from ramet.guest.async_channel import AsyncChannel, RawAnswer
from ramet.models.json_values import sanitize
from ramet.models.messages import decode, encode
from ramet.models.relay import RelayModel, decode_chunk
from ramet.models.request_codec import SharedHistory, decode_request, encode_request, untrusted_message
from ramet.tools.context import ToolUseContext, current, current_call
from ramet.tools.decisions import Approval, HookDecision, SafetyDecision
from ramet.tools.model_request import ModelRequest
from ramet.wire.guest_protocol import answer_data, guest_to_host
from ramet.wire.guest_protocol.answer_data import Reply
from ramet.wire.guest_protocol.guest_to_host import Record

#: Characters of a text that hooks receive; the rest is not sent.
MAX_HOOK_TEXT = 1_000_000
#: Bytes of arguments that are shown to a person for an approval.
MAX_SHOWN = 256 * 1024


class ChannelModel:
    """The loop's access to the run's model."""

    def __init__(self, link: AsyncChannel, history: SharedHistory) -> None:
        self._link, self.history = link, history

    async def __call__(
        self, context: ToolUseContext, request: ModelRequest
    ) -> AsyncGenerator[AIMessageChunk | AIMessage]:
        """Send a request.

        The host streams the reply to readers that follow the run; here the reply arrives whole. At most the granted
        number of its tool calls may run: the context's budget says so.
        """
        body = encode_request(self.history, request.messages, [tool.name for tool in request.tools])
        answer = await self._link.ask(
            guest_to_host.AskModel,
            body,
            step=request.step,
            max_tokens=request.max_tokens,
            last_word=request.is_final_answer,
            aside=request.is_side_request,
        )
        reply = _reply_of(answer)
        context.last_usage = reply.usage
        if not request.is_side_request:
            limits = NO_LIMITS if reply.granted is None else Limits(tool_calls=reply.granted)
            context.budget = Budget(limits, scope=reply.scope or context.run.path)
        yield _message(answer)

    def relay(self, context: ToolUseContext) -> RelayModel:
        """Return the same model in LangChain's form, for requests outside the conversation."""

        async def ask(
            messages: Sequence[BaseMessage], tools: Sequence[dict[str, Any]], *, max_tokens: int | None, stream: bool
        ) -> AsyncGenerator[AIMessageChunk | AIMessage]:
            body = encode_request(self.history, messages, tools)
            try:
                decode_request(self.history, body)
            except ProtocolError as refusal:  # Here an error of the tool; on the host the end of the run.
                raise InvalidValue("question", f"{len(body)} bytes", str(refusal)) from None
            step = context.next_step()
            pieces = self._link.pieces(
                guest_to_host.AskModel, body, step=step, max_tokens=max_tokens, aside=True, stream=stream
            )
            async with aclosing(pieces):
                async for piece in pieces:
                    if isinstance(piece, RawAnswer):
                        _reply_of(piece)
                        yield _message(piece)
                    else:
                        yield decode_chunk(piece)

        return RelayModel(ask)


def relay_model() -> RelayModel:
    """Return the run's model in LangChain's form, for code of a tool call in a sandbox.

    Raises LookupError elsewhere.
    """
    context = current()
    if not isinstance(context.ask, ChannelModel):
        raise LookupError("there is no channel to a model here: this run works in the host")
    return context.ask.relay(context)


def _reply_of(answer: RawAnswer) -> Reply:
    """Return the reply.

    Raises ModelFailed if the request was too long: the loop then makes room.
    """
    reply = answer.as_(Reply)
    if reply.is_too_long:
        raise ModelFailed("the model", "the request is longer than its context window") from ContextOverflowError()
    return reply


def _message(answer: RawAnswer) -> AIMessage:
    message = decode(msgspec.json.decode(answer.body))
    if not isinstance(message, AIMessage):
        raise ProtocolError(f"a reply of type {message.type}")
    return message


class ChannelRecord:
    """A recorder that reports events to the host, and keeps the same messages at the same places as the host.

    Events that the host records by itself, replies and the text of mail, are not reported again.
    """

    def __init__(self, link: AsyncChannel, model: ChannelModel, context: ToolUseContext) -> None:
        self._link, self._model, self._context = link, model, context
        self._mail_follows = False
        self._count = 0

    def __call__(self, event: Event) -> Event:
        """Record an event of the loop."""
        match event:
            case MessageRecorded():
                self._message(event)
            case Compacted():
                context = self._context
                data = msgspec.json.encode(self._model.history.encode_messages(context.history))
                self._send_record(events.encode(event) + b"\n" + data)
                self._model.history = SharedHistory([*context.system_messages, *context.history])
            case _:
                self._mail_follows = isinstance(event, MailDelivered)
                self._send_record(events.encode(event))
        return event

    def _send_record(self, body: bytes) -> None:
        self._count += 1
        self._link.send(Record(number=self._count), body)

    def _message(self, event: MessageRecorded) -> None:
        newest = self._context.history[-1]
        if event.step_id is None and not self._mail_follows:
            if isinstance(newest, ToolMessage):
                event = msgspec.structs.replace(event, message=_encodable_result(newest))
            self._send_record(events.encode(event))
            if isinstance(newest, ToolMessage):
                newest.content = without_data(newest.content)  # The host has the bytes, and sends them to the model.
        self._mail_follows = False
        history, place = self._context.history, self._model.history.add(newest) - len(self._context.system_messages)
        if place < len(history) - 1:  # An answer to a call before one that was answered earlier.
            history.insert(place, history.pop())


def _encodable_result(result: ToolMessage) -> dict[str, Any]:
    """Return a tool's result in a form that the host accepts.

    The artifact, and content that a provider would have to fetch, are left out.
    """
    result.artifact = None
    try:
        untrusted_message(encode(result))
    except ProtocolError as refusal:
        result.content, result.status = f"The result cannot be shown to a model from a sandbox: {refusal}", "error"
    return encode(result)


class ChannelHooks:
    """The host's hooks, called over the channel."""

    def __init__(self, link: AsyncChannel, events: Sequence[str]) -> None:
        self._link, self._events = link, frozenset(events)

    def listens(self, event: str) -> bool:
        return event in self._events

    async def fire(
        self, event: str, context: ToolUseContext, payload: dict[str, Any], *, matcher: str = ""
    ) -> HookDecision:
        """Have the host run its hooks.

        Raises Aborted if a hook stopped the run.
        """
        fields = {key: value[:MAX_HOOK_TEXT] if isinstance(value, str) else value for key, value in payload.items()}
        body = msgspec.json.encode(sanitize(fields))
        answer = await self._link.ask(guest_to_host.FireHook, body, event=event, matcher=matcher)
        reply = answer.as_(answer_data.HookReply)
        return HookDecision(**msgspec.structs.asdict(reply))


async def approve(
    link: AsyncChannel,
    context: ToolUseContext,
    *,
    tool: str,
    question: str,
    args: dict[str, Any],
    check: Callable[[str], object] | None = None,
    can_be_for_run: bool = False,
) -> Approval:
    """Ask a person for an approval; only an explicit yes allows the call. No text can be asked for.

    The host decides by itself whether an answer can be for the whole run.
    """
    call = current_call.get()
    call_id = call.call_id if call is not None else None
    shown_args = args if len(msgspec.json.encode(sanitize(args))) <= MAX_SHOWN else {}  # The host has them, too.
    answer = await link.ask(guest_to_host.Approve, tool=tool, question=question, args=shown_args, call_id=call_id)
    reply = answer.as_(answer_data.ApprovalReply)
    return Approval(reply.allowed, reply.reason)


async def ask_safety_gate(
    link: AsyncChannel, context: ToolUseContext, *, call_id: CallId, tool: str, args: dict[str, Any]
) -> SafetyDecision:
    """Have the host's safety gate vote on a call, which the host knows: it receives only the id."""
    reply = (await link.ask(guest_to_host.ProposeCall, call_id=call_id)).as_(answer_data.SafetyReply)
    return SafetyDecision(reply.committed, reply.reason)


class ResultFiles:
    """Large results of tools, in files of this sandbox that the run may read until its turn has ended."""

    def __init__(self, context: ToolUseContext) -> None:
        self._context = context
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._count = 0

    def __call__(self, call_id: str, text: str) -> pathlib.Path:
        """Store a result in a file, and return its path."""
        if self._folder is None:
            self._folder = tempfile.TemporaryDirectory(prefix="ramet-results-", ignore_cleanup_errors=True)
            self._context.read_roots = (*self._context.read_roots, pathlib.Path(self._folder.name))
        self._count += 1
        file = pathlib.Path(self._folder.name) / f"{self._count}-{safe_name(call_id, 'result')}.txt"
        file.write_text(text, encoding="utf-8", errors="surrogateescape")
        return file

    def close(self) -> None:
        if self._folder is not None:
            self._folder.cleanup()
