"""What commands ask about runs and have done to them, whoever answers."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from types import TracebackType
from typing import Any, Literal, Protocol, Self

from msgspec import Struct

from ramet.core.errors import Damaged
from ramet.core.events import Event
from ramet.host.control.run_queries import RunRow
from ramet.host.safety.inspection import GateEvent, GateEventFilter, GateEventPage
from ramet.host.scheduler.view import ScheduleView
from ramet.host.sessions.rows import SessionRow

Change = Literal["pause", "resume", "trigger", "rm"]


@dataclass(frozen=True, kw_only=True)
class NewSchedule:
    """A function and when it is to run: exactly one of `every`, `after`, `at` and `cron`, the last beside a `tz`."""

    function: str  #: module:function, or path/to/script.py:function
    args: tuple[Any, ...] = ()
    every: float | None = None  #: seconds
    after: float | None = None  #: seconds from now
    at: datetime | None = None
    cron: str | None = None
    tz: str | None = None
    name: str | None = None
    repeatable: bool = False  #: it may be called again where its process died in its middle
    in_process: bool = False  #: it runs in the kernel's own process, not in a sandbox


WAITS = "waits"


class Question(Struct, frozen=True, kw_only=True):
    """What an agent asks a person. `args` are bounded for showing."""

    id: str  #: what it is answered by
    run: str
    path: str
    agent: str
    tool: str
    question: str
    args: dict[str, Any]
    state: str = WAITS  #: or INTERRUPTED: a word is heard once somebody goes on with the run


class Source(Protocol):
    """Trees of runs, on record and at work. To be entered; every id of a run may raise Unknown."""

    @property
    def interrupted(self) -> str:
        """What there is to say of a run that was interrupted: who is not at work in it, and what goes on with it."""

    @property
    def damaged(self) -> Sequence[Damaged]:
        """Why trees were passed over by what was asked; a server says so in its log."""

    async def __aenter__(self) -> Self:
        """Begin. Raises a RametError where nobody can answer."""

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End."""

    # ---- conversations

    async def sessions(self, limit: int) -> tuple[Sequence[SessionRow], int]:
        """The newest conversations, the newest first, and how many more there are; 0 is all of them.

        Where it is not known how many more there are, -1 says that there are some.
        """

    async def session(self, id: str, last: int | None = None) -> tuple[SessionRow, Sequence[Mapping[str, Any]]]:
        """One conversation, by the id of its session or root, and its messages, or the last of them. Raises Unknown."""

    async def remove_session(self, id: str) -> str:
        """Remove a conversation; the id of its root. Raises Unknown, and a RametError for one that is needed."""

    # ---- looking

    async def runs(self, *, ended: bool = False) -> list[RunRow]:
        """The runs of all trees, in the order of their births: those that have not ended, or with `ended` all."""

    async def run(self, id: str) -> RunRow:
        """One run, with its result."""

    async def root_of(self, run: str) -> str:
        """The root of the tree that a run belongs to."""

    async def tree(self, run: str) -> list[RunRow]:
        """Every run of the tree that a run belongs to, in the order of their births; results may be left out."""

    def events(self, run: str, *, tree: bool = False) -> AsyncGenerator[Event]:
        """What is on record of a run, or with `tree` of all runs of its tree, in order."""

    def follow(self, run: str, *, tree: bool = False) -> AsyncGenerator[Event]:
        """The same, and then what comes: until its end, or until nobody is at work in it any more."""

    async def questions(self) -> list[Question]:
        """What waits for a person's word, the oldest first."""

    async def passages(self, wanted: GateEventFilter, *, after: int, limit: int) -> GateEventPage:
        """A page of what came to the safety gates behind a cursor."""

    def follow_passages(self, wanted: GateEventFilter, *, after: int) -> AsyncGenerator[GateEvent]:
        """Yield the same, and what comes, without an end."""

    # ---- steering; each returns what came of it, as plain data

    async def send(self, run: str, text: str, dedupe_s: float | None = None) -> dict[str, Any]:
        """Say something to a run: `mail`, what becomes of the message; `dedupe_s` as of `Session.send`."""

    async def stop(self, run: str, reason: str) -> dict[str, Any]:
        """End a run and all below it: the paths that were `stopped`, and the calls that are `left`."""

    async def read_file(self, run: str, path: str) -> bytes:
        """The content of a file of a run at work, by its name below the run's workspace."""

    async def answer(self, approval: str, allowed: bool, reason: str) -> dict[str, Any]:
        """Answer a question: its id as `approval`, and what was `allowed`."""

    async def keep(self, run: str, on: bool) -> dict[str, Any]:
        """Keep the tree of a run whatever its time is, or no longer: the `tree`, and whether it is `kept`."""

    # ---- schedules

    async def schedules(self) -> Sequence[ScheduleView]:
        """All of them."""

    async def add_schedule(self, new: NewSchedule) -> ScheduleView:
        """Write one down. Raises InvalidValue."""

    async def change_schedule(self, id: str, change: Change) -> ScheduleView | None:
        """Change one, and return it as it stands then, None if it is no more. Raises Unknown."""
