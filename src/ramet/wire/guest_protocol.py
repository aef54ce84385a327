"""The channel's vocabulary: what a guest may ask, and what it is told. Typed; an unknown field or type is refused.

A guest numbers its requests, strictly rising; each gets one `Answer` of that number (model calls get `StreamChunk`s
before it). What has no number is told, not asked. A guest is not asked who it is: the socket is the identity.
`body` in a docstring is the frame's body.
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

#: What a guest counts: whole, not negative, and exact in every reader of JSON.
Count = Annotated[int, msgspec.Meta(ge=0, le=2**53)]

# ---- from the guest ------------------------------------------------------------------------------------------------


class GuestMessage(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="type", omit_defaults=True):
    """Anything a guest says."""


class Request(GuestMessage, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """What is answered. `id` rises strictly."""

    id: Count


class Spawn(Request, frozen=True, kw_only=True, tag="spawn"):
    """Spawn; answered at once with `Spawned`. Body: the function (`ramet.wire.code.capsule`), else empty."""

    policy: Policy | None = None
    function: str = ""  #: name of the function in the body
    capsule_tag: str = ""
    heavy: bool = False  #: opening it imports much
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
    """Tell me once when this child has ended: `ChildEnded` comes, however long that takes. Holds nothing meanwhile."""

    run: str


class Cancel(Request, frozen=True, kw_only=True, tag="cancel"):
    """End a run below and all under it; answered with `Stopped` when they are gone."""

    target: str
    reason: str = "cancelled by its parent"


class Send(Request, frozen=True, kw_only=True, tag="send"):
    """Mail to another agent, by id, path or name; answered with `Text`: what became of it."""

    to: str
    text: str
    notify_when_idle: bool = False  #: a notice tells the sender, once, when the recipient rests or has ended
    dedupe_s: float | None = None  #: seconds in which an equal message of the sender is left out


class Output(Request, frozen=True, kw_only=True, tag="output"):
    """What a run below has found; answered with `Text`."""

    target: str
    block: bool = False
    timeout_s: float = 30.0


class ListRuns(Request, frozen=True, kw_only=True, tag="list_runs"):
    """The runs of the tree; answered with `Runs`."""


class CreateAgent(Request, frozen=True, kw_only=True, tag="create_agent"):
    """Write an agent down in the registry of this run's agent; answered with `Created`. Body: JSON of its entry."""


class PerformTask(Request, frozen=True, kw_only=True, tag="perform_task"):
    """Have an agent that was written down do one of its tasks, as a child; answered at once with `Spawned`.

    Body: JSON of the arguments, by name.
    """

    ref: str  #: its handle
    task: str
    name: str | None = None
    branch: bool = False
    call_id: str | None = None


class UseState(Request, frozen=True, kw_only=True, tag="use_state"):
    """Something with the run's own state, of which the host knows where it is; answered with `StateReply`.

    Body: for `set` the value; for `commit` and `merge` what was decided of keys that both sides changed.
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
    name: str = ""  #: a key, the beginning of keys, the id of a commit or of the run whose branch it is
    message: str = ""
    on_conflict: Literal["retry", "abandon"] = "retry"
    recursive: bool = True
    limit: Count = 100


class ReadArtifact(Request, frozen=True, kw_only=True, tag="read_artifact"):
    """A file that a child left; the answer's body is its bytes."""

    run: str
    name: str


class SaveCheckpoint(Request, frozen=True, kw_only=True, tag="save_checkpoint"):
    """Keep a value for the next attempt or life of this logical run. Body: the value (`ramet.wire.values.values`)."""

    json_size: Count
    version: Count = 1


class LoadCheckpoint(Request, frozen=True, kw_only=True, tag="load_checkpoint"):
    """The value kept last; answered with `Checkpoint`, its body the value."""


class AskModel(Request, frozen=True, kw_only=True, tag="ask_model"):
    """Ask the run's model. Body: a request (`ramet.models.request_codec`). Answered by `StreamChunk` and `Reply`."""

    step: str
    max_tokens: Count | None = None
    last_word: bool = False
    aside: bool = False  #: no word of the conversation: a summary of it, or a question of a tool's own
    stream: bool = False  #: it wants the pieces


