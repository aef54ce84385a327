"""The one vocabulary of loop, journal, screens and subscribers.

Every event says whose it is: `root`, `run`, `parent`, `agent`, `path`, `depth`, and the tool call it belongs to where
there is one. `seq` orders the events of one tree; 0 means provisional (text deltas), superseded by what is recorded.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

import msgspec
from msgspec import Struct

from ramet.core.errors import InvalidValue
from ramet.core.outcome import ErrorInfo, Result, Usage


class Event(Struct, frozen=True, kw_only=True, tag_field="type", omit_defaults=True):
    """What all events carry."""

    root: str
    run: str
    path: str
    agent: str  #: name of the definition that runs
    depth: int = 0
    parent: str | None = None
    parent_call: str | None = None  #: the tool call of the parent that gave birth to this run
    call_id: str | None = None  #: the tool call that this event is about
    seq: int = 0
    at: datetime | None = None


class RunSpawned(Event, frozen=True, kw_only=True, tag="run_spawned"):
    """A run was born: admitted, reserved and about to start."""

    name: str
    prompt: str = ""
    description: str = ""
    mode: str = "fresh"  #: fresh | fork
    model: str = ""
    tools: tuple[str, ...] = ()
    background: bool = False
    detached: bool = False
    session: str | None = None


class StateChanged(Event, frozen=True, kw_only=True, tag="state_changed"):
    """A run moved in its lifecycle."""

    state: str
    why: str = ""


class RunEnded(Event, frozen=True, kw_only=True, tag="run_ended"):
    """A run's end and its result. A finished agent that gets mail starts again and ends again."""

    result: Result


class TurnStarted(Event, frozen=True, kw_only=True, tag="turn_started"):
    """One prompt, or one wake, is being worked on."""

    turn: int


class TurnEnded(Event, frozen=True, kw_only=True, tag="turn_ended"):
    """The answer to a prompt stands."""

    turn: int
    status: str
    usage: Usage = Usage()


class ModelAsked(Event, frozen=True, kw_only=True, tag="model_asked"):
    """A request is about to be made; what it may cost is reserved."""

    step_id: str
    model: str
    attempt: int = 1
    reserved_tokens: int = 0


class ModelRetried(Event, frozen=True, kw_only=True, tag="model_retried"):
    """A provider failed and is asked again after `wait_s`."""

    step_id: str
    model: str
    reason: str
    attempt: int
    wait_s: float = 0.0


class TextDelta(Event, frozen=True, kw_only=True, tag="text_delta"):
    """Some text of a message that is not yet complete: provisional."""

    step_id: str
    text: str


class MessageDiscarded(Event, frozen=True, kw_only=True, tag="message_discarded"):
    """The deltas of this step are void: the stream broke; the recorded message, if one comes, supersedes them."""

    step_id: str
    reason: str = ""


class MessageRecorded(Event, frozen=True, kw_only=True, tag="message_recorded"):
    """A message of the conversation, as data (`ramet.models.messages`). Usage is set on a model's own."""

    message: dict[str, Any]
    step_id: str | None = None
    usage: Usage | None = None


class ToolStarted(Event, frozen=True, kw_only=True, tag="tool_started"):
    """A tool call begins: intent is on record before the effect."""

    tool: str
    step_id: str
    args: dict[str, Any] = {}


class ToolEnded(Event, frozen=True, kw_only=True, tag="tool_ended"):
    """A tool call was answered: ok, error, denied, or cancelled."""

    tool: str
    status: str
    preview: str = ""
    elapsed_ms: float = 0.0
    spilled_to: str | None = None


class MailPushed(Event, frozen=True, kw_only=True, tag="mail_pushed"):
    """Mail for this run was accepted."""

    mail_id: str
    sender: str
    kind: str
    text: str = ""


class MailDelivered(Event, frozen=True, kw_only=True, tag="mail_delivered"):
    """Mail went into this run's conversation."""

    mail_id: str
    sender: str
    kind: str


class ClampEvent(Event, frozen=True, kw_only=True, tag="clamped"):
    """A limit was asked above the parent's and made the parent's."""

    field: str
    asked: float
    given: float


class BudgetRefused(Event, frozen=True, kw_only=True, tag="budget_refused"):
    """A reservation did not fit; `scope` is the run whose limit fired."""

    resource: str
    asked: float
    left: float
    scope: str


class ApprovalAsked(Event, frozen=True, kw_only=True, tag="approval_asked"):
    """A call waits for a person's word; answered by `approval_id`."""

    approval_id: str
    tool: str
    question: str
    args: dict[str, Any] = {}


class ApprovalAnswered(Event, frozen=True, kw_only=True, tag="approval_answered"):
    """The word came, or the deadline did, which means no."""

    approval_id: str
    allowed: bool
    reason: str = ""


class HookFailed(Event, frozen=True, kw_only=True, tag="hook_failed"):
    """A hook could not answer. On a gate that means no; elsewhere the work goes on."""

    hook: str
    event: str
    reason: str


class Compacted(Event, frozen=True, kw_only=True, tag="compacted"):
    """A conversation was shortened before its window was full."""

    before_messages: int
    after_messages: int
    before_tokens: int
    after_tokens: int
    summary: str = ""


class Notice(Event, frozen=True, kw_only=True, tag="notice"):
    """Something a person should know that is no one's result."""

    text: str
    error: ErrorInfo | None = None


AnyEvent = (
    RunSpawned
    | StateChanged
    | RunEnded
    | TurnStarted
    | TurnEnded
    | ModelAsked
    | ModelRetried
    | TextDelta
    | MessageDiscarded
    | MessageRecorded
    | ToolStarted
    | ToolEnded
    | MailPushed
    | MailDelivered
    | ClampEvent
    | BudgetRefused
    | ApprovalAsked
    | ApprovalAnswered
    | HookFailed
    | Compacted
    | Notice
)

_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(AnyEvent)


def encode(event: Event) -> bytes:
    """One event as one line of JSON, without the newline; it can be read again, or InvalidValue is raised.

    Text that is no Unicode (half of a pair of surrogates) is written as U+FFFD, and NaN inside plain data as null.
    """
    try:
        try:
            line = _encoder.encode(event)
        except UnicodeEncodeError:
            line = _encoder.encode(_unicode(msgspec.to_builtins(event)))
    except (TypeError, RecursionError) as problem:
        raise InvalidValue("event", type(event).__name__, f"data that JSON can hold ({problem})") from None
    if b":null" in line:
        decode(line)  # NaN and the infinities become null, which a field that must be a number does not take.
    return line


def decode(line: bytes | str) -> Event:
    """The event of one line; raises InvalidValue for what is not one, of an unknown type included."""
    try:
        event: Event = _decoder.decode(line)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as problem:
        raise InvalidValue("event", line[:200], f"an event in JSON ({problem})") from None
    return event


def _unicode(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    if isinstance(value, dict):
        return {_unicode(key): _unicode(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_unicode(item) for item in value]
    return value
