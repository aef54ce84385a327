"""The event types that loop, journal, screens and subscribers share.

Every event names its subject: `root`, `run`, `parent`, `agent`, `path`, `depth`, and its tool call if there is one.
`seq` orders the events of one tree. The `seq` of a provisional event (a text delta) is 0; the recorded events supersede
it.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from ramet.core.errors import InvalidValue
from ramet.core.outcome import ErrorInfo, Result, Usage
from ramet.core.safety import Vote


class Event(Struct, frozen=True, kw_only=True, tag_field="type", omit_defaults=True):
    """The fields that all events have."""

    root: str
    run: str
    path: str
    agent: str  #: name of the definition that runs
    depth: int = 0
    parent: str | None = None
    parent_call: str | None = None  #: the tool call of the parent that spawned this run
    call_id: str | None = None  #: the tool call that this event is about
    seq: int = 0
    at: datetime | None = None
    told: int = 0  #: its number among the reports of the run's sandbox, if that sandbox can outlive its kernel


class RunSpawned(Event, frozen=True, kw_only=True, tag="run_spawned"):
    """A run was spawned: admitted, with its resources reserved, and about to start."""

    name: str
    prompt: str = ""
    description: str = ""
    mode: str = "fresh"  #: fresh | fork
    model: str = ""
    tools: tuple[str, ...] = ()
    background: bool = False
    detached: bool = False
    session: str | None = None
    window: int = 0  #: tokens of its model's context window; 0: unknown
    birth: dict[str, Any] = {}  #: what another process needs to continue the run; empty where nothing is durable


class RunResumed(Event, frozen=True, kw_only=True, tag="run_resumed"):
    """A run continues in another process; `cut` lists the calls that were in progress before."""

    turn: int
    cut: tuple[str, ...] = ()  #: ids of tool calls of which it is unknown whether they took effect


class StateChanged(Event, frozen=True, kw_only=True, tag="state_changed"):
    """A run changed its state in its lifecycle."""

    state: str
    why: str = ""


class RunEnded(Event, frozen=True, kw_only=True, tag="run_ended"):
    """The end of a run, with its result. A finished agent that receives mail starts again and ends again.

    Until it is published, lists and objects in `result.value` may be JSON text (`msgspec.Raw`); readers get data.
    """

    result: Result


class TurnStarted(Event, frozen=True, kw_only=True, tag="turn_started"):
    """A turn started, because of a prompt or because the run woke."""

    turn: int


class TurnEnded(Event, frozen=True, kw_only=True, tag="turn_ended"):
    """A turn ended; its answer is complete."""

    turn: int
    status: str
    usage: Usage = Usage()


class TimeStopped(Event, frozen=True, kw_only=True, tag="time_stopped"):
    """The time of a run that has a time limit stands: the run, and all runs below it, can only wait."""


class TimeStarted(Event, frozen=True, kw_only=True, tag="time_started"):
    """The time of a run goes on, after it stood, or in another process between two turns."""


class ModelAsked(Event, frozen=True, kw_only=True, tag="model_asked"):
    """A request to a model is about to be sent; its possible cost is reserved."""

    step_id: str
    model: str
    attempt: int = 1
    reserved_tokens: int = 0
    reserved_usd: float = 0.0
    requests: int = 1  #: number of requests that this attempt may make


class ModelCharged(Event, frozen=True, kw_only=True, tag="model_charged"):
    """Usage that the conversation does not show: of a failed request, an aside, or calls that no event reports."""

    step_id: str
    usage: Usage


class ModelRetried(Event, frozen=True, kw_only=True, tag="model_retried"):
    """A provider failed; the request is sent again after `wait_s` seconds."""

    step_id: str
    model: str
    reason: str
    attempt: int
    wait_s: float = 0.0


class QuotaReached(Event, frozen=True, kw_only=True, tag="quota_reached"):
    """The provider of a model refuses all requests until a stated time: the run waits, and its next request follows."""

    model: str
    until: datetime
    wait_s: float  #: seconds until then


class TextDelta(Event, frozen=True, kw_only=True, tag="text_delta"):
    """A part of the text of an incomplete message; provisional."""

    step_id: str
    text: str


class MessageDiscarded(Event, frozen=True, kw_only=True, tag="message_discarded"):
    """The text deltas of this step are void: the stream broke. A message that is recorded later supersedes them."""

    step_id: str
    reason: str = ""


class MessageRecorded(Event, frozen=True, kw_only=True, tag="message_recorded"):
    """A message of the conversation, as data (`ramet.models.messages`). Usage is set on messages of a model."""

    message: dict[str, Any]
    step_id: str | None = None
    usage: Usage | None = None
    exhausted: str = ""  #: on a last answer: the resource of the budget that is used up


class ToolStarted(Event, frozen=True, kw_only=True, tag="tool_started"):
    """A tool call begins; the intent is recorded before the effect."""

    tool: str
    step_id: str
    args: dict[str, Any] = {}
    repeatable: bool = False  #: a call to an MCP server that begins again if a process ends in the middle of it


class ToolEnded(Event, frozen=True, kw_only=True, tag="tool_ended"):
    """A tool call was answered: ok, error, denied, or cancelled."""

    tool: str
    status: str
    preview: str = ""
    elapsed_ms: float = 0.0
    spilled_to: str | None = None


class ToolProgressed(Event, frozen=True, kw_only=True, tag="tool_progressed"):
    """A server reported how far a call is: `done`, in units of its own, of `total` if that is known."""

    tool: str
    done: float
    total: float | None = None
    text: str = ""


class MailPushed(Event, frozen=True, kw_only=True, tag="mail_pushed"):
    """Mail for this run was accepted."""

    mail_id: str
    sender: str
    kind: str
    text: str = ""
    asked: str = ""  #: id of the sandbox's request that sent it, unique in its tree
    notify: str = ""  #: id of the run to notify, once, when this run is idle or has ended afterwards
    request: str = ""  #: what it requests of this run: plan or shutdown; `mail_id` is the id of the request
    waits: str = ""  #: the call of the sender that waits for the answer


class RequestAnswered(Event, frozen=True, kw_only=True, tag="request_answered"):
    """The answer of this run to the request of its lead, or of a peer that it leads."""

    request_id: str
    approved: bool
    text: str = ""


class MailDelivered(Event, frozen=True, kw_only=True, tag="mail_delivered"):
    """Mail was added to this run's conversation."""

    mail_id: str
    sender: str
    kind: str


