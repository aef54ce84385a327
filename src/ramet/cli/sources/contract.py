"""The operations on runs that commands need, from any source."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from types import TracebackType
from typing import Any, Literal, Protocol, Self

from msgspec import Struct

from ramet.core.errors import Damaged
from ramet.core.events import Event
from ramet.core.outcome import NO_USAGE, Usage
from ramet.core.replay.paused_limits import PausedLimit
from ramet.host.control.run_queries import RunRow
from ramet.host.safety.inspection import GateEvent, GateEventFilter, GateEventPage
from ramet.host.schedules.view import ScheduleView
from ramet.host.sessions.rows import SessionRow

Change = Literal["pause", "resume", "trigger", "rm"]


@dataclass(frozen=True, kw_only=True)
class NewSchedule:
    """A function and its schedule: exactly one of `every`, `after`, `at` and `cron`; `cron` needs a `tz`."""

    function: str  #: module:function, or path/to/script.py:function
    args: tuple[Any, ...] = ()
    every: float | None = None  #: seconds
    after: float | None = None  #: seconds from now
    at: datetime | None = None
    cron: str | None = None
    tz: str | None = None
    name: str | None = None
    repeatable: bool = False  #: it may be called again if its process died during a call
    in_process: bool = False  #: it runs in the kernel's process, not in a sandbox


WAITING = "waits"


class Question(Struct, frozen=True, kw_only=True):
    """A question of an agent to a person, or a run that waits at a limit. `args` are bounded for display."""

    id: str  #: id to answer it with
    run: str
    path: str
    agent: str
    tool: str
    question: str
    args: dict[str, Any]
    state: str = WAITING  #: or INTERRUPTED: an answer takes effect once the run is resumed
    kind: str = "question"  #: or limit
    limit: PausedLimit | None = None  #: where the run waits, and what an approval adds
    usage: Usage = NO_USAGE  #: of the run and all runs below it, so far
    for_run: str = ""  #: later calls of the run that `ramet approve --for-run` also allows; "": none


class Source(Protocol):
    """Trees of runs, recorded and active. Enter it before use; every run id may raise Unknown."""

    @property
    def interrupted_hint(self) -> str:
        """Return a text about an interrupted run: which process is missing, and how to resume the run."""

    @property
    def damage_errors(self) -> Sequence[Damaged]:
        """Return the errors of trees that were skipped; a server logs them instead."""

    async def __aenter__(self) -> Self:
        """Open the source. Raises a RametError if it is not available."""

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the source."""

    # ---- conversations

    async def sessions(self, limit: int) -> tuple[Sequence[SessionRow], int]:
        """Return the newest conversations, the newest first, and the number of further ones; a `limit` of 0 means all.

        If the number is unknown, -1 means that there are further ones.
        """

    async def session(self, id: str, last: int | None = None) -> tuple[SessionRow, Sequence[Mapping[str, Any]]]:
        """Return one conversation, by the id of its session or root, and all or the last messages. Raises Unknown."""

    async def remove_session(self, id: str) -> str:
        """Remove a conversation; return the id of its root. Raises Unknown, and a RametError if it is needed."""

    # ---- looking

    async def runs(self, *, ended: bool = False) -> list[RunRow]:
        """Return the runs of all trees, in spawn order: those that have not ended, or with `ended` all."""

    async def run(self, id: str) -> RunRow:
        """Return one run, with its result."""

    async def root_of(self, run: str) -> str:
        """Return the root of a run's tree."""

    async def tree(self, run: str) -> list[RunRow]:
        """Return every run of a run's tree, in spawn order; results may be omitted."""

    def events(self, run: str, *, tree: bool = False, follow: bool = False) -> AsyncGenerator[Event]:
        """Yield the recorded events of a run, or with `tree` of its whole tree, in order.

        With `follow` then also new events, until the run's end, or until no process works on it.
        """

    async def questions(self) -> list[Question]:
        """Return the questions and the runs at limits that wait for a person, the oldest first."""

    async def gate_events(self, gate_filter: GateEventFilter, *, after: int, limit: int) -> GateEventPage:
        """Return a page of the safety gates' events after a cursor."""

    def follow_gate_events(self, gate_filter: GateEventFilter, *, after: int) -> AsyncGenerator[GateEvent]:
        """Yield the safety gates' events after a cursor, and new ones, without an end."""

    # ---- control; each method returns its outcome, as plain data

    async def send(self, run: str, text: str, dedupe_s: float | None = None) -> dict[str, Any]:
        """Send a message to a run; return `mail`, the outcome. `dedupe_s` is as in `Session.send`."""

    async def stop(self, run: str, reason: str) -> dict[str, Any]:
        """End a run and all below it; return the `stopped` paths, and the calls that are `left`."""

    async def raise_limits(self, run: str, add: Mapping[str, float], key: str) -> dict[str, Any]:
        """Add to the limits of a run; return the `run`, and its new `limits`."""

    async def pause(self, run: str, reason: str, *, now: bool) -> dict[str, Any]:
        """Pause a run and all below it; return the `paused` paths, and those that are still `working`."""

    async def resume(self, run: str) -> dict[str, Any]:
        """Let a paused run go on; return it as `resumed`."""

    async def read_file(self, run: str, path: str) -> bytes:
        """Return the content of a file of a running run, by its path in the run's workspace."""

    async def answer(self, approval: str, allowed: bool, reason: str, *, for_run: bool = False) -> dict[str, Any]:
        """Answer a question, or all like it of its run; return its id as `approval`, and the decision."""

    async def keep(self, run: str, on: bool) -> dict[str, Any]:
        """Keep the tree of a run regardless of its age, or stop keeping it; return `tree` and `kept`."""

    # ---- schedules

    async def schedules(self) -> Sequence[ScheduleView]:
        """Return all schedules."""

    async def add_schedule(self, new: NewSchedule) -> ScheduleView:
        """Add a schedule. Raises InvalidValue if it is invalid."""

    async def change_schedule(self, id: str, change: Change) -> ScheduleView | None:
        """Change a schedule; return its new state, None if it was removed. Raises Unknown."""
