"""The channel's vocabulary: requests of a guest, and messages to it. Typed; unknown fields and types are refused.

A guest numbers its requests in strictly rising order. Each request gets one `Answer` with its number; model calls get
`StreamChunk`s before the answer. A message without a number gets no answer. A guest is never asked for its identity:
the socket identifies it. `body` in a docstring is the frame's body.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Struct

from ramet.core.errors import ProtocolError
from ramet.core.outcome import Artifact, ErrorInfo, Usage
from ramet.core.policy.permissions import NO_PERMISSIONS, Permissions
from ramet.core.policy.policy import Policy
from ramet.wire.values.json_object import paused_gc

#: A number from a guest: whole, not negative, and exact in every JSON parser.
Count = Annotated[int, msgspec.Meta(ge=0, le=2**53)]

# ---- from the guest ------------------------------------------------------------------------------------------------


class GuestMessage(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="type", omit_defaults=True):
    """The base class of messages from a guest."""


class Request(GuestMessage, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """The base class of messages that get an answer. `id` rises strictly."""

    id: Count


class Spawn(Request, frozen=True, kw_only=True, tag="spawn"):
    """Spawn a run; answered at once with `Spawned`. Body: the function (`ramet.wire.code.capsule`), or empty."""

    policy: Policy | None = None
    function: str = ""  #: name of the function in the body
    capsule_tag: str = ""
    heavy: bool = False  #: unpacking imports many modules
    prompt: str = ""
    name: str | None = None
    description: str = ""
    subagent_type: str | None = None
    mode: str | None = None
    model: str | None = None
    background: bool | None = None
    isolation: str | None = None
    cwd: str | None = None
    branch: bool = False
    call_id: str | None = None


class Watch(GuestMessage, frozen=True, kw_only=True, tag="watch"):
    """Watch a child: the host sends `ChildEnded` once, whenever the child ends. Uses no resources meanwhile."""

    run: str


class Cancel(Request, frozen=True, kw_only=True, tag="cancel"):
    """End a run below and all runs under it; answered with `Stopped` after they have ended."""

    target: str
    reason: str = "cancelled by its parent"


class Send(Request, frozen=True, kw_only=True, tag="send"):
    """Send mail to another agent, by id, path or name; answered with `Text`, the result of the delivery."""

    to: str
    text: str
    notify_when_idle: bool = False  #: the host sends the sender one notice when the recipient is idle or has ended
    dedupe_s: float | None = None  #: seconds in which an equal message from this sender is dropped


class Output(Request, frozen=True, kw_only=True, tag="output"):
    """Read the output of a run below; answered with `Text`."""

    target: str
    block: bool = False
    timeout_s: float = 30.0


class ListRuns(Request, frozen=True, kw_only=True, tag="list_runs"):
    """List the runs of the tree; answered with `Runs`."""


class CreateAgent(Request, frozen=True, kw_only=True, tag="create_agent"):
    """Record an agent in the registry of this run's agent; answered with `Created`. Body: JSON of its entry."""


class PerformTask(Request, frozen=True, kw_only=True, tag="perform_task"):
    """Perform a task of a recorded agent, as a child; answered at once with `Spawned`.

    Body: JSON of the arguments, by name.
    """

    ref: str  #: handle of the agent
    task: str
    name: str | None = None
    branch: bool = False
    call_id: str | None = None


class UseState(Request, frozen=True, kw_only=True, tag="use_state"):
    """Use the run's own state, whose location only the host knows; answered with `StateReply`.

    Body: for `set` the value; for `commit` and `merge` the decisions for keys that both sides changed.
    """

    do: Literal[
        "get",
        "has",
        "keys",
        "namespaces",
        "set",
        "remove",
        "discard",
        "commit",
        "checkout",
        "history",
        "branches",
        "merge",
        "drop",
    ]
    name: str = ""  #: a key, a prefix of keys, the id of a commit, or the id of the run that owns the branch
    message: str = ""
    on_conflict: Literal["retry", "abandon"] = "retry"
    recursive: bool = True
    limit: Count = 100


class ReadArtifact(Request, frozen=True, kw_only=True, tag="read_artifact"):
    """Read an artifact of a child; the answer's body is its bytes."""

    run: str
    name: str


class SaveCheckpoint(Request, frozen=True, kw_only=True, tag="save_checkpoint"):
    """Save a value for the next attempt or restart of this logical run.

    Body: the value (`ramet.wire.values.values`).
    """

    json_size: Count
    version: Count = 1


class LoadCheckpoint(Request, frozen=True, kw_only=True, tag="load_checkpoint"):
    """Load the last checkpoint; answered with `Checkpoint`, its body the value."""


class AskModel(Request, frozen=True, kw_only=True, tag="ask_model"):
    """Ask the run's model. Body: a request (`ramet.models.request_codec`). Answered by `StreamChunk` and `Reply`."""

    step: str
    max_tokens: Count | None = None
    last_word: bool = False
    aside: bool = False  #: not part of the conversation: a summary of it, or a question of a tool
    stream: bool = False  #: the guest wants the chunks