class MonitorStarted(Event, frozen=True, kw_only=True, tag="monitor_started"):
    """The start of a command that this run monitors: its lines come as mail."""

    monitor: str
    command: str
    asked: str = ""  #: id of the sandbox's request that started it, unique in its tree


class MonitorEnded(Event, frozen=True, kw_only=True, tag="monitor_ended"):
    """A command that this run monitored has ended, or was stopped."""

    monitor: str


class ClampEvent(Event, frozen=True, kw_only=True, tag="clamped"):
    """A requested limit was above the parent's limit, and was set to the parent's."""

    field: str
    asked: float
    given: float


class PolicyDecided(Event, frozen=True, kw_only=True, tag="policy_decided"):
    """A policy adapter decided on a spawn: recorded for the run that requested it, or for the root itself."""

    adapter: str
    verdict: str  #: allow | narrow | refuse
    reason: str = ""
    child: str = ""  #: name of the definition that was to be spawned
    policy: dict[str, Any] = {}  #: the most that the new run may do, according to the adapter
    limits: dict[str, Any] = {}  #: limits of its budget, likewise
    failed: bool = False  #: the adapter gave no usable answer


class BudgetRefused(Event, frozen=True, kw_only=True, tag="budget_refused"):
    """A reservation did not fit; `scope` is the run whose limit fired."""

    resource: str
    asked: float
    left: float
    scope: str


class ForwardRefused(Event, frozen=True, kw_only=True, tag="forward_refused"):
    """A model request of a program was refused with 429: recorded for the first one to each model."""

    model: str
    by: str  #: provider, or host: too many requests were under way
    wait_s: float | None = None  #: seconds after which the provider accepts requests again, as it says


class LimitPaused(Event, frozen=True, kw_only=True, tag="limit_paused"):
    """A request did not fit a limit that pauses: it waits until the limit of `scope` is raised, or enough returns."""

    resource: str
    asked: float
    left: float
    scope: str  #: the path of the run whose limit it is


class LimitsRaised(Event, frozen=True, kw_only=True, tag="limits_raised"):
    """The owner raised limits of this run; a repeated request with the same key raises nothing."""

    add: dict[str, int | float]  #: by name of the limit
    key: str = ""


class RunSilent(Event, frozen=True, kw_only=True, tag="run_silent"):
    """A watched run has had no event for `silent_s` seconds, and waits for nothing known that would explain it."""

    silent_s: float
    waits_for: str = ""  #: model or tool; empty if it works
    action: str = "report"  #: what happens besides this event (`ramet.core.liveness.watch_settings`)


class RunLooping(Event, frozen=True, kw_only=True, tag="run_looping"):
    """The model of a watched run made the same call `times` times in a row, and got the same result each time."""

    tool: str
    times: int
    action: str = "report"  #: as in `RunSilent`


class RunPaused(Event, frozen=True, kw_only=True, tag="run_paused"):
    """A person paused the run and the runs below it: what is under way ends, and nothing new begins."""

    reason: str = ""
    now: bool = False  #: work under way was cut, too