class Approve(Request, frozen=True, kw_only=True, tag="approve"):
    """Ask for a person's word; answered with `ApprovalReply`."""

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
    """An event of this run (`ramet.core.events`), told in order. Body: its JSON; the host stamps whose it is.

    Behind a `Compacted`, on a line of its own, stands what is left of the conversation (`ramet.models.request_codec`).
    """

    number: Count  #: 1, 2, 3, …: one that comes again after a kernel's end is known by it


class Note(GuestMessage, frozen=True, kw_only=True, tag="note"):
    """A line for the log of this run."""

    text: str


class Done(GuestMessage, frozen=True, kw_only=True, tag="done"):
    """The work is over: the last word of a guest. Body: the value (`ramet.wire.values.values`), if there is one."""

    ok: bool
    conclusion: bool = False  #: of a conversation: the value is what its code gave, in place of a model's answer
    json_size: Count = 0
    error: ErrorInfo | None = None
    fields: dict[str, Any] = {}  #: what rebuilds the error, such as the resource of a BudgetExceeded
    oom: bool = False  #: it ran out of memory and could still say so


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

#: What leads to more than its answer. Where a sandbox can outlive its kernel, the answer says that this is on record,
#: and all that was said before it.
LASTING = Spawn | PerformTask | CreateAgent | Send | Cancel | AskModel

# ---- from the host -------------------------------------------------------------------------------------------------


class HostMessage(Struct, frozen=True, kw_only=True, tag_field="type", omit_defaults=True):
    """Anything a host says. A guest passes over fields that it does not know."""


class StartFunction(HostMessage, frozen=True, kw_only=True, tag="start_function"):
    """The first word to a function agent. Body: the capsule, function and arguments inside, then late arguments."""

    run: str
    path: str
    name: str
    capsule_tag: str = ""
    max_result_bytes: int = 16 * 1024 * 1024
    late_size: Count = 0  #: bytes of the late arguments: a JSON array of what goes behind the capsule's arguments


class CompactionSettings(Struct, frozen=True, kw_only=True):
    """When a conversation is shortened (`ramet.agent.history.compaction`)."""

    window_tokens: int
    at: float
    keep_last: int


class StartConversation(HostMessage, frozen=True, kw_only=True, tag="start_conversation"):
    """The first word to a model agent. Body: JSON of {"system", "history", "types", "capabilities"}, then a capsule.

    `types` are those that it may spawn, with descriptions; `capabilities` what its own code may use, as data; the
    capsule is of the tools that are not ramet's own.
    """

    run: str
    root: str
    path: str
    agent: str
    depth: int
    cwd: str
    json_size: int
    parent: str | None = None
    tools: tuple[str, ...] = ()  #: by name: of ramet's own, built inside, and of the capsule
    tools_tag: str = ""  #: of the capsule, if there is one
    max_turns: int = 100
    room: CompactionSettings | None = None  #: None: it is never shortened
    output_schema: dict[str, Any] | None = None
    hooks: tuple[str, ...] = ()  #: events that somebody listens to
    gated: bool = False  #: each call is to be intended before it begins
    permissions: Permissions = NO_PERMISSIONS  #: rules of settings files, held against names that only a guest knows
    steps: int = 0
    resumes: bool = False  #: its history may end with an answer that nobody has looked at
    replied: int = 0  #: so often its model had in this turn, before that
    objected: int = 0  #: so often it was told in this turn, before that, to go on instead of ending


class Answer(HostMessage, frozen=True, kw_only=True, tag="answer"):
    """The answer to request `id`: `data` by its kind, or the error to raise."""

    id: int
    data: msgspec.Raw = msgspec.Raw(b"null")
    error: ErrorInfo | None = None
    fields: dict[str, Any] = {}  #: what rebuilds the error


class StreamChunk(HostMessage, frozen=True, kw_only=True, tag="piece"):
    """A chunk of a reply under way, as data: provisional. Body: JSON of the chunk."""

    id: int


class ChildEnded(HostMessage, frozen=True, kw_only=True, tag="ended"):
    """A watched child has ended. Body: its value."""

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
    """Mail for this run. It counts as read when the guest records `MailDelivered`. Body: its text."""

    mail_id: str
    sender: str
    kind: str = "agent"


