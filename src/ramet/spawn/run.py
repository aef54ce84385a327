"""A run as its tree stores it: identity, state, resources and result; its current turn, and its sandbox."""

from __future__ import annotations

import asyncio
import math
import pathlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from langchain_core.messages import BaseMessage

from ramet.agent.composition.steps import Composition
from ramet.agent.definition import Agent
from ramet.agent.history.compaction import Compaction
from ramet.agent.hooks.config import HookConfig
from ramet.agent.toolset import Toolset
from ramet.concurrency.activity import RunActivity
from ramet.core.budget import Budget
from ramet.core.equal_mail import RecentMail
from ramet.core.ids import RunId
from ramet.core.lifecycle import LIVE_STATES, State
from ramet.core.limits import Limits
from ramet.core.liveness.watch_settings import NO_WATCH, Watch
from ramet.core.mcp.server_entry import McpServer
from ramet.core.outcome import NO_USAGE, Artifact, ErrorInfo, Result, Status, Usage
from ramet.core.policy.policy import Grant, Policy
from ramet.core.replay.run_replay import RunReplay
from ramet.isolation.contract import Sandbox
from ramet.isolation.git.clone import Clone
from ramet.isolation.git.worktree import Worktree
from ramet.isolation.workspace.run_dirs import RunFolder
from ramet.spawn.admission import AdmissionSlot, ResourceShare
from ramet.spawn.run_pauses import RunPauses
from ramet.spawn.served_ports import ServedPorts
from ramet.spawn.tool_calls import InterruptedCall, ToolCallLedger
from ramet.tools.context import ToolUseContext
from ramet.tools.forwarding import OpenForwarding
from ramet.tools.mcp.connection_port import McpCaller, McpClient, McpConnection, ServerPrompts
from ramet.tools.mcp.package_port import McpPackages
from ramet.tools.run_info import RunInfo
from ramet.tools.spawn_request import SpawnRequest
from ramet.wire.code.capsule import PackedCall
from ramet.wire.values.values import EncodedValue

if TYPE_CHECKING:
    from langchain_core.tools import BaseTool

_SAME_TIME_S = 1e-6  #: two ends of time limits this close to each other count as equal


class TurnResult(NamedTuple):
    status: Status
    value: Any = None
    error: ErrorInfo | None = None
    partial: str = ""


@dataclass(eq=False, kw_only=True, slots=True)
class RunTurn:
    """Data of a run's current turn, or of its last one."""

    woken_by_mail: bool = False  #: mail began the turn, not a prompt
    resumes: bool = False  #: it continues a turn that another process began
    replies: int = 0  #: replies of the model in the resumed turn before it continued here
    objections: int = 0  #: messages in that turn that told the run to continue instead of ending
    attempt: int = 1  #: of the turn that continues here
    spawn_requests: Counter[str] = field(default_factory=Counter)  #: spawns that were requested in it, by content
    spawns_before: int = 0  #: spawns of the run before it
    verdict: TurnResult | None = None  #: its result
    stop_result: TurnResult | None = None  #: the result with which the run was stopped, while stopping
    on_result: Callable[[Result], None] | None = None  #: called with its result, if a caller waits for it


class SandboxOutput(NamedTuple):
    """The output of a sandbox besides its value: files, the newest printed text, and the encoded value."""

    files: tuple[Artifact, ...] = ()
    stdout: str = ""
    stderr: str = ""
    value: EncodedValue | None = None


NO_OUTPUT = SandboxOutput()


