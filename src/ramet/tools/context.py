"""The context of a run, for its tools and its loop: one value per run, passed down and never global.

The interfaces here are protocols because their implementations are in higher layers: in the host they are the spawner,
the gateway and the recorder; in a guest they are the channel's client.
"""

from __future__ import annotations

import asyncio
import pathlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, TypeAlias, TypeVar

from ramet.concurrency.background_commands import BackgroundCommands
from ramet.concurrency.cancel import AbortController
from ramet.concurrency.clock import Clock, SystemClock
from ramet.concurrency.cuts import Cuts
from ramet.concurrency.mailbox import Mailbox
from ramet.concurrency.slots import Slot, Slots
from ramet.core.budget import Budget
from ramet.core.errors import BudgetExceeded
from ramet.core.events import BudgetRefused, Event, QuotaReached
from ramet.core.ids import CallId, RunId, StepId, step_id
from ramet.core.limits import Limits
from ramet.core.outcome import NO_USAGE, Usage
from ramet.core.policy.permissions import NO_PERMISSIONS, Permissions
from ramet.tools.decisions import Approval, HookDecision, PeerRequest, SafetyDecision
from ramet.tools.model_request import Charge, ForeignRequest, ModelRequest
from ramet.tools.run_info import MonitorReport, RunInfo, RunView, StopReceipt
from ramet.tools.spawn_request import CreationReceipt, SpawnHandle, SpawnRequest

if TYPE_CHECKING:
    from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage, ToolMessage
    from langchain_core.tools import BaseTool

    from ramet.wire.code.capsule import PackedCall
    from ramet.wire.guest_protocol.answer_data import StateReply
    from ramet.wire.guest_protocol.guest_to_host import UseState


T = TypeVar("T")


class Tree(Protocol):
    """The runs around a context: a tool's only access to other agents."""

    async def spawn(self, parent: ToolUseContext, request: SpawnRequest) -> SpawnHandle:
        """Spawn a run. Raises SpawnRefused if it is refused."""

    def find_recorded_spawn(self, parent: ToolUseContext, prefix: str) -> str | None:
        """Return the key, with this prefix, of a spawn that this run requested in an earlier process, or None."""

    def resume_children(self, parent: ToolUseContext) -> Sequence[SpawnHandle]:
        """Return the children of this run from an earlier process, for a run that is not repeated from its start.

        Every later spawn request is a new one.
        """

    async def move_to_background(self, parent: ToolUseContext, child: SpawnHandle) -> None:
        """Make a child that the parent waited for a background run: a notice reports its end."""

    def detach_calls(self, parent: ToolUseContext, calls: Collection[CallId]) -> None:
        """Stop waiting for the children of these calls of this run: notices will report their ends."""

    def spawnable(self, parent: ToolUseContext) -> Mapping[str, str]:
        """Return the types that this run may spawn, with their descriptions."""

    async def send(
        self,
        sender: ToolUseContext,
        to: str,
        text: str,
        *,
        notify_when_idle: bool = False,
        dedupe_s: float | None = None,
    ) -> str:
        """Deliver mail by id, path or name; return the outcome. Raises MailRefused or Unknown.

        With `notify_when_idle` a notice tells the sender, once, when the recipient is idle or has ended afterwards.
        With `dedupe_s`, a message equal to one of the sender's in the last `dedupe_s` seconds is not delivered again.
        Raises InvalidValue for an invalid `dedupe_s`.
        """

    async def stop(self, asker: ToolUseContext, target: str, reason: str) -> StopReceipt:
        """Stop a descendant of the asker. Raises Unknown or Denied."""

    async def output(self, asker: ToolUseContext, target: str, *, block: bool, timeout_s: float) -> str:
        """Return the findings of a descendant of the asker; with `block`, wait at most `timeout_s` for its end."""

    async def list_runs(self, asker: ToolUseContext, *, below: bool = False) -> Sequence[RunView]:
        """Return the living and finished runs of the tree; with `below`, only the asker and the runs below it."""

    async def ask_peer(self, asker: ToolUseContext, request: PeerRequest) -> str:
        """Submit a plan to the lead, request a shutdown, or answer either; return what came of it.

        Raises MailRefused, Unknown, Denied or InvalidValue.
        """

    async def report_monitor(self, reporter: ToolUseContext, report: MonitorReport) -> str:
        """Record a report about a command that this run monitors, which brings it a message; return the monitor's id.

        Raises InvalidValue, Unknown or MailRefused.
        """

    async def create(self, creator: ToolUseContext, entry: Mapping[str, Any]) -> CreationReceipt:
        """Record an agent, given as a registry entry, without capabilities that its creator lacks.

        Raises InvalidValue for an invalid recipe, and Denied if agents may not record others.
        """

    async def call_task(
        self,
        parent: ToolUseContext,
        ref: str,
        task: str,
        arguments: Mapping[str, Any],
        *,
        name: str | None = None,
        branch: bool = False,
        call_id: CallId | None = None,
    ) -> SpawnHandle:
        """Run a task of a recorded agent, as a child. Raises AgentNotResolved, and the errors of `spawn`."""

    async def use_state(self, user: ToolUseContext, request: UseState, body: bytes = b"") -> tuple[StateReply, bytes]:
        """Use the run's own state. Raises InvalidValue, Conflict, UnsavedChanges, Unknown, Denied."""


