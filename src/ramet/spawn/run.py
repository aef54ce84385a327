"""One life of an agent, as its tree keeps it: who it is, where it stands, what it has, what became of it."""

from __future__ import annotations

import asyncio
import math
import pathlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from langchain_core.messages import BaseMessage

from ramet.agent.composition.steps import Composed
from ramet.agent.definition import Agent
from ramet.agent.history.compaction import Compaction
from ramet.agent.hooks.config import HookConfig
from ramet.agent.toolset import Toolset
from ramet.core.budget import Budget, Limits
from ramet.core.equal_mail import RecentMail
from ramet.core.ids import RunId
from ramet.core.lifecycle import LIVING, State
from ramet.core.outcome import NOTHING_USED, Artifact, ErrorInfo, Result, Status, Usage
from ramet.core.policy.policy import Grant, Policy
from ramet.core.replay.replay import RunReplay
from ramet.isolation.contract import Sandbox
from ramet.isolation.git.worktree import Worktree
from ramet.isolation.workspace.run_dirs import RunFolder
from ramet.spawn.admission import AdmissionSlot, ResourceShare
from ramet.spawn.served_ports import Serving
from ramet.spawn.tool_calls import ToolCallLedger
from ramet.tools.context import RunInfo, RunView, SpawnRequest, ToolUseContext
from ramet.wire.code.capsule import PackedCall
from ramet.wire.values.values import Encoded


class TurnResult(NamedTuple):
    """How a turn ended."""

    status: Status
    value: Any = None
    error: ErrorInfo | None = None
    partial: str = ""


class SandboxOutput(NamedTuple):
    """What a sandbox left beside its value: files, the newest of what was printed, and the value as it came."""

    files: tuple[Artifact, ...] = ()
    stdout: str = ""
    stderr: str = ""
    value: Encoded | None = None


NOTHING_LEFT = SandboxOutput()
_SAME_TIME_S = 1e-6  #: two times that are over so close to each other are one