class Approve(Request, frozen=True, kw_only=True, tag="approve"):
    """Ask a person for approval; answered with `ApprovalReply`."""

    tool: str
    question: str
    args: dict[str, Any] = {}
    call_id: str | None = None


class ProposeCall(Request, frozen=True, kw_only=True, tag="intend"):
    """Ask the safety gate about a call before it begins; answered with `SafetyReply`, once for each call."""

    call_id: str


class FireHook(Request, frozen=True, kw_only=True, tag="fire_hook"):
    """Run the hooks of an event; answered with `HookReply`. Body: the payload in JSON."""

    event: str
    matcher: str = ""


class Record(GuestMessage, frozen=True, kw_only=True, tag="record"):
    """Record an event of this run (`ramet.core.events`), in order. Body: its JSON; the host adds the run's identity.

    After a `Compacted`, a separate line holds the remaining conversation (`ramet.models.request_codec`).
    """

    number: Count  #: 1, 2, 3, …: identifies an event that is sent again after a kernel ended


class Note(GuestMessage, frozen=True, kw_only=True, tag="note"):
    """A line for the log of this run."""

    text: str


class Done(GuestMessage, frozen=True, kw_only=True, tag="done"):
    """Report the end of the work: the last message of a guest. Body: the value (`ramet.wire.values.values`), if any."""

    ok: bool
    conclusion: bool = False  #: of a conversation: the value is the result of its code, in place of a model's answer
    json_size: Count = 0
    error: ErrorInfo | None = None
    fields: dict[str, Any] = {}  #: fields to rebuild the error, such as the resource of a BudgetExceeded
    oom: bool = False  #: the guest ran out of memory and could still report it


FromGuest = (
    Spawn
    | Watch
    | Cancel
    | Send
    | Output
    | ListRuns
    | CreateAgent
    | PerformTask
    | UseState
    | ReadArtifact
    | SaveCheckpoint
    | LoadCheckpoint
    | AskModel
    | Approve
    | ProposeCall
    | FireHook
    | Record
    | Note
    | Done
)

#: The requests with effects beyond their answer. If a sandbox can outlive its kernel, the answer confirms that the
#: request and all earlier messages are persisted.
DURABLE_REQUESTS = Spawn | PerformTask | CreateAgent | Send | Cancel | AskModel

# ---- from the host -------------------------------------------------------------------------------------------------


class HostMessage(Struct, frozen=True, kw_only=True, tag_field="type", omit_defaults=True):
    """The base class of messages from a host. A guest ignores unknown fields."""


class StartFunction(HostMessage, frozen=True, kw_only=True, tag="start_function"):
    """The first message to a function agent. Body: the capsule (function and arguments), then late arguments."""

    run: str
    path: str
    name: str
    capsule_tag: str = ""
    max_result_bytes: int = 16 * 1024 * 1024
    late_size: Count = 0  #: bytes of the late arguments: a JSON array of values to add after the capsule's arguments


class CompactionSettings(Struct, frozen=True, kw_only=True):
    """The thresholds of compaction (`ramet.agent.history.compaction`)."""

    window_tokens: int
    at: float
    keep_last: int


class StartConversation(HostMessage, frozen=True, kw_only=True, tag="start_conversation"):
    """The first message to a model agent. Body: JSON of {"system", "history", "types", "capabilities"}, then a capsule.

    `types` are the agent types that it may spawn, with descriptions. `capabilities` lists what its own code may use, as
    data. The capsule holds the tools that are not ramet's own.
    """

    run: str
    root: str
    path: str
    agent: str
    depth: int
    cwd: str
    json_size: int
    parent: str | None = None
    tools: tuple[str, ...] = ()  #: by name: of ramet's own, built in the guest, and of the capsule
    tools_tag: str = ""  #: of the capsule, if present
    max_turns: int = 100
    room: CompactionSettings | None = None  #: None: no compaction
    output_schema: dict[str, Any] | None = None
    hooks: tuple[str, ...] = ()  #: events that have a listener
    gated: bool = False  #: each call must be proposed before it begins
    permissions: Permissions = NO_PERMISSIONS  #: rules of settings files, applied to names that only a guest knows
    steps: int = 0
    resumes: bool = False  #: its history may end with an answer that was not processed
    replied: int = 0  #: number of earlier model replies in this turn
    objected: int = 0  #: number of earlier times in this turn that it was asked to continue instead of ending


class Answer(HostMessage, frozen=True, kw_only=True, tag="answer"):
    """The answer to request `id`: `data` of the request's kind, or the error to raise."""

    id: int
    data: msgspec.Raw = msgspec.Raw(b"null")
    error: ErrorInfo | None = None
    fields: dict[str, Any] = {}  #: fields to rebuild the error


class StreamChunk(HostMessage, frozen=True, kw_only=True, tag="piece"):
    """A chunk of an incomplete reply, as data: provisional. Body: JSON of the chunk."""

    id: int


