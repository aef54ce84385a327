"""The identity of a run, and what is returned about runs."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal, NamedTuple

from ramet.core.ids import CallId, Path, RunId, SessionId
from ramet.core.outcome import Usage


@dataclass(frozen=True, kw_only=True, slots=True)
class RunInfo:
    """The identity of a run. Immutable."""

    id: RunId
    root: RunId
    path: Path
    agent: str  #: name of the definition
    depth: int = 0
    parent: RunId | None = None
    parent_call: CallId | None = None
    session: SessionId | None = None

    stamp: dict[str, Any] = field(init=False, repr=False, compare=False)  #: the fields in every event of this run

    def __post_init__(self) -> None:
        stamp = {
            "root": self.root,
            "run": self.id,
            "path": self.path,
            "agent": self.agent,
            "depth": self.depth,
            "parent": self.parent,
            "parent_call": self.parent_call,
        }
        object.__setattr__(self, "stamp", stamp)


class StopReceipt(NamedTuple):
    """The result of a stop. `left` lists what could not be ended, but not processes that were only being killed."""

    stopped: tuple[str, ...]  #: paths
    #: `path: tool` of synchronous calls whose threads still run, fenced, and of unresponsive tasks
    left: tuple[str, ...] = ()


class MonitorReport(NamedTuple):
    """The report of a run about a command that it monitors."""

    do: Literal["start", "lines", "end"]
    monitor: str = ""  #: its id; the start of one has none yet
    text: str = ""  #: the command, or lines of its output


class PauseReceipt(NamedTuple):
    """The result of a pause: the paths of the runs that it covers."""

    paused: tuple[str, ...]  #: runs that do nothing until the pause ends
    working: tuple[str, ...] = ()  #: runs with work under way, which pause when it has ended


class RunView(NamedTuple):
    """A run in a listing; no secrets."""

    id: str
    path: str
    name: str
    agent: str
    state: str
    description: str
    depth: int
    children: int
    usage: Usage
    last_event_at: datetime | None = None  #: of its newest event, or of a newer part of a reply; None: not known here
    waits_for: str = (
        ""  #: person, limit, pause, quota, room, child, slot, mail, model or tool; empty if it works or has ended
    )
    context_tokens: int = 0  #: input tokens of its newest request to a model
    context_window: int | None = None  #: the most that its model accepts, if the model says so