class PauseEnded(Event, frozen=True, kw_only=True, tag="pause_ended"):
    """A person let the run go on, and the runs below it that are not paused themselves."""


class MovedToBackground(Event, frozen=True, kw_only=True, tag="moved_to_background"):
    """The parent of the run waited for it long enough: it works on, and a notice reports its end."""


class AgentCreated(Event, frozen=True, kw_only=True, tag="agent_created"):
    """The run created an agent; `commit` is the commit of the state that holds the recipe."""

    name: str
    handle: str
    commit: str
    dropped: tuple[str, ...] = ()  #: capabilities that were requested and that the creator does not have


class StateCommitted(Event, frozen=True, kw_only=True, tag="state_committed"):
    """The run committed durably to a branch of a state, or merged another branch. The event may be reported twice."""

    state: str
    branch: str
    commit: str
    keys: int  #: number of keys that the commit set, removed, or took in by a merge


class ApprovalAsked(Event, frozen=True, kw_only=True, tag="approval_asked"):
    """A call waits for the answer of a person; the answer names `approval_id`."""

    approval_id: str
    tool: str
    question: str
    args: dict[str, Any] = {}
    for_run: str = ""  #: later calls of the run that the same answer can allow; "": none


class ApprovalAnswered(Event, frozen=True, kw_only=True, tag="approval_answered"):
    """A person answered, or the deadline passed, which denies the call."""

    approval_id: str
    allowed: bool
    reason: str = ""
    for_run: bool = False  #: it also allows the later calls of the run that its question names


class IntentionRecorded(Event, frozen=True, kw_only=True, tag="intention_recorded"):
    """A call reached the safety gate, and runs only if a decision commits it, by this version of that policy."""

    tool: str
    args: dict[str, Any] = {}
    policy: str = ""
    version: int = 0  #: 0: a policy that is in no store, or that could not be read


class IntentionDecided(Event, frozen=True, kw_only=True, tag="intention_decided"):
    """An intention was committed or aborted by these votes, in the order in which they were cast."""

    tool: str
    intention: int  #: number (`seq`) of its event
    committed: bool
    reason: str = ""
    votes: tuple[Vote, ...] = ()


class HookFailed(Event, frozen=True, kw_only=True, tag="hook_failed"):
    """A hook could not answer: at a gate this denies the action; elsewhere the work continues."""

    hook: str
    event: str
    reason: str


class Compacted(Event, frozen=True, kw_only=True, tag="compacted"):
    """A conversation was shortened before its context window was full."""

    before_messages: int
    after_messages: int
    before_tokens: int
    after_tokens: int
    summary: str = ""
    kept: tuple[int | dict[str, Any], ...] = ()  #: new conversation: positions of retained messages, new messages


class ToolsLoaded(Event, frozen=True, kw_only=True, tag="tools_loaded"):
    """A model found tools of MCP servers: it sees them from now on, in later turns too."""

    tools: tuple[str, ...]  #: their names


class SandboxStarted(Event, frozen=True, kw_only=True, tag="sandbox_started"):
    """A process was started or adopted for this run, with its backend and isolation level."""

    backend: str
    level: str
    attempt: int = 1
    policy: dict[str, Any] = {}  #: the granted policy, without the values of variables and secrets
    sandbox: dict[str, Any] = {}  #: where another kernel finds it, if it can outlive this one
    adopted: bool = False  #: the sandbox was not started now: it outlived the kernel that had started it


class SandboxFrozen(Event, frozen=True, kw_only=True, tag="sandbox_frozen"):
    """The process of a paused run was frozen: it holds its memory, and does nothing until the run goes on."""

    memory_mb: float


class SandboxGivenUp(Event, frozen=True, kw_only=True, tag="sandbox_given_up"):
    """The process of a paused conversation, which could outlive its kernel, is about to be ended; another follows."""


class FolderLost(Event, frozen=True, kw_only=True, tag="folder_lost"):
    """The folder of a sandboxed run was lost: the run continues in an empty one, and its agent is informed."""

    part: str = "folder"  #: the whole folder, with checkpoint and printed text, or only its "workspace"


class ClockStepped(Event, frozen=True, kw_only=True, tag="clock_stepped"):
    """The clock of the machine was set since the previous event: times before and after are those of two clocks."""

    by_s: float  #: forward; negative if the clock was set back


class RunRetried(Event, frozen=True, kw_only=True, tag="run_retried"):
    """An attempt failed; another attempt is made in a new sandbox after `wait_s` seconds."""

    attempt: int
    status: str
    reason: str = ""
    wait_s: float = 0.0


class ResultReused(Event, frozen=True, kw_only=True, tag="result_reused"):
    """A run did no work, because an equal call of the same definition recently left its result."""

    made_by: str  #: id of the run that left the result
    made_at: datetime