class ChildEnded(HostMessage, frozen=True, kw_only=True, tag="ended"):
    """Report that a watched child has ended. Body: its value."""

    run: str
    status: str
    exit_code: int
    json_size: int = 0
    error: ErrorInfo | None = None
    partial: str = ""
    artifacts: tuple[Artifact, ...] = ()
    usage: Usage = Usage()
    stdout: str = ""
    stderr: str = ""


class IncomingMail(HostMessage, frozen=True, kw_only=True, tag="mail"):
    """Mail for this run. The mail counts as read when the guest records `MailDelivered`. Body: its text."""

    mail_id: str
    sender: str
    kind: str = "agent"


class Stop(HostMessage, frozen=True, kw_only=True, tag="stop"):
    """Ask the guest to end: signals follow."""

    reason: str


FromHost = StartFunction | StartConversation | Answer | StreamChunk | ChildEnded | IncomingMail | Stop

# ---- kinds of answer data ------------------------------------------------------------------------------------------


class Spawned(Struct, frozen=True, kw_only=True):
    """Confirmation that a child is running."""

    run: str
    path: str
    name: str
    background: bool = False


class Created(Struct, frozen=True, kw_only=True):
    """Confirmation of a recorded agent: its handle, and the requested capabilities that it did not get."""

    ref: str
    dropped: tuple[str, ...] = ()


class Stopped(Struct, frozen=True, kw_only=True):
    """The paths of the stopped runs, and of the runs that could not be stopped."""

    stopped: tuple[str, ...]
    left: tuple[str, ...] = ()


class Text(Struct, frozen=True, kw_only=True):
    """A single text."""

    text: str


class RunSummary(Struct, frozen=True, kw_only=True):
    """The entry of one run in a listing."""

    id: str
    path: str
    name: str
    agent: str
    state: str
    description: str = ""
    depth: int = 0
    children: int = 0
    usage: Usage = Usage()


class Runs(Struct, frozen=True, kw_only=True):
    """A listing of runs."""

    runs: tuple[RunSummary, ...]


class StateCommit(Struct, frozen=True, kw_only=True):
    """A commit of a state, as an agent sees it."""

    id: str
    parents: tuple[str, ...]
    at: datetime
    message: str = ""
    author: str = ""  #: the run that created the commit


class StateReply(Struct, frozen=True, kw_only=True):
    """The result of a state request. The body is JSON: a value, names, one or more commits, or the keys to decide."""

    found: bool = True  #: the value or commit exists; a key existed
    is_open: bool = False  #: nothing was written: both sides changed keys, and the caller must decide which value holds


class Checkpoint(Struct, frozen=True, kw_only=True):
    """The existence of a checkpoint, and its version; the value is in the body."""

    found: bool
    json_size: int = 0
    version: int = 1


class ApprovalReply(Struct, frozen=True, kw_only=True):
    """A person's decision; `reason` explains a denial to the model."""

    allowed: bool
    reason: str = ""


class SafetyReply(Struct, frozen=True, kw_only=True):
    """The safety gate's decision about a call (`ramet.tools.context.SafetyDecision`)."""

    committed: bool
    reason: str = ""


class HookReply(Struct, frozen=True, kw_only=True):
    """The decision of the hooks (`ramet.tools.context.HookDecision`)."""

    verdict: str = "allow"
    reason: str = ""
    updated_input: dict[str, Any] | None = None
    updated_output: str | None = None
    context: str = ""


class Reply(Struct, frozen=True, kw_only=True):
    """The usage of a model reply; the body is the complete message as JSON (`ramet.models.messages`)."""

    usage: Usage | None = None
    granted: int | None = None  #: number of its tool calls that may run; None: all
    scope: str = ""  #: of the budget that the other calls exceeded
    is_too_long: bool = False  #: no message: the request was longer than the model's window


# ---- bytes ---------------------------------------------------------------------------------------------------------

_encoder = msgspec.json.Encoder()
_guest_decoder = msgspec.json.Decoder(FromGuest)
_host_decoder = msgspec.json.Decoder(FromHost)


def encode(message: Struct) -> bytes:
    """Return the control part of a frame, or the data of an answer, as JSON."""
    return _encoder.encode(message)


def raw(data: Any) -> msgspec.Raw:
    """Return the encoded data of an answer."""
    return msgspec.Raw(_encoder.encode(data))


def from_guest(control: bytes) -> GuestMessage:
    """Return a guest's message. Raises ProtocolError if the message is unknown or malformed."""
    message: GuestMessage = _decode(_guest_decoder, control)
    return message


def from_host(control: bytes) -> HostMessage:
    """Return a host's message. Raises ProtocolError if the message is unknown or malformed."""
    message: HostMessage = _decode(_host_decoder, control)
    return message


def _decode(decoder: msgspec.json.Decoder[Any], control: bytes) -> Any:
    try:
        with paused_gc(len(control)):
            return decoder.decode(control)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as problem:
        raise ProtocolError(f"a frame that is not a message: {str(problem)[:200]}") from None