@dataclass(eq=False, kw_only=True, slots=True)
class RunSandbox:
    """The sandbox of a run, with what outlives its process. Empty for a run that works in the host."""

    capsule: PackedCall | None = None  #: of a function
    #: Targets of the mounts of the operator's grant above it, or of its own, at that time (`ramet.isolation.mounts`).
    mount_roots: Mapping[str, str] = field(default_factory=dict)
    forwarding: OpenForwarding | None = None  #: for the model requests of a program in it
    mcp_client: McpClient | None = None  #: for the servers of its run
    variables: Callable[[], Mapping[str, str]] = dict  #: returns its variables
    mcp_packages: McpPackages | None = None  #: of those servers
    mcp_programs: Mapping[str, McpServer] = field(default_factory=dict)  #: started in place of servers with packages
    #: Holds a place for the sandbox of one of these servers. Raises SpawnRefused if there is no room.
    admit_server: Callable[[ResourceShare], AbstractContextManager[None]] | None = None
    #: Joins a server that agents of its tree share. Raises SpawnRefused for one with more rights than the run.
    join_server: Callable[[McpServer, McpCaller], McpConnection] | None = None
    server_prompts: ServerPrompts | None = None  #: of the servers of its current process, or of its last one
    #: Tools of these servers that its model found, and whether that is recorded: a fork has those of its parent.
    loaded_tools: dict[str, bool] = field(default_factory=dict)
    missing_variables: tuple[str, ...] = ()  #: variables whose values only a sandbox that continues has
    clone: Clone | None = None  #: of a run that works in a clone of a repository
    definition_mounts: tuple[str, ...] = ()  #: folders of its skills and MCP servers, beyond its policy
    folder: RunFolder | None = None
    is_folder_lost: bool = False  #: the run continues in an empty folder, and its agent was not informed yet
    was_started: bool = False  #: its folder may hold files
    current: Sandbox | None = None  #: set while a process of it lives
    served_ports: ServedPorts = field(default_factory=ServedPorts)  #: its ports, while a sandbox of it is active
    on_process_change: Callable[[], None] = lambda: None  #: called when `current` has ended, was frozen or was thawed
    on_start: Callable[[], None] = lambda: None  #: called when a new process of it begins
    on_pause: Callable[[], None] | None = None  #: called when a pause of it may have begun or ended
    cut: Callable[[], None] | None = None  #: ends its process, which goes on from the record after a pause
    on_state: Callable[[], None] | None = None  #: called when the state of the run may have changed
    is_frozen: bool = False  #: no process of it runs
    can_outlive_kernel: bool = False  #: another kernel can continue with it
    replay: RunReplay | None = None  #: an ended kernel may have left the run active in a sandbox
    inherited_calls: ToolCallLedger | None = None  #: calls that its guest had been granted by that kernel
    #: Calls of its newest reply that may begin again in its next process, by id.
    interrupted_calls: dict[str, InterruptedCall] = field(default_factory=dict)
    output: SandboxOutput = NO_OUTPUT  #: output of its newest attempt


