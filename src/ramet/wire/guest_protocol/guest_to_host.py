"""Messages of a guest to its host. Typed; unknown fields and types are refused.

A guest numbers its requests in strictly rising order. Each request gets one `Answer` with its number; model calls get
`StreamChunk`s before the answer. A message without a number gets no answer. A guest is never asked for its identity:
the socket identifies it. `body` in a docstring is the frame's body.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Struct

from ramet.core.events import PlanStep
from ramet.core.outcome import ErrorInfo
from ramet.core.policy.policy import Policy

#: A number from a guest: whole, not negative, and exact in every JSON parser.
Count = Annotated[int, msgspec.Meta(ge=0, le=2**53)]

#: A part of the first line of a program's HTTP request, and its headers.
Line = Annotated[str, msgspec.Meta(max_length=8_192)]
Headers = Annotated[dict[str, str], msgspec.Meta(max_length=200)]


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


class MoveToBackground(Request, frozen=True, kw_only=True, tag="move_to_background"):
    """Wait for a child no longer: a notice reports its end; answered with an empty reply."""

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


class AskPeer(Request, frozen=True, kw_only=True, tag="ask_peer"):
    """Submit a plan to the lead, request a shutdown of a peer, or answer either; answered with `Text`."""

    do: Literal["plan", "shutdown", "answer"]
    target: Line = ""
    text: str = ""
    is_approved: bool = False
    timeout_s: float = 0.0
    call_id: str | None = None


class ReportMonitor(Request, frozen=True, kw_only=True, tag="report_monitor"):
    """Report on a command that this run monitors; answered with `Text`, the id of its monitor."""

    do: Literal["start", "lines", "end"]
    monitor: Line = ""
    text: str = ""


class Output(Request, frozen=True, kw_only=True, tag="output"):
    """Read the output of a run below; answered with `Text`."""

    target: str
    block: bool = False
    timeout_s: float = 30.0


class ListRuns(Request, frozen=True, kw_only=True, tag="list_runs"):
    """List the runs of the tree; answered with `Runs`."""

    below: bool = False  #: only this run, and the runs below it


class ListDefinitions(Request, frozen=True, kw_only=True, tag="list_definitions"):
    """List the agents that this run may spawn by name; answered with `Definitions`."""


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


class ForwardRequest(Request, frozen=True, kw_only=True, tag="forward"):
    """Forward an HTTP request of a program to its model's provider. Body: that of the request.

    Answered by a `ResponseHead`, by `StreamChunk`s as far as the window allows, and by an answer without data.
    """

    wire: Line  #: name of the provider's wire
    method: Line
    path: Line
    query: Line = ""
    headers: Headers = {}  #: by name in lower case


class WindowUpdate(GuestMessage, frozen=True, kw_only=True, tag="window_update"):
    """Allow so many bytes more of the reply to a forwarded request: its program has read as many."""

    request: Count
    size: Count


class ResetStream(GuestMessage, frozen=True, kw_only=True, tag="reset_stream"):
    """End a forwarded request whose program has left, a question whose turn has ended, or a call to a server.

    It gets no answer.
    """

    request: Count


class StartToolCall(Request, frozen=True, kw_only=True, tag="start_tool_call"):
    """Begin a tool call of a program with its own loop; answered without data, or refused at a limit."""

    call_id: Line
    tool: Line
    args: dict[str, Any] = {}


class AskPermission(Request, frozen=True, kw_only=True, tag="ask_permission"):
    """Ask whether a program may do a call; answered with `ApprovalReply`."""

    call_id: Line
    tool: Line
    args: dict[str, Any] = {}


class EndToolCall(GuestMessage, frozen=True, kw_only=True, tag="end_tool_call"):
    """End a tool call of a program."""

    call_id: Line
    status: Literal["ok", "error", "denied", "cancelled"]
    preview: Line = ""


class ReportPlan(GuestMessage, frozen=True, kw_only=True, tag="report_plan"):
    """Report the plan of a program, in place of the one before."""

    steps: Annotated[tuple[PlanStep, ...], msgspec.Meta(max_length=100)]


class ReportSubAgent(GuestMessage, frozen=True, kw_only=True, tag="report_sub_agent"):
    """Report an agent that a program runs by itself, in the same sandbox."""

    sub_agent: Line  #: its id with the program
    title: Line = ""
    state: Literal["running", "completed", "failed", "cancelled"]


class ReportText(GuestMessage, frozen=True, kw_only=True, tag="report_text"):
    """Pass on a part of a program's reply: provisional."""

    text: str


class AcceptMail(GuestMessage, frozen=True, kw_only=True, tag="accept_mail"):
    """Confirm that a program gets a mail as its next prompt."""

    mail_id: Line


class ConnectMcpServer(Request, frozen=True, kw_only=True, tag="connect_mcp_server"):
    """Connect a server of this run, once; answered at the end of the connection.

    Its `StreamChunk`s are the messages of the host to the server.
    """

    server: Line


class PassMcpMessage(Request, frozen=True, kw_only=True, tag="pass_mcp_message"):
    """Pass on a message of a server, as the body; answered once the host has taken it. With `end`: the server ended."""

    server: Line
    end: Line = ""  #: the reason


class ListMcpTools(Request, frozen=True, kw_only=True, tag="list_mcp_tools"):
    """Wait for the servers of this run; the body of the answer is the JSON of their tools' definitions."""


class CallMcpTool(Request, frozen=True, kw_only=True, tag="call_mcp_tool"):
    """Call a tool of a server; answered with `McpCallReply`, ended by `ResetStream`. Body: JSON of the arguments."""

    tool: Line
    call_id: Line = ""


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
    | MoveToBackground
    | Cancel
    | Send
    | AskPeer
    | ReportMonitor
    | Output
    | ListRuns
    | ListDefinitions
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
    | ForwardRequest
    | WindowUpdate
    | ResetStream
    | StartToolCall
    | AskPermission
    | EndToolCall
    | ReportPlan
    | ReportSubAgent
    | ReportText
    | AcceptMail
    | ConnectMcpServer
    | PassMcpMessage
    | ListMcpTools
    | CallMcpTool
    | Record
    | Note
    | Done
)


#: The requests with effects beyond their answer. If a sandbox can outlive its kernel, the answer confirms that the
#: request and all earlier messages are persisted.
DURABLE_REQUESTS = (
    Spawn | PerformTask | CreateAgent | Send | AskPeer | ReportMonitor | Cancel | AskModel | ForwardRequest
)
