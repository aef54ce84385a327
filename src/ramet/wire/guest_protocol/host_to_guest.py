"""Messages of a host to a guest. `body` in a docstring is the frame's body."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Struct

from ramet.core.outcome import Artifact, ErrorInfo, Usage
from ramet.core.policy.permissions import NO_PERMISSIONS, Permissions
from ramet.wire.guest_protocol.guest_to_host import Count


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


class StartMcpServer(HostMessage, frozen=True, kw_only=True, tag="start_mcp_server"):
    """The first message to the sandbox of one server of the Model Context Protocol."""

    server: dict[str, Any]  #: as data


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
    read_roots: tuple[str, ...] = ()  #: paths outside `cwd` that tools may read, as far as the sandbox has them
    parent: str | None = None
    tools: tuple[str, ...] = ()  #: by name: of ramet's own, built in the guest, and of the capsule
    tools_tag: str = ""  #: of the capsule, if present
    max_turns: int = 100
    room: CompactionSettings | None = None  #: None: no compaction
    output_schema: dict[str, Any] | None = None
    hooks: tuple[str, ...] = ()  #: events that have a listener
    gated: bool = False  #: each call must be proposed before it begins
    permissions: Permissions = NO_PERMISSIONS  #: rules, applied to names that only a guest knows
    permissions_after_plan: Permissions | None = None  #: rules once a person approves its plan
    steps: int = 0
    resumes: bool = False  #: its history may end with an answer that was not processed
    replied: int = 0  #: number of earlier model replies in this turn
    mcp: tuple[dict[str, Any], ...] = ()  #: servers of the Model Context Protocol that the guest starts, as data
    has_servers: bool = False  #: it has such servers, here or in sandboxes of their own
    objected: int = 0  #: number of earlier times in this turn that it was asked to continue instead of ending
    granted: int | None = None  #: number of calls at the end of its history that may begin; None: all
    scope: str = ""  #: of the budget that refuses the others


class Answer(HostMessage, frozen=True, kw_only=True, tag="answer"):
    """The answer to request `id`: `data` of the request's kind, or the error to raise."""

    id: int
    data: msgspec.Raw = msgspec.Raw(b"null")
    error: ErrorInfo | None = None
    fields: dict[str, Any] = {}  #: fields to rebuild the error


class StreamChunk(HostMessage, frozen=True, kw_only=True, tag="piece"):
    """A chunk of an incomplete reply, as data: provisional. Body: JSON of the chunk."""

    id: int


class ResponseHead(HostMessage, frozen=True, kw_only=True, tag="head"):
    """The head of the reply to a forwarded request; its body follows in `StreamChunk`s."""

    id: int
    status: int
    headers: tuple[tuple[str, str], ...] = ()


class ChildEnded(HostMessage, frozen=True, kw_only=True, tag="ended"):
    """Report that a watched child has ended. Body: its value."""

    run: str
    status: str
    exit_code: int
    json_size: int = 0
    error: ErrorInfo | None = None
    partial: str = ""
    artifacts: tuple[Artifact, ...] = ()
    changes: tuple[str, ...] = ()  #: of a child in a clone: its branch, and how much that changed
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


FromHost = (
    StartFunction
    | StartConversation
    | StartMcpServer
    | Answer
    | StreamChunk
    | ResponseHead
    | ChildEnded
    | IncomingMail
    | Stop
)
