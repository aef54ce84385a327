"""The data of an `Answer`, by the kind of its request."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from msgspec import Struct

from ramet.core.outcome import Usage


class SpawnReply(Struct, frozen=True, kw_only=True):
    """Confirmation that a child is running."""

    run: str
    path: str
    name: str
    background: bool = False


class CreateReply(Struct, frozen=True, kw_only=True):
    """Confirmation of a recorded agent: its handle, and the requested capabilities that it did not get."""

    ref: str
    dropped: tuple[str, ...] = ()


class StopReply(Struct, frozen=True, kw_only=True):
    """The paths of the stopped runs, and of the runs that could not be stopped."""

    stopped: tuple[str, ...]
    left: tuple[str, ...] = ()


class Text(Struct, frozen=True, kw_only=True):
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
    usage: Usage = Usage()  #: of the run, and of all runs below it
    waits_for: str = ""  #: see `ramet.tools.run_info.RunView`


class Runs(Struct, frozen=True, kw_only=True):
    runs: tuple[RunSummary, ...]


class DefinitionSummary(Struct, frozen=True, kw_only=True):
    """The entry of one agent that may be spawned."""

    name: str
    description: str = ""


class Definitions(Struct, frozen=True, kw_only=True):
    definitions: tuple[DefinitionSummary, ...]


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
    """The safety gate's decision about a call (`ramet.tools.decisions.SafetyDecision`)."""

    committed: bool
    reason: str = ""


class HookReply(Struct, frozen=True, kw_only=True):
    """The decision of the hooks (`ramet.tools.decisions.HookDecision`)."""

    verdict: str = "allow"
    reason: str = ""
    updated_input: dict[str, Any] | None = None
    updated_output: str | None = None
    context: str = ""


class McpCallReply(Struct, frozen=True, kw_only=True):
    """The kind of the result of a server's tool; the body is its text, then its files as JSON (inline blocks).

    With `has_definitions`, definitions of tools follow the text: the run has these tools from now on.
    """

    is_error: bool = False
    text_size: int | None = None  #: bytes of the text; None: nothing follows it
    has_definitions: bool = False


class Reply(Struct, frozen=True, kw_only=True):
    """The usage of a model reply; the body is the complete message as JSON (`ramet.models.messages`)."""

    usage: Usage | None = None
    granted: int | None = None  #: number of its tool calls that may run; None: all
    scope: str = ""  #: of the budget that the other calls exceeded
    is_too_long: bool = False  #: no message: the request was longer than the model's window
