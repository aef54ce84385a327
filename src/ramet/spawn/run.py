"""One life of an agent, as its tree keeps it: who it is, where it stands, what it has, what became of it."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from langchain_core.messages import BaseMessage

from ramet.agent.compaction import Compaction
from ramet.agent.definition import Agent
from ramet.agent.hook_config import HookConfig
from ramet.agent.toolset import Toolset
from ramet.core.budget import Budget, Limits
from ramet.core.ids import RunId
from ramet.core.lifecycle import LIVING, State
from ramet.core.outcome import NOTHING_USED, ErrorInfo, Result, Status, Usage
from ramet.isolation.worktree import Worktree
from ramet.spawn.admission import Place
from ramet.tools.context import RunInfo, RunView, SpawnRequest, ToolUseContext


class Verdict(NamedTuple):
    """How a turn ended."""

    status: Status
    value: Any = None
    error: ErrorInfo | None = None
    partial: str = ""


@dataclass(eq=False, kw_only=True, slots=True)
class Run:
    """Everything a tree knows of one run. Only the supervisor changes its state."""

    info: RunInfo
    name: str
    agent: Agent
    parent: Run | None
    request: SpawnRequest
    context: ToolUseContext
    place: Place
    waits_for: list[Run] = field(default_factory=list)  #: runs whose results it awaits by handle
    max_turns: int
    limits: Limits
    rights: tuple[Toolset, ...]  #: of every run above at its birth, and its own
    gates: tuple[HookConfig, ...] = ()  #: hooks of definitions above that bind what is below
    model: str = ""
    state: State = State.STARTING
    persistent: bool = False  #: the root of a session: a turn's end is not its end
    background: bool = False
    detached: bool = False
    own_budget: Budget | None = None  #: the slice that returns at its end
    pending: list[BaseMessage] = field(default_factory=list)  #: what its next turn begins with
    waking: bool = False  #: the turn under way was begun by mail, not by a prompt
    turns: int = 0
    wakes: int = 0  #: turns begun by a notice since the last word of a user
    lives: int = 1  #: a finished agent that gets mail lives again
    children: dict[RunId, Run] = field(default_factory=dict)  #: the living ones
    births: int = 0
    subtree: Usage = NOTHING_USED
    verdict: Verdict | None = None  #: of the last turn
    cut: Verdict | None = None  #: what it was stopped with, while stopping
    result: Result | None = None
    task: asyncio.Task[None] | None = None
    deadline: asyncio.Task[None] | None = None
    heard: list[str] = field(default_factory=list)  #: text of the reply that is streaming
    turn_began_at: int = 0  #: index into the history
    worktree: Worktree | None = None
    artifacts: tuple[str, ...] = ()
    compaction: Compaction | None = None
    on_turn: Callable[[Result], None] | None = None  #: told the result of each turn, if anybody waits for it
    _ended: asyncio.Future[Result] | None = None

    @property
    def is_living(self) -> bool:
        """Whether it has not ended."""
        return self.state in LIVING

    @property
    def path(self) -> str:
        """Names from the root down."""
        return self.info.path

    @property
    def below_now(self) -> Iterable[Run]:
        """Its living children."""
        return self.children.values()

    def ended(self) -> asyncio.Future[Result]:
        """A future of its end; every waiter must shield it."""
        if self._ended is None:
            self._ended = asyncio.get_running_loop().create_future()
            if self.result is not None:
                self._ended.set_result(self.result)
        return self._ended

    def announce(self, result: Result) -> None:
        """Set the result and tell all who wait."""
        self.result = result
        if self._ended is not None and not self._ended.done():
            self._ended.set_result(result)

    def announce_turn(self, result: Result) -> None:
        """Tell whoever waits for this turn."""
        if self.on_turn is not None:
            self.on_turn(result)

    def drop_deadline(self, *, keep: bool = False) -> None:
        """Stop watching the time, unless it goes on beyond this turn."""
        if self.deadline is not None and not keep:
            if self.deadline is not asyncio.current_task():
                self.deadline.cancel()
            self.deadline = None

    def revive(self) -> None:
        """Forget the last end: it lives again."""
        self.result = self.verdict = self.cut = self._ended = None
        self.lives += 1

    def count(self, usage: Usage) -> None:
        """Add what was used, here and in every run above."""
        run: Run | None = self
        while run is not None:
            run.subtree = run.subtree + usage
            run = run.parent

    def may_spawn_type(self, name: str) -> bool:
        """Whether it, and every run that was above it at its birth, may spawn this type: coming back widens nothing."""
        return all(each.may_spawn_type(name) for each in self.rights)

    def seconds_at_most(self) -> float:
        """The tightest time limit here and above: nothing that ends with this run lives longer."""
        limits = [run.limits.seconds for run in self.above() if run.limits.seconds is not None]
        return min(limits, default=math.inf)

    def bound_children(self) -> list[Run]:
        """Living children that end with it."""
        return [each for each in self.children.values() if not each.detached]

    def below(self) -> Iterator[Run]:
        """Itself and every living run that ends with it, parents before children."""
        pending = [self]
        while pending:
            run = pending.pop()
            yield run
            pending.extend(run.bound_children())

    def above(self) -> Iterator[Run]:
        """Itself and every run that cannot end before it does."""
        run: Run | None = self
        while run is not None:
            yield run
            run = None if run.detached else run.parent

    def is_below(self, other: Run) -> bool:
        """Whether `other` is among its ancestors."""
        run = self.parent
        while run is not None:
            if run is other:
                return True
            run = run.parent
        return False

    def view(self) -> RunView:
        """One line for a listing."""
        state = str(self.result.status) if self.result is not None else str(self.state)
        return RunView(
            id=self.info.id,
            path=self.info.path,
            name=self.name,
            agent=self.info.agent,
            state=state,
            description=self.request.description,
            depth=self.info.depth,
            children=len(self.children),
            usage=self.subtree,
        )