class Hooks(Protocol):
    """The hook runner's interface for the dispatcher and the loop."""

    def listens(self, event: str) -> bool:
        """Return whether a hook is registered for `event`: otherwise callers need no payload."""

    async def fire(
        self, event: str, context: ToolUseContext, payload: dict[str, Any], *, matcher: str = ""
    ) -> HookDecision:
        """Run the hooks of `event` whose matcher fits, and combine their answers; a failing gate denies."""


#: The access to a model: reserves, waits for the rate limiter, retries, settles. Yields chunks, then the message.
Ask: TypeAlias = "Callable[[ToolUseContext, ModelRequest], AsyncGenerator[AIMessageChunk | AIMessage]]"
#: Waits for something that no run can hasten: meanwhile the run has no slot, and its time stands.
WaitWithoutTime: TypeAlias = "Callable[[Awaitable[None]], Awaitable[None]]"
#: Reserves a request that does not use `Ask`, and records it. Raises BudgetExceeded, and Unknown for an unknown price.
Meter: TypeAlias = "Callable[[ToolUseContext, ForeignRequest], Charge]"


class WaitAtLimit(Protocol):
    """The wait of a refused request until it fits a limit that pauses."""

    def __call__(
        self,
        context: ToolUseContext,
        refusal: BudgetExceeded,
        attempt: Callable[[], T],
        undo: Callable[[T], None],
        *,
        is_counted: bool = False,
    ) -> Awaitable[T]:
        """Return what `attempt` returns once it fits; a wait that is abandoned at that moment undoes it.

        `is_counted` says that the slot counts the waiting call. Raises `refusal` if the limit ends its runs.
        """


class Pauses(Protocol):
    """The pauses of a tree by a person. Empty, and so False, while no run of it is paused."""

    def __bool__(self) -> bool: ...

    def covers(self, context: ToolUseContext) -> bool:
        """Return whether the run of this context, or a run above it, is paused."""

    async def wait(self, context: ToolUseContext, *, is_counted: bool = False) -> None:
        """Wait until no pause covers the run; meanwhile it has no slot, if it does nothing else.

        `is_counted` says that the slot counts the waiting call.
        """


class Approve(Protocol):
    """The request for a person's approval."""

    def __call__(
        self,
        context: ToolUseContext,
        *,
        tool: str,
        question: str,
        args: dict[str, Any],
        check: Callable[[str], object] | None = None,
        can_be_for_run: bool = False,
    ) -> Awaitable[Approval]:
        """Return an approval only if a person approved before the deadline, or earlier for the whole run.

        With `check`, which raises InvalidValue, a person has to answer with a text, which is its reason. With
        `can_be_for_run`, a person may allow later calls of the run, too, about which the same is asked.
        """


class Safety(Protocol):
    """The safety gate: each tool call is an intention that is voted on before it runs."""

    def __call__(
        self, context: ToolUseContext, *, call_id: CallId, tool: str, args: dict[str, Any]
    ) -> Awaitable[SafetyDecision]:
        """Decide, and persist the decision. Raises StoreFailed or Aborted: then the call must not run."""


class ToolProcesses(Protocol):
    """The processes for synchronous tools that do not run in threads: they can be terminated."""

    @property
    def secrets(self) -> tuple[str, ...]:
        """Return values that no function may contain."""

    def check(self, tools: Sequence[BaseTool]) -> None:
        """Raise NotShippable for a tool that cannot run in a process."""

    async def call(self, context: ToolUseContext, tool: str, packed: PackedCall) -> Any:
        """Unpack a capsule in a process, and return its function's result as data; a cancellation ends the process.

        Raises the error of the process, or the error that its function raised.
        """


class DeclaredResult(NamedTuple):
    """The agent's declaration that its task has ended: with a value, as impossible, or with a question."""

    kind: Literal["success", "fail", "clarify"]
    text: str = ""  #: the reason, or the question
    value: Any = None  #: JSON data, not yet checked against the agreed form


class CodeResult(NamedTuple):
    """The output of a piece of code, or its traceback."""

    text: str
    ok: bool = True


