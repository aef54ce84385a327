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
from ramet.core.safety import Vote


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
    told: int = 0  #: its number among what the run's sandbox told, where that can outlive its kernel


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
    birth: dict[str, Any] = {}  #: what it takes to go on with it in another process; empty where nothing is durable


class RunResumed(Event, frozen=True, kw_only=True, tag="run_resumed"):
    """A run goes on in another process than the one that it was in; `cut` are calls that were under way then."""

    turn: int
    cut: tuple[str, ...] = ()  #: ids of tool calls of which nobody knows whether they took effect


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
    reserved_usd: float = 0.0
    requests: int = 1  #: that this attempt may make


class ModelCharged(Event, frozen=True, kw_only=True, tag="model_charged"):
    """What was used that the conversation does not show.

    By a request that brought no word of it: it failed, or was an aside, such as a summary. Or by calls of a reply that
    nobody told of, and that may have run in a sandbox.
    """

    step_id: str
    usage: Usage


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
    exhausted: str = ""  #: of a last word: the resource of the budget that is used up


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
    asked: str = ""  #: the request of a sandbox that sent it, as no other of its tree's
    notify: str = ""  #: id of the run that is told, once, when this one rests or has ended after it


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


class PolicyDecided(Event, frozen=True, kw_only=True, tag="policy_decided"):
    """A policy adapter was asked about a birth: on the record of the run that asked for it, or of the root itself."""

    adapter: str
    verdict: str  #: allow | narrow | refuse
    reason: str = ""
    child: str = ""  #: name of the definition that was to be born
    policy: dict[str, Any] = {}  #: what the newborn may do at most, as the adapter says
    limits: dict[str, Any] = {}  #: of its budget, likewise
    failed: bool = False  #: the adapter gave no answer that can be used


class BudgetRefused(Event, frozen=True, kw_only=True, tag="budget_refused"):
    """A reservation did not fit; `scope` is the run whose limit fired."""

    resource: str
    asked: float
    left: float
    scope: str


class AgentCreated(Event, frozen=True, kw_only=True, tag="agent_created"):
    """This run wrote an agent down; `commit` is that of the state that has its recipe."""

    name: str
    handle: str
    commit: str
    dropped: tuple[str, ...] = ()  #: capabilities that were asked for and that its creator has not


class StateCommitted(Event, frozen=True, kw_only=True, tag="state_committed"):
    """This run committed to a branch of a state, or merged another one; the commit is durable. May be told twice."""

    state: str
    branch: str
    commit: str
    keys: int  #: how many it set, removed, or took in


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


class IntentionRecorded(Event, frozen=True, kw_only=True, tag="intention_recorded"):
    """A call came to the safety gate: it runs only if a decision commits it, by this version of that policy."""

    tool: str
    args: dict[str, Any] = {}
    policy: str = ""
    version: int = 0  #: 0: a policy that is in no store, or that could not be read


class IntentionDecided(Event, frozen=True, kw_only=True, tag="intention_decided"):
    """An intention was committed or aborted: by these votes, in the order in which they were cast."""

    tool: str
    intention: int  #: number (`seq`) of its event
    committed: bool
    reason: str = ""
    votes: tuple[Vote, ...] = ()


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
    kept: tuple[int | dict[str, Any], ...] = ()  #: the conversation since: places of what was kept, and new messages


class SandboxStarted(Event, frozen=True, kw_only=True, tag="sandbox_started"):
    """A process was started for this run, or adopted: where, and what stands between it and the host."""

    backend: str
    level: str
    attempt: int = 1
    policy: dict[str, Any] = {}  #: what it has, without the values of variables and secrets
    sandbox: dict[str, Any] = {}  #: where another kernel finds it, if it can outlive this one
    adopted: bool = False  #: it was not started now, but had outlived the kernel that had started it


class FolderLost(Event, frozen=True, kw_only=True, tag="folder_lost"):
    """The folder of a sandboxed run was not there any more; it goes on in an empty one, and its agent is told so."""

    part: str = "folder"  #: all of it, with its checkpoint and what it had printed, or its "workspace"


class ClockStepped(Event, frozen=True, kw_only=True, tag="clock_stepped"):
    """Somebody set the machine's clock since the event before: times on both sides of this are of two clocks."""

    by_s: float  #: forward; back if it is negative


class RunRetried(Event, frozen=True, kw_only=True, tag="run_retried"):
    """An attempt failed, and another is made in a new sandbox after `wait_s`."""

    attempt: int
    status: str
    reason: str = ""
    wait_s: float = 0.0


class ResultReused(Event, frozen=True, kw_only=True, tag="result_reused"):
    """A run did no work: an equal call of the same definition had left its result not long ago."""

    made_by: str  #: id of the run that left it
    made_at: datetime


class ThresholdCrossed(Event, frozen=True, kw_only=True, tag="threshold_crossed"):
    """A sandbox uses most of what it has: memory in MiB, or processor time in cores."""

    resource: str
    used: float
    limit: float


class EndpointAsked(Event, frozen=True, kw_only=True, tag="endpoint_asked"):
    """A sandbox wanted to reach an endpoint, and was let or not."""

    host: str
    port: int
    allowed: bool
    reason: str = ""


class CommandRun(Event, frozen=True, kw_only=True, tag="command_run"):
    """Its owner ran a command inside this run's sandbox."""

    argv: tuple[str, ...]
    code: int


class Notice(Event, frozen=True, kw_only=True, tag="notice"):
    """Something a person should know that is no one's result."""

    text: str
    error: ErrorInfo | None = None


AnyEvent = (
    RunSpawned
    | RunResumed
    | StateChanged
    | RunEnded
    | TurnStarted
    | TurnEnded
    | ModelAsked
    | ModelCharged
    | ModelRetried
    | TextDelta
    | MessageDiscarded
    | MessageRecorded
    | ToolStarted
    | ToolEnded
    | MailPushed
    | MailDelivered
    | ClampEvent
    | PolicyDecided
    | BudgetRefused
    | AgentCreated
    | StateCommitted
    | ApprovalAsked
    | ApprovalAnswered
    | IntentionRecorded
    | IntentionDecided
    | HookFailed
    | Compacted
    | SandboxStarted
    | FolderLost
    | ClockStepped
    | RunRetried
    | ResultReused
    | ThresholdCrossed
    | EndpointAsked
    | CommandRun
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
