"""Decoders of events and messages for a replay.

A replay decodes only the parts that it needs and keeps the rest as raw bytes. A journal may hold hundreds of messages
of a run that no caller asks for: each message is decoded on demand.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, Union, get_args

import msgspec
from msgspec import Struct, field

from ramet.core import events
from ramet.core.errors import InvalidValue
from ramet.core.events import AnyEvent, Event, MessageRecorded, ToolEnded
from ramet.core.outcome import Usage

#: Types of events that do not affect a replay.
IGNORED_TAGS = frozenset(
    str(each.__struct_config__.tag)
    for each in (
        events.TextDelta,
        events.MessageDiscarded,
        events.ClampEvent,
        events.PolicyDecided,
        events.IntentionRecorded,
        events.IntentionDecided,
        events.HookFailed,
        events.RunSilent,
        events.FolderLost,
        events.ThresholdCrossed,
        events.EndpointAsked,
        events.CommandRun,
        events.ForwardRefused,
    )
)


class StoredMessage(Struct):
    """A message of a conversation, as it is recorded.

    Only the two fields that decide where the message belongs are decoded from its JSON; `accept` sets the others.
    """

    kind: Any = field(name="type", default=None)  #: human | ai | system | tool; a str after `accept`
    call_id: Any = field(name="tool_call_id", default=None)  #: the call that the message answers: a str or None
    source: Any = field(name="ramet:source", default=b"")  #: the message as data, or the line of its event
    _call_positions: Any = field(name="ramet:call_positions", default=None)

    def accept(self, source: bytes | dict[str, Any]) -> None:
        """Set where the message is, and make both fields text: another writer may have written other values there."""
        self.source, self._call_positions = source, None
        if type(self.kind) is not str:
            self.kind = str(self.kind)
        if self.call_id is not None and type(self.call_id) is not str:
            self.call_id = str(self.call_id)

    @property
    def data(self) -> dict[str, Any]:
        """The message as plain data (`ramet.models.messages`), decoded on each access.

        Raises InvalidValue if the message is not a JSON object.
        """
        if isinstance(self.source, dict):
            return self.source
        try:
            return _body_decoder.decode(self.source).message
        except (msgspec.DecodeError, UnicodeError, RecursionError) as problem:
            raise InvalidValue("message", self.source[:200], f"a message in JSON ({problem})") from None

    @property
    def call_positions(self) -> dict[str | None, int]:
        """The calls that the message makes: the position of each call, by its id."""
        if self._call_positions is None:
            reply = self.data
            calls = [*(reply.get("tool_calls") or ()), *(reply.get("invalid_tool_calls") or ())]
            self._call_positions = {call.get("id"): index for index, call in enumerate(calls)}
        positions: dict[str | None, int] = self._call_positions
        return positions


class ReplayEvent(Struct, frozen=True, kw_only=True, tag_field="type"):
    """The fields of a frequent event that a replay reads; the others are skipped, not decoded."""

    run: str
    call_id: str | None = None
    seq: int = 0
    at: datetime | None = None
    told: int = 0


class ReplayMessage(ReplayEvent, frozen=True, kw_only=True, tag="message_recorded"):
    """A `MessageRecorded` event as a replay reads it."""

    message: StoredMessage
    step_id: str | None = None
    usage: Usage | None = None
    exhausted: str = ""


class ReplayToolEnd(ReplayEvent, frozen=True, kw_only=True, tag="tool_ended"):
    """A `ToolEnded` event as a replay reads it."""


class _Body(Struct):
    """The message of a recorded event."""

    message: dict[str, Any]


_body_decoder = msgspec.json.Decoder(_Body)
_event_decoder = msgspec.json.Decoder(
    Union[
        (
            ReplayMessage,
            ReplayToolEnd,
            *(each for each in get_args(AnyEvent) if each not in (MessageRecorded, ToolEnded)),
        )
    ]
)


def parse_stored_message(message: dict[str, Any]) -> StoredMessage:
    """Convert a message to the form that a replay stores."""
    stored = StoredMessage(message.get("type"), message.get("tool_call_id"))
    stored.accept(message)
    return stored


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


def decode(line: bytes) -> Event | ReplayEvent:
    """Decode the event of one line, as far as a replay needs it.

    Raises InvalidValue if the line is not an event.
    """
    try:
        event: Event | ReplayEvent = _event_decoder.decode(line)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as problem:
        raise InvalidValue("event", line[:200], f"an event in JSON ({problem})") from None
    if type(event) is ReplayMessage:
        event.message.accept(line)
    return event