class Interpreter(Protocol):
    """The interpreter of an agent's own code: in its sandbox, and nowhere else."""

    async def run(self, code: str, *, timeout_s: float) -> CodeResult:
        """Run code in the namespace of the earlier pieces. Time spent waiting for agents does not count."""


class OrphanedThread(NamedTuple):
    """A synchronous call whose thread continues after its call was given up; its result is discarded."""

    tool: str
    thread: asyncio.Future[Any]


@dataclass(kw_only=True, slots=True)
class ToolUseContext:
    """Everything that one run may access.

    Its state, cache and directory are its own: children's changes do not appear.
    """

    run: RunInfo  #: its id, path and place in the tree
    ask: Ask  #: sends a request to its model: the chunks of the reply, then the reply
    tools: tuple[BaseTool, ...] = ()  #: what its model may call
    system_messages: tuple[BaseMessage, ...] = ()  #: precede the history in each request
    history: list[BaseMessage] = field(default_factory=list)  #: the conversation, without these
    turn_began_at: int = 0  #: index in the history
    cwd: pathlib.Path = field(default_factory=pathlib.Path.cwd)  #: workspace root: tools do not leave it
    works_in: pathlib.Path | None = None  #: its own copy of `cwd` in a sandbox, from which permission rules count
    environ: Mapping[str, str] | None = None  #: of commands; None: the harmless variables of this process
    read_roots: tuple[pathlib.Path, ...] = ()  #: further readable places, such as spilled results
    state: dict[str, Any] = field(default_factory=dict)
    #: files that were read, by path; a child starts with a copy
    file_cache: dict[str, Any] = field(default_factory=dict)
    abort: AbortController = field(default_factory=AbortController)
    mailbox: Mailbox = field(default_factory=lambda: Mailbox("main"))
    budget: Budget = field(default_factory=lambda: Budget(Limits(), scope="main"))
    slot: Slot = field(default_factory=lambda: Slot(Slots(None)))
    record: Callable[[Event], Event] = lambda event: event
    #: returns once every recorded event is persisted; None: it always is
    durable: Callable[[], Awaitable[None]] | None = None
    #: returns if the tree is still this kernel's, otherwise raises StoreFailed; None: no other kernel can take it
    confirm_ownership: Callable[[], Awaitable[None]] | None = None
    #: calls that were active in a process that ended
    interrupted_calls: dict[CallId, StepId] = field(default_factory=dict)
    tree: Tree | None = None
    hooks: Hooks | None = None
    wait_at_limit: WaitAtLimit | None = None  #: None: a limit ends the run
    pauses: Pauses | None = None  #: by a person, of its tree
    cuts: Cuts = field(default_factory=Cuts)
    meter: Meter | None = None  #: for models that another framework calls; None: none here
    wait_without_time: WaitWithoutTime | None = None  #: None: there is no slot and no time to give back
    budget_note: Callable[[], str] | None = None  #: what is left, for the model: ends each request; None: not shown
    quota: QuotaReached | None = None  #: the window that it waited for in a process that has ended
    approve: Approve | None = None
    withdraw_restored: Callable[[RunId], None] | None = None  #: closes questions that a run will not ask again
    safety: Safety | None = None  #: None: calls are not voted on
    permissions: Permissions = NO_PERMISSIONS  #: rules, which every call must pass
    permissions_after_plan: Permissions | None = None  #: rules once a person approves its plan; None: not in plan mode
    approved_plan_call: str | None = None  #: the call whose plan was approved in an earlier process
    interpreter: Interpreter | None = None  #: None: this run is in the host, where no code of an agent runs
    spill: Callable[[str, str], pathlib.Path] | None = None  #: (call id, text) -> file; None keeps only a preview
    commands: BackgroundCommands | None = None  #: of this turn; None: no command can go on in the background
    #: persist bytes, return their name; None: not available
    store_blob: Callable[[bytes], Awaitable[str]] | None = None
    #: return the bytes of a name, None if this tree has none of that name; None: not available
    load_blob: Callable[[str], Awaitable[bytes | None]] | None = None
    usage: Usage = NO_USAGE  #: of this run alone
    last_usage: Usage | None = None  #: of the newest reply
    on_usage: Callable[[Usage], None] | None = None
    #: passes on each chunk of the reply of a step of the loop, which then yields none; None: the loop yields them
    on_chunk: Callable[[AIMessageChunk, StepId], None] | None = None
    processes: ToolProcesses | None = None  #: for synchronous tools; None: threads
    max_parallel_tools: int = 10  #: calls of one reply that run at once
    max_result_chars: int = 30_000  #: of a longer result the model sees the beginning
    tool_timeout_s: float | None = 600.0  #: seconds that a call may take; None: any
    steps: int = 0
    clock: Clock = field(default_factory=SystemClock)
    answers: dict[str, ToolMessage] = field(default_factory=dict)  #: of the turn's calls, until they are recorded
    final_refusal: BudgetExceeded | None = None  #: the refusal: the loop ends with it, after at most one last answer
    refusal: BudgetExceeded | None = None  #: of a budget, the newest recorded
    #: said by a tool call: the loop ends after this turn's answers are recorded
    declared_result: DeclaredResult | None = None
    orphaned_threads: dict[str, OrphanedThread] = field(default_factory=dict)  #: they outlive their call, by its id
    running_processes: int = 0  #: of its calls, hooks and sandboxes: each until it has ended
    person_waits: int = 0  #: its questions that wait for a person now
    _load_history: Callable[[], list[BaseMessage]] = list

    def set_history_loader(self, load_history: Callable[[], list[BaseMessage]]) -> None:
        """Set a function that returns the history on first access: most resumed runs never need it."""
        self._load_history = load_history
        del self.history

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:  # Called only for missing attributes.
            if name != "history":
                raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
            self.history = self._load_history()
            self._load_history = list
            return self.history

    def next_step(self) -> StepId:
        """Return the key of the next model call or tool call."""
        self.steps += 1
        return step_id(self.run.id, self.steps)

    def emit(self, kind: type[Event], /, **fields: Any) -> Event:
        return self.record(kind(**self.run.stamp, **fields))

    def record_refusal(self, refusal: BudgetExceeded) -> None:
        """Record a budget refusal once, however often it is raised again."""
        if refusal is not self.refusal:
            self.refusal = refusal
            self.emit(
                BudgetRefused, resource=refusal.resource, asked=refusal.asked, left=refusal.left, scope=refusal.scope
            )

    @property
    def is_paused(self) -> bool:
        """True if a person paused the run, or a run above it: nothing new may begin."""
        return bool(self.pauses) and self.pauses is not None and self.pauses.covers(self)

    async def wait_without_slot(self, wait: Awaitable[T], *, is_counted: bool = False) -> T:
        """Wait for what no work of the run can bring, and return it; the run holds no slot, if it does nothing else.

        `is_counted` says that the slot counts the waiting call.
        """
        call = current_call.get(None)
        is_in_call = call is not None and call.context.run.id == self.run.id
        begins_call = not (is_counted or is_in_call)
        if begins_call:
            self.slot.begin_calls()
        try:
            key = call.step_id if call is not None and is_in_call and not is_counted else None
            return await self.slot.while_waiting(wait, key=key)
        finally:
            if begins_call:
                self.slot.end_call()

    async def wait_unpaused(self, *, is_counted: bool = False) -> None:
        """Wait until no pause by a person covers the run: see `Pauses.wait`."""
        if self.pauses:
            await self.pauses.wait(self, is_counted=is_counted)

    async def reserve(self, attempt: Callable[[], T], undo: Callable[[T], None], *, is_counted: bool = False) -> T:
        """Make a reservation, and return what `attempt` returns; wait while the run, or the limit, is paused.

        Raises BudgetExceeded where a limit ends the run. See `WaitAtLimit`.
        """
        while True:
            if self.pauses:
                await self.pauses.wait(self, is_counted=is_counted)
            try:
                return attempt()
            except BudgetExceeded as refusal:
                if self.wait_at_limit is None:
                    raise
                granted = await self.wait_at_limit(self, refusal, attempt, undo, is_counted=is_counted)
            if not self.is_paused:
                return granted
            undo(granted)  # It was paused while it waited.

    async def wait_persisted(self) -> None:
        """Wait until recorded intentions are persisted; call before an effect. Raises StoreFailed."""
        if self.durable is not None:
            await self.durable()

    @contextmanager
    def track_process(self) -> Iterator[None]:
        """Count a process of this run from before its start until its end; a stop of the run waits for that."""
        self.running_processes += 1
        try:
            yield
        finally:
            self.running_processes -= 1

    def spend(self, usage: Usage) -> None:
        """Add usage here and in the runs above."""
        self.usage = self.usage + usage
        if self.on_usage is not None:
            self.on_usage(usage)


class CurrentCall(NamedTuple):
    """The current tool call. `step_id` is the idempotency key for its external effects."""

    context: ToolUseContext
    call_id: CallId
    step_id: StepId
    #: the sandbox's request that it performs: a request repeated after a kernel's end is the same
    request_key: str = ""


current_call: ContextVar[CurrentCall | None] = ContextVar("ramet_current_call", default=None)


def require_current_call() -> CurrentCall:
    """Return the current tool call. Raises LookupError outside of one."""
    call = current_call.get()
    if call is None:
        raise LookupError("no tool call and no agent's function is being executed here")
    return call


def current() -> ToolUseContext:
    """Return the context of the current tool call or agent's function. Raises LookupError outside of one."""
    return require_current_call().context