class Stop(HostMessage, frozen=True, kw_only=True, tag="stop"):
    """Come to an end: signals follow."""

    reason: str


FromHost = StartFunction | StartConversation | Answer | StreamChunk | ChildEnded | IncomingMail | Stop

# ---- kinds of answer data ------------------------------------------------------------------------------------------


class Spawned(Struct, frozen=True, kw_only=True):
    """A child lives."""

    run: str
    path: str
    name: str
    background: bool = False


class Created(Struct, frozen=True, kw_only=True):
    """An agent stands in the registry: its handle, and capabilities that it asked for in vain."""

    ref: str
    dropped: tuple[str, ...] = ()


class Stopped(Struct, frozen=True, kw_only=True):
    """Paths of what was stopped, and what could not be."""

    stopped: tuple[str, ...]
    left: tuple[str, ...] = ()


class Text(Struct, frozen=True, kw_only=True):
    """One text."""

    text: str


class RunSummary(Struct, frozen=True, kw_only=True):
    """One line of a listing."""

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
    """A listing."""

    runs: tuple[RunSummary, ...]


class StateCommit(Struct, frozen=True, kw_only=True):
    """A commit of a state, as an agent sees it."""

    id: str
    parents: tuple[str, ...]
    at: datetime
    message: str = ""
    author: str = ""  #: the run that made it


class StateReply(Struct, frozen=True, kw_only=True):
    """What came of it; the body is JSON: a value, names, a commit or several, or the keys that are to be decided."""

    found: bool = True  #: there is a value, or a commit; a key was there
    is_open: bool = False  #: nothing was written: both sides changed keys, and it is to be decided which holds


class Checkpoint(Struct, frozen=True, kw_only=True):
    """Whether there is one, and its version; the value is in the body."""

    found: bool
    json_size: int = 0
    version: int = 1


class ApprovalReply(Struct, frozen=True, kw_only=True):
    """A person's word; `reason` is for the model, of a no."""

    allowed: bool
    reason: str = ""


class SafetyReply(Struct, frozen=True, kw_only=True):
    """What the safety gate decided of a call (`ramet.tools.context.SafetyDecision`)."""

    committed: bool
    reason: str = ""


class HookReply(Struct, frozen=True, kw_only=True):
    """What the hooks said (`ramet.tools.context.HookDecision`)."""

    verdict: str = "allow"
    reason: str = ""
    updated_input: dict[str, Any] | None = None
    updated_output: str | None = None
    context: str = ""


class Reply(Struct, frozen=True, kw_only=True):
    """A model's whole message is in the body, as JSON (`ramet.models.messages`); what it used."""

    usage: Usage | None = None
    granted: int | None = None  #: so many of its tool calls may run; None: all of them
    scope: str = ""  #: of the budget that the others did not fit into
    is_too_long: bool = False  #: there is no message: the question was longer than the model's window


# ---- bytes ---------------------------------------------------------------------------------------------------------

_encoder = msgspec.json.Encoder()
_from_guest = msgspec.json.Decoder(FromGuest)
_from_host = msgspec.json.Decoder(FromHost)


def encode(message: Struct) -> bytes:
    """The control part of a frame, or the data of an answer."""
    return _encoder.encode(message)


def raw(data: Any) -> msgspec.Raw:
    """Data of an answer, ready to be put into it."""
    return msgspec.Raw(_encoder.encode(data))


def from_guest(control: bytes) -> GuestMessage:
    """What a guest says. Raises ProtocolError for anything that is not of this vocabulary."""
    said: GuestMessage = _decoded(_from_guest, control)
    return said


def from_host(control: bytes) -> HostMessage:
    """What the host says. Raises ProtocolError."""
    told: HostMessage = _decoded(_from_host, control)
    return told


def _decoded(decoder: msgspec.json.Decoder[Any], control: bytes) -> Any:
    try:
        with paused_gc(len(control)):
            return decoder.decode(control)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as problem:
        raise ProtocolError(f"a frame that is no message: {str(problem)[:200]}") from None
