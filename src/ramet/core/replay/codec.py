"""Decoders of events and messages for a replay.

A replay decodes only the parts that it needs and keeps the rest as raw bytes. A journal may hold hundreds of messages
of a run that no caller asks for: each message is decoded on demand.
"""

from __future__ import annotations

from typing import Any, Union, get_args

import msgspec
from msgspec import Raw, Struct

from ramet.core import events
from ramet.core.errors import InvalidValue
from ramet.core.events import AnyEvent, Event, MessageRecorded
from ramet.core.outcome import Usage

#: Types of events that do not affect a replay.
IGNORED_TAGS = frozenset(
    str(each.__struct_config__.tag)
    for each in (
        events.ModelRetried,
        events.TextDelta,
        events.MessageDiscarded,
        events.ClampEvent,
        events.PolicyDecided,
        events.IntentionRecorded,
        events.IntentionDecided,
        events.HookFailed,
        events.FolderLost,
        events.ThresholdCrossed,
        events.EndpointAsked,
        events.CommandRun,
    )
)


class ReplayMessage(Event, frozen=True, kw_only=True, tag="message_recorded"):
    """A `MessageRecorded` event as a replay reads it."""

    message: Raw
    step_id: str | None = None
    usage: Usage | None = None
    exhausted: str = ""


class StoredMessage(Struct):
    """A message of a conversation, as it is recorded."""

    kind: str  #: human | ai | system | tool
    call_id: str | None  #: the call that the message answers
    content: Raw | dict[str, Any]
    _call_positions: dict[str | None, int] | None = None

    @property
    def data(self) -> dict[str, Any]:
        """The message as plain data (`ramet.models.messages`).

        Raises InvalidValue if the message is not a JSON object.
        """
        if isinstance(self.content, dict):
            return self.content
        try:
            data: dict[str, Any] = msgspec.json.decode(self.content)
        except (msgspec.DecodeError, UnicodeError, RecursionError) as problem:
            raise _invalid_message(self.content, problem) from None
        return data

    @property
    def call_positions(self) -> dict[str | None, int]:
        """The calls that the message makes: the position of each call, by its id."""
        if self._call_positions is None:
            reply = self.data
            calls = [*(reply.get("tool_calls") or ()), *(reply.get("invalid_tool_calls") or ())]
            self._call_positions = {call.get("id"): index for index, call in enumerate(calls)}
        return self._call_positions


class _Head(Struct):
    """The fields that decide where a message belongs."""

    type: Any = None
    tool_call_id: Any = None


_head_decoder = msgspec.json.Decoder(_Head)
_event_decoder = msgspec.json.Decoder(
    Union[(ReplayMessage, *(each for each in get_args(AnyEvent) if each is not MessageRecorded))]
)


def parse_stored_message(message: Raw | dict[str, Any]) -> StoredMessage:
    """Convert a message to the form that a replay stores.

    Raises InvalidValue if raw bytes are not a JSON object.
    """
    if isinstance(message, dict):
        kind, call_id = message.get("type"), message.get("tool_call_id")
    else:
        try:
            head = _head_decoder.decode(message)
        except (msgspec.DecodeError, UnicodeError, RecursionError) as problem:
            raise _invalid_message(message, problem) from None
        kind, call_id = head.type, head.tool_call_id
    return StoredMessage(str(kind), None if call_id is None else str(call_id), message)


def insert_tool_result(conversation: list[StoredMessage], answer: StoredMessage) -> int:
    """Insert an answer after the reply that made the call, in the order of the calls.

    Answers may arrive out of order. Returns the position of the answer.
    """
    at = len(conversation)
    while at and conversation[at - 1].kind == "tool":
        at -= 1
    if at == len(conversation) or not at or conversation[at - 1].kind != "ai":
        conversation.append(answer)  # The first answer, or there is nothing that determines its place.
        return len(conversation) - 1
    positions = conversation[at - 1].call_positions
    own_position = positions.get(answer.call_id, len(positions))
    while at < len(conversation) and positions.get(conversation[at].call_id, len(positions)) <= own_position:
        at += 1
    conversation.insert(at, answer)
    return at


def decode(line: bytes) -> Event:
    """Decode the event of one line, as far as a replay needs it.

    Raises InvalidValue if the line is not an event, as `events.decode` does.
    """
    try:
        event: Event = _event_decoder.decode(line)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as problem:
        raise InvalidValue("event", line[:200], f"an event in JSON ({problem})") from None
    return event


def _invalid_message(message: Raw, problem: Exception) -> InvalidValue:
    return InvalidValue("message", bytes(message)[:200], f"a message in JSON ({problem})")