@dataclass(eq=False, kw_only=True, slots=True)
class Run:
    """The data of one run in its tree. Only the supervisor changes its state."""

    info: RunInfo
    name: str
    agent: Agent
    parent: Run | None
    request: SpawnRequest
    context: ToolUseContext
    activity: RunActivity
    turn: RunTurn = field(default_factory=RunTurn)
    sandbox: RunSandbox = field(default_factory=RunSandbox)
    admission_slot: AdmissionSlot
    waits_for: list[Run] = field(default_factory=list)  #: runs whose results it awaits by a handle
    max_turns: int
    limits: Limits
    rights: tuple[Toolset, ...]  #: of every run above at its spawn, and its own
    gates: tuple[HookConfig, ...] = ()  #: hooks of definitions above that apply to everything below
    model: str = ""
    window: int | None = None  #: input tokens that its model accepts, if the model says so
    watch: Watch = NO_WATCH
    state: State = State.STARTING
    persistent: bool = False  #: the root of a session: the end of a turn is not its end
    background: bool = False
    detached: bool = False
    own_budget: Budget | None = None  #: the slice that is returned at its end
    pending: list[BaseMessage] = field(default_factory=list)  #: the first messages of its next turn
    earlier_elapsed_s: float = 0.0  #: seconds of its time that passed in other processes
    turns: int = 0
    recent_mail: RecentMail | None = None  #: None until mail from outside arrives
    waits_for_idle: set[str] = field(default_factory=set)  #: runs whose idle notice it awaits before its end
    awaiting_idle: dict[str, str] = field(default_factory=dict)  #: mail ids, and the runs to notify when it is idle
    monitors: dict[str, int] = field(default_factory=dict)  #: commands that it monitors, with the number of batches
    monitors_by_request: dict[str, str] = field(default_factory=dict)  #: that another process started
    monitor_count: int = 0  #: so many were started
    wake_count: int = 0  #: turns begun by a notice since the last message of a user
    activations: int = 1  #: a finished agent that receives mail lives again
    children: dict[RunId, Run] = field(default_factory=dict)  #: the living children
    spawn_count: int = 0
    failed_spawns: int = 0  #: spawns that a policy adapter was asked about and that failed, since the last success
    subtree: Usage = NO_USAGE
    result: Result | None = None
    task: asyncio.Task[None] | None = None
    deadline: asyncio.Task[None] | None = None
    worktree: Worktree | Clone | None = None  #: its copy of a repository, until it is left at the end
    worktree_end: asyncio.Task[None] | None = None  #: leaves it
    artifacts: tuple[str, ...] = ()
    compaction: Compaction | None = None
    grant: Grant | None = None  #: the grant of its sandbox; None: it works in the host
    policy_ceiling: Policy | None = None  #: the most that a policy adapter allowed at its spawn
    step_ceiling: Grant | None = None  #: of a composition with a policy: the most that its steps may do
    repeatable: bool = True  #: a function: may be called again if no process can continue it
    admitted_spawns: int = 0  #: children that it was allowed to start, spawns in progress included
    time_started_at: float = 0.0  #: start of its time, by the monotonic clock; for a root, the start of each turn
    time_stopped_at: float | None = None  #: since when its time stands; None: it does not
    turn_result: Result | None = None  #: of the newest turn that ended here, once that is recorded
    pauses: RunPauses = field(default_factory=RunPauses)
    #: scopes and resources at which a person refused its requests, with the turn for which that holds
    denied_limits: dict[tuple[str, str], int] = field(default_factory=dict)
    raised_limits: dict[str, Limits] = field(default_factory=dict)  #: what was added to its limits, by the owner's key
    pending_change: Callable[[], None] | None = None  #: a change to apply when its next turn begins
    memory: Any = None  #: its working copy of its state, once that was requested
    reported_result: Result | None = None  #: the result, once waiters may receive it
    has_grants: bool = field(init=False)  #: a grant was given to it, or to a run above it
    _recorded_end: asyncio.Future[Result] | None = None
    _conclusion: asyncio.Future[Result] | None = None

    def __post_init__(self) -> None:
        self.has_grants = self.grant is not None or self.step_ceiling is not None
        self.move_below(self.parent)

    def move_below(self, parent: Run | None) -> None:
        """Make a run its parent: the one that spawned it, or the nearest above that still exists."""
        self.parent = parent
        self.has_grants = self.has_grants or (parent is not None and parent.has_grants)

    @property
    def is_living(self) -> bool:
        """True if the run has not ended."""
        return self.state in LIVE_STATES

    @property
    def awaits_prompt(self) -> bool:
        """True if the run is the root of a session that has had no turn yet."""
        return self.persistent and self.turns == 0 and self.state is State.STARTING

    @property
    def restarts_from_scratch(self) -> bool:
        """True if only its sandbox knows its progress: a function, which records nothing until it returns."""
        return self.agent.function is not None and not isinstance(self.agent.function, Composition)

    @property
    def turn_began_at(self) -> int:
        """Index into the history, which moves when the history is shortened."""
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
        """The capacity that its living children may use together; None in the host, which does not count."""
        return ResourceShare(self.grant.memory_mb, self.grant.cpu_cores) if self.grant is not None else None

    @property
    def visible_cwd(self) -> pathlib.Path:
        """The working directory as the run sees it.

        Inside a sandbox, a folder that is not mounted does not exist; the run's own folder, and its clone there, do.
        """
        if self.grant is None or self.sandbox.folder is None:
            return self.context.cwd
        if self.sandbox.clone is not None:
            return self.sandbox.clone.cwd(self.sandbox.folder.workspace)
        is_mounted = any(self.context.cwd.is_relative_to(mount) for mount in self.grant.mounts.paths)
        return self.context.cwd if is_mounted else self.sandbox.folder.workspace

    @property
    def import_dir(self) -> pathlib.Path | None:
        """A folder of the host from which the run imports.

        The run's own folder, or its parent's unless the run requests other mounts.
        """
        policy, own = self.request.policy, self.request.import_dir
        if own is not None or self.parent is None or (policy is not None and policy.readonly_mounts is not None):
            return own
        return self.parent.import_dir

    def seconds_left(self, now: float) -> float | None:
        """Return the remaining time of the run and of the runs above it; None without any limit."""
        seconds = [
            run.time_started_at + run.limits.seconds - (now if run.time_stopped_at is None else run.time_stopped_at)
            for run in self.ancestors()
            if run.limits.seconds is not None
        ]
        return max(0.0, min(seconds)) if seconds else None

    def expired_ancestor(self) -> Run | None:
        """Return the topmost run above whose time ends no later than this run's, if there is one.

        A child gets at most its parent's remaining time. The two ends may differ a little because of fractions.
        """
        assert self.limits.seconds is not None, "its time is over"
        own = self.time_started_at + self.limits.seconds + _SAME_TIME_S
        topmost = None
        for run in self.ancestors():
            limit = run.limits.seconds
            if (
                run is not self
                and run.deadline is not None
                and run.time_stopped_at is None
                and limit is not None
                and run.time_started_at + limit <= own
            ):
                topmost = run
        return topmost

    @property
    def living_descendants(self) -> Iterable[Run]:
        return self.children.values()

    def recorded_end(self) -> asyncio.Future[Result]:
        """Return a future of the recorded end; every waiter must shield it."""
        if self._recorded_end is None:
            self._recorded_end = asyncio.get_running_loop().create_future()
            if self.reported_result is not None:
                self._recorded_end.set_result(self.reported_result)
        return self._recorded_end

    def conclusion(self) -> asyncio.Future[Result]:
        """Return a future of the end, before the end is durable; every waiter must shield it.

        Only for callers that do not act before the end is durable.
        """
        if self._conclusion is None:
            self._conclusion = asyncio.get_running_loop().create_future()
            if self.result is not None:
                self._conclusion.set_result(self.result)
        return self._conclusion

    @property
    def is_awaited(self) -> bool:
        """True if the end must be recorded soon: some waiter does not record what it received."""
        return self._conclusion is None or self._recorded_end is not None

    def conclude(self, result: Result) -> None:
        """Set the result of a run that has ended; its record is not durable yet."""
        self.result = result
        if self._conclusion is not None and not self._conclusion.done():
            self._conclusion.set_result(result)

    def announce(self, result: Result) -> None:
        """Report the recorded end to all waiters."""
        self.result = self.reported_result = result
        if self._recorded_end is not None and not self._recorded_end.done():
            self._recorded_end.set_result(result)

    def report_turn(self, result: Result, reader: Callable[[Result], None] | None) -> None:
        """Store the result of a turn, and pass it to `reader`, which waited for that turn when it ended."""
        self.turn_result = result
        if reader is not None:
            reader(result)

    def drop_deadline(self, *, keep: bool = False) -> None:
        """Stop watching the time, unless the time continues after this turn (`keep`)."""
        if keep:
            return
        self.earlier_elapsed_s, self.time_stopped_at = 0.0, None
        if self.deadline is not None:
            if self.deadline is not asyncio.current_task():
                self.deadline.cancel()
            self.deadline = None

    @property
    def can_continue(self) -> bool:
        """True if the run can have another turn: it lives, or takes prompts, so that mail can resume it."""
        return self.is_living or (self.state is State.ENDED and self.agent.takes_prompt)

    def reactivate(self) -> None:
        """Clear the last end: the run lives again."""
        self.result = self.reported_result = self.turn.verdict = self.turn.stop_result = None
        self._recorded_end = self._conclusion = None
        self.activations += 1

    def count(self, usage: Usage) -> None:
        """Add usage here and in every run above; a run that uses something does not pause any more."""
        self.pauses.recorded_limit = None
        for run in self.lineage():
            run.subtree = run.subtree + usage

    def may_spawn_type(self, name: str) -> bool:
        """Return whether the run, and every run above it at its spawn, may spawn this type.

        Resuming a run widens nothing.
        """
        return all(each.may_spawn_type(name) for each in self.rights)

    @property
    def inheritable_tools(self) -> tuple[BaseTool, ...]:
        """The most that its children may get: its own tools, or those that a coordinator may only give on."""
        delegable = self.rights[-1].delegable
        return self.context.tools if delegable is None else delegable

    def seconds_at_most(self) -> float:
        """Return the tightest time limit here and above: nothing that ends with this run lives longer."""
        limits = [run.limits.seconds for run in self.ancestors() if run.limits.seconds is not None]
        return min(limits, default=math.inf)

    def attached_children(self) -> list[Run]:
        """Return the living children that end with the run."""
        return [each for each in self.children.values() if not each.detached]

    def descendants(self) -> Iterator[Run]:
        """Iterate over the run itself and every living run that ends with it, parents before children."""
        pending = [self]
        while pending:
            run = pending.pop()
            yield run
            pending.extend(run.attached_children())

    def ancestors(self) -> Iterator[Run]:
        """Iterate over the run itself and every run that cannot end before it does."""
        run: Run | None = self
        while run is not None:
            yield run
            run = None if run.detached else run.parent

    def lineage(self) -> Iterator[Run]:
        """Iterate over the run itself and every run above it, nearest first."""
        run: Run | None = self
        while run is not None:
            yield run
            run = run.parent

    def grants(self) -> Iterator[Grant]:
        """Iterate over the grants of the run and of every run above it, nearest first."""
        for run in self.lineage() if self.has_grants else ():
            yield from (grant for grant in (run.grant, run.step_ceiling) if grant is not None)

    def is_below(self, other: Run) -> bool:
        """Return whether `other` is an ancestor of the run."""
        return self is not other and other in self.lineage()