@dataclass(eq=False, kw_only=True, slots=True)
class Run:
    """Everything a tree knows of one run. Only the supervisor changes its state."""

    info: RunInfo
    name: str
    agent: Agent
    parent: Run | None
    request: SpawnRequest
    context: ToolUseContext
    place: AdmissionSlot
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
    resumes: bool = False  #: its turn goes on that another process began
    replied: int = 0  #: so often its model had, in the turn that goes on here, before that
    objected: int = 0  #: so often it was told there, instead of ending, to go on
    aged_s: float = 0.0  #: of its time, so many seconds had gone by in other processes
    spawned: Counter[str] = field(default_factory=Counter)  #: births that it has asked for in this turn, by content
    turns: int = 0
    attempt: int = 1  #: at the turn that goes on here
    recent_mail: RecentMail | None = None  #: None as long as it has had none from outside
    waits_for_rest: set[str] = field(default_factory=set)  #: ids of runs of whose rest it is told: it stays for that
    awaiting_idle: dict[str, str] = field(default_factory=dict)  #: ids of mail, and of runs told once this one rests
    wakes: int = 0  #: turns begun by a notice since the last word of a user
    lives: int = 1  #: a finished agent that gets mail lives again
    children: dict[RunId, Run] = field(default_factory=dict)  #: the living ones
    births: int = 0
    unborn: int = 0  #: births that a policy adapter was asked about and that did not come, since the last that did
    births_before: int = 0  #: of these, those before its newest turn
    subtree: Usage = NOTHING_USED
    verdict: TurnResult | None = None  #: of the last turn
    cut: TurnResult | None = None  #: what it was stopped with, while stopping
    result: Result | None = None
    task: asyncio.Task[None] | None = None
    deadline: asyncio.Task[None] | None = None
    heard: list[str] = field(default_factory=list)  #: text of the reply that is streaming
    worktree: Worktree | None = None
    artifacts: tuple[str, ...] = ()
    compaction: Compaction | None = None
    grant: Grant | None = None  #: what its sandbox may do; None: it works in the host
    #: Of the operator's grant above it, or its own: where each mount led then (`ramet.isolation.mounts`).
    mount_roots: Mapping[str, str] = field(default_factory=dict)
    narrowed: Policy | None = None  #: what a policy adapter allowed it at most, at its birth
    bound: Grant | None = None  #: of a composition with a policy: what its steps may do at most
    lacking: tuple[str, ...] = ()  #: variables whose values only a sandbox that goes on has
    capsule: PackedCall | None = None  #: of a function in a sandbox
    folder: RunFolder | None = None
    was_inside: bool = False  #: a sandbox was started for it: there may be something in its folder
    is_folder_lost: bool = False  #: it goes on in an empty one, and its agent has not been told
    box: Sandbox | None = None  #: while a process of it lives
    serving: Serving = field(default_factory=Serving)  #: its ports, while a sandbox of it is at work
    outlives: bool = False  #: its kernel, in the sandbox that it is in: another one can go on with it there
    repeatable: bool = True  #: a function, it may be called again where nobody can go on in its middle
    left_in: RunReplay | None = None  #: on record: a kernel that has ended may have left it at work in a sandbox
    inherited: ToolCallLedger | None = None  #: what its guest had been granted by that kernel
    left: SandboxOutput = NOTHING_LEFT  #: by its newest attempt
    asked: int = 0  #: children that it was let start, births under way included
    timed_from: float = 0.0  #: when its time began, by the monotonic clock: a root's does with each turn
    on_turn: Callable[[Result], None] | None = None  #: told the result of each turn, if anybody waits for it
    turn_result: Result | None = None  #: of the newest turn that ended here, once that is on record
    change: Callable[[], None] | None = None  #: made when its next turn begins
    memory: Any = None  #: its working copy of its state, once it was asked for
    told: Result | None = None  #: the result, once whoever waits may know it
    _ended: asyncio.Future[Result] | None = None
    _over: asyncio.Future[Result] | None = None

    @property
    def is_living(self) -> bool:
        """Whether it has not ended."""
        return self.state in LIVING

    @property
    def awaits_prompt(self) -> bool:
        """Whether it is the root of a session that has had no turn yet."""
        return self.persistent and self.turns == 0 and self.state is State.STARTING

    @property
    def begins_anew(self) -> bool:
        """Whether only its sandbox knows how far it is: a function, of which nothing is on record until it returns."""
        return self.agent.function is not None and not isinstance(self.agent.function, Composed)

    @property
    def turn_began_at(self) -> int:
        """Index into its history, which moves when that is shortened."""
        return self.context.turn_began_at

    @turn_began_at.setter
    def turn_began_at(self, place: int) -> None:
        self.context.turn_began_at = place

    @property
    def path(self) -> str:
        """Names from the root down."""
        return self.info.path

    @property
    def envelope(self) -> ResourceShare | None:
        """What its living children may take up together; None in the host, where nobody counts."""
        return ResourceShare(self.grant.memory_mb, self.grant.cpu_cores) if self.grant is not None else None

    @property
    def works_in(self) -> pathlib.Path:
        """Its working directory as it sees it: inside, what is not mounted is not there, and its own folder is."""
        if self.grant is None or self.folder is None:
            return self.context.cwd
        mounted = any(self.context.cwd.is_relative_to(mount) for mount in self.grant.readonly_mounts)
        return self.context.cwd if mounted else self.folder.workspace

    @property
    def shelf(self) -> pathlib.Path | None:
        """A folder of the host's that it imports from: its own, or its parent's, unless it asks for other mounts."""
        policy, own = self.request.policy, self.request.shelf
        if own is not None or self.parent is None or (policy is not None and policy.readonly_mounts is not None):
            return own
        return self.parent.shelf

    def seconds_left(self, now: float) -> float | None:
        """What is left of its time, and of those above it; None without any limit."""
        ends = [run.timed_from + run.limits.seconds for run in self.above() if run.limits.seconds is not None]
        return max(0.0, min(ends) - now) if ends else None

    def above_out_of_time(self) -> Run | None:
        """Return the topmost run above whose time is over no later than this one's, if there is one.

        A child gets at most what is left of its parent's time: computed in fractions, the two ends may differ a little.
        """
        assert self.limits.seconds is not None, "its time is over"
        own = self.timed_from + self.limits.seconds + _SAME_TIME_S
        found = None
        for run in self.above():
            limit = run.limits.seconds
            if run is not self and run.deadline is not None and limit is not None and run.timed_from + limit <= own:
                found = run
        return found

    @property
    def below_now(self) -> Iterable[Run]:
        """Its living children."""
        return self.children.values()

    def ended(self) -> asyncio.Future[Result]:
        """A future of its end; every waiter must shield it."""
        if self._ended is None:
            self._ended = asyncio.get_running_loop().create_future()
            if self.told is not None:
                self._ended.set_result(self.told)
        return self._ended

    def over(self) -> asyncio.Future[Result]:
        """The same, before its end survives a kill: for who acts on it no sooner than that. To be shielded, too."""
        if self._over is None:
            self._over = asyncio.get_running_loop().create_future()
            if self.result is not None:
                self._over.set_result(self.result)
        return self._over

    @property
    def is_awaited(self) -> bool:
        """Whether its end is to be on record soon: not if all who wait put down what they heard, and wait for that."""
        return self._over is None or self._ended is not None

    def conclude(self, result: Result) -> None:
        """It has ended, and that is on its way onto the record."""
        self.result = result
        if self._over is not None and not self._over.done():
            self._over.set_result(result)

    def announce(self, result: Result) -> None:
        """Tell all who wait for its end: it is on record."""
        self.result = self.told = result
        if self._ended is not None and not self._ended.done():
            self._ended.set_result(result)

    def announce_turn(self, result: Result) -> None:
        """Keep the result of a turn, and hand it to the reader of that turn."""
        self.tell_turn(result, self.on_turn)

    def tell_turn(self, result: Result, reader: Callable[[Result], None] | None) -> None:
        """Keep the result of a turn, and hand it to `reader`, which read that turn when it ended."""
        self.turn_result = result
        if reader is not None:
            reader(result)

    def drop_deadline(self, *, keep: bool = False) -> None:
        """Stop watching the time, unless it goes on beyond this turn."""
        if keep:
            return
        self.aged_s = 0.0
        if self.deadline is not None:
            if self.deadline is not asyncio.current_task():
                self.deadline.cancel()
            self.deadline = None

    @property
    def can_go_on(self) -> bool:
        """Whether it can have another turn: it lives, or is a conversation that mail brings back."""
        return self.is_living or (self.state is State.ENDED and self.agent.function is None)

    def revive(self) -> None:
        """Forget the last end: it lives again."""
        self.result = self.told = self.verdict = self.cut = self._ended = self._over = None
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