class ThresholdCrossed(Event, frozen=True, kw_only=True, tag="threshold_crossed"):
    """A sandbox uses most of a resource: memory in MiB, or processor time in cores."""

    resource: str
    used: float
    limit: float


class EndpointAsked(Event, frozen=True, kw_only=True, tag="endpoint_asked"):
    """A sandbox, or the host for a server of its run, tried to reach an endpoint, and was allowed or denied."""

    host: str
    port: int
    allowed: bool
    reason: str = ""


class PlanStep(Struct, frozen=True, kw_only=True):
    """A step of an agent's plan."""

    text: str
    status: str = ""  #: pending | in_progress | completed


class PlanUpdated(Event, frozen=True, kw_only=True, tag="plan_updated"):
    """A program of another maker has a plan, or another one than before."""

    steps: tuple[PlanStep, ...]


class SubAgentReported(Event, frozen=True, kw_only=True, tag="sub_agent_reported"):
    """A program of another maker runs an agent by itself, in this run's sandbox, or such an agent has ended."""

    sub_agent: str  #: its id with the program
    title: str = ""
    state: str  #: running | completed | failed | cancelled


class CommandRun(Event, frozen=True, kw_only=True, tag="command_run"):
    """The owner ran a command inside this run's sandbox."""

    argv: tuple[str, ...]
    code: int


class Notice(Event, frozen=True, kw_only=True, tag="notice"):
    """Information for a person that is not part of any result."""

    text: str
    error: ErrorInfo | None = None


AnyEvent = (
    RunSpawned
    | RunResumed
    | StateChanged
    | RunEnded
    | TurnStarted
    | TurnEnded
    | TimeStopped
    | TimeStarted
    | ModelAsked
    | ModelCharged
    | ModelRetried
    | QuotaReached
    | TextDelta
    | MessageDiscarded
    | MessageRecorded
    | ToolStarted
    | ToolEnded
    | ToolProgressed
    | MailPushed
    | MailDelivered
    | RequestAnswered
    | MonitorStarted
    | MonitorEnded
    | ClampEvent
    | PolicyDecided
    | BudgetRefused
    | ForwardRefused
    | LimitPaused
    | LimitsRaised
    | RunSilent
    | RunLooping
    | RunPaused
    | PauseEnded
    | MovedToBackground
    | AgentCreated
    | StateCommitted
    | ApprovalAsked
    | ApprovalAnswered
    | IntentionRecorded
    | IntentionDecided
    | HookFailed
    | Compacted
    | ToolsLoaded
    | SandboxStarted
    | SandboxFrozen
    | SandboxGivenUp
    | FolderLost
    | ClockStepped
    | RunRetried
    | ResultReused
    | ThresholdCrossed
    | EndpointAsked
    | PlanUpdated
    | SubAgentReported
    | CommandRun
    | Notice
)

_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(AnyEvent)


def encode(event: Event) -> bytes:
    """Encode one event as one line of JSON, without the newline.

    Raises InvalidValue if the line could not be decoded again. Text that is not valid Unicode (half of a surrogate
    pair) is written as U+FFFD, and NaN inside plain data as null.
    """
    line = _encode(event)
    checked, nulls = line, 0
    if isinstance(event, RunEnded):
        if event.result.value is not None:
            checked = _encode(_with_value(event, None))  # The value may be large, and takes null anywhere.
        nulls = 2 if event.result.error is None or event.result.error.scope is None else 1  # that belong to an end
    if checked.count(b":null") > nulls:
        decode(checked)  # NaN and the infinities become null, which a field that must be a number does not take.
    return line


def with_data(event: Event) -> Event:
    """Return the event as readers get it: a result that is JSON text is decoded."""
    if isinstance(event, RunEnded) and isinstance(event.result.value, msgspec.Raw):
        return _with_value(event, msgspec.json.decode(event.result.value))
    return event


def decode(line: bytes | str) -> Event:
    """Decode the event of one line.

    Raises InvalidValue if the line is not an event, or is of an unknown type.
    """
    try:
        event: Event = _decoder.decode(line)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as problem:
        raise InvalidValue("event", line[:200], f"an event in JSON ({problem})") from None
    return event


def _with_value(event: RunEnded, value: Any) -> RunEnded:
    return replace(event, result=replace(event.result, value=value))


def _encode(event: Event) -> bytes:
    try:
        try:
            return _encoder.encode(event)
        except UnicodeEncodeError:
            return _encoder.encode(_unicode(msgspec.to_builtins(with_data(event))))
    except (TypeError, RecursionError) as problem:
        raise InvalidValue("event", type(event).__name__, f"data that JSON can hold ({problem})") from None


def _unicode(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    if isinstance(value, dict):
        return {_unicode(key): _unicode(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_unicode(item) for item in value]
    return value
