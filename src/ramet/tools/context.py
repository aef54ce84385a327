"""What a tool, and the loop around it, may reach: one value per run, handed down and never global.

The ports are protocols because their other ends sit above this layer: in the host they are the spawner, the gateway
and the recorder; in a guest they will be the channel's client.
"""

from __future__ import annotations

import asyncio
import pathlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from types import NoneType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

from ramet.concurrency.cancel import AbortController
from ramet.concurrency.clock import Clock, SystemClock
from ramet.concurrency.mailbox import Mailbox
from ramet.concurrency.slots import Slot, Slots
from ramet.core.arguments import KnownFields, check_callable, check_instance, check_text
from ramet.core.budget import NO_LIMITS, Budget, Limits
from ramet.core.errors import BudgetExceeded, InvalidValue
from ramet.core.events import BudgetRefused, Event
from ramet.core.ids import CallId, Path, RunId, SessionId, StepId, checked_name, step_id
from ramet.core.outcome import NOTHING_USED, Result, Usage
from ramet.core.policy.permissions import NO_PERMISSIONS, Permissions
from ramet.core.policy.policy import Policy

if TYPE_CHECKING:
    from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage, ToolMessage
    from langchain_core.tools import BaseTool

    from ramet.wire.code.capsule import PackedCall
    from ramet.wire.guest_protocol import StateReply, UseState

Mode = Literal["fresh", "fork"]


@dataclass(frozen=True, kw_only=True, slots=True)
class RunInfo:
    """Who a run is. Never changes during its life."""

    id: RunId
    root: RunId
    path: Path
    agent: str  #: name of the definition
    depth: int = 0
    parent: RunId | None = None
    parent_call: CallId | None = None
    session: SessionId | None = None

    stamp: dict[str, Any] = field(init=False, repr=False, compare=False)  #: what every event of this run carries

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


@dataclass(frozen=True, kw_only=True, slots=True)
class SpawnRequest(metaclass=KnownFields):
    """What is asked for at a birth. Nothing here is granted yet."""

    prompt: str = ""
    name: str | None = None
    description: str = ""
    subagent_type: str | None = None  #: name of a definition; None with no `agent` means fork, unless configured
    agent: Any = None  #: a definition (`ramet.Agent`) or a function, for callers in code
    args: tuple[Any, ...] = ()  #: for functions
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    #: For functions, behind `args`: data that is read at each attempt and not recorded. Who resumes supplies it again.
    late_args: Callable[[], tuple[Any, ...]] | None = None
    mode: Mode | None = None
    model: str | None = None
    background: bool | None = None  #: None follows the definition
    detached: bool = False
    isolation: str | None = None
    cwd: str | None = None
    branch: bool = False  #: its state is a branch of its parent's, which sees nothing of it until it merges
    begins_at: str = ""  #: the commit that the branch begins at; the host says
    limits: Limits = NO_LIMITS
    policy: Policy | None = None  #: with one, it works in a sandbox; a child of a sandboxed run always does
    returns: Any = None  #: the type of a sandboxed function's result; None takes its annotation
    on_output: Callable[[str, str], None] | None = None  #: told "stdout" or "stderr", and text, as it comes
    state_owner: str = ""  #: of a root, the host says: the server's agent to whom alone the states of its tree belong
    shelf: pathlib.Path | None = None  #: the host's: inside it is read and imported from, also what comes there later
    call_id: CallId | None = None
    key: str = ""  #: tells births of one run apart that no tool call asked for
    asked: str = ""  #: the request of a sandbox that asks for it, as of `CurrentCall`

    def __post_init__(self) -> None:
        check_text("prompt", self.prompt)
        check_text("description", self.description)
        check_instance("name", self.name, (str, NoneType), "text, or None")
        check_instance("args", self.args, (tuple, list), "a tuple")
        check_instance("kwargs", self.kwargs, Mapping, "a mapping")
        check_instance("limits", self.limits, Limits, "ramet.Limits")
        check_instance("policy", self.policy, (Policy, NoneType), "ramet.Policy")
        check_callable("on_output", self.on_output)
        if self.state_owner:
            checked_name("state_owner", self.state_owner)
        if self.mode not in (None, "fresh", "fork"):
            raise InvalidValue("mode", self.mode, "'fresh', 'fork', or None")


def check_request(request: object) -> None:
    """Raise InvalidValue for what is no request to spawn, as a dict of its fields."""
    check_instance("request", request, SpawnRequest, "a ramet.SpawnRequest")


class StopReceipt(NamedTuple):
    """Result of a stop. `left` names what could not be ended, and nothing that was only being killed."""

    stopped: tuple[str, ...]  #: paths
    left: tuple[str, ...] = ()  #: `path: tool` of synchronous calls whose threads still run, fenced; deaf tasks


class RunView(NamedTuple):
    """One line of a listing; no secrets."""

    id: str
    path: str
    name: str
    agent: str
    state: str
    description: str
    depth: int
    children: int
    usage: Usage


class Created(NamedTuple):
    """An agent that another one wrote down: its handle, and capabilities that it asked for in vain."""

    ref: str
    dropped: tuple[str, ...] = ()


class SpawnHandle(Protocol):
    """What a spawn returns."""

    @property
    def id(self) -> RunId: ...
    @property
    def name(self) -> str: ...
    @property
    def path(self) -> Path: ...
    @property
    def background(self) -> bool: ...
    async def result(self) -> Result:
        """Wait for the end, without any time limit, and return its result."""

    async def end(self) -> Result:
        """The same, as soon as it has ended: for who does nothing with it but put it on record, which is behind it."""

    async def cancel(self, reason: str = ...) -> StopReceipt:
        """End the run and all below it; when this returns they are gone."""


class Tree(Protocol):
    """The runs around a context: the only way from a tool to other agents."""

    async def spawn(self, parent: ToolUseContext, request: SpawnRequest) -> SpawnHandle:
        """Give birth, or raise SpawnRefused."""

    def recall(self, parent: ToolUseContext, prefix: str) -> str | None:
        """The key, beginning like this, of a birth that this run had asked for in a process that has ended."""

    def go_on(self, parent: ToolUseContext) -> Sequence[SpawnHandle]:
        """The children that this run has from a process that has ended, for one that is not run again from its start.

        Every birth that it asks for from now on is a new one.
        """

    def let_go(self, parent: ToolUseContext, calls: Collection[CallId]) -> None:
        """Nobody waits any more for the children of these calls of this run: a notice tells it of their ends."""

    def spawnable(self, parent: ToolUseContext) -> Mapping[str, str]:
        """Types that this run may spawn, with their descriptions."""

    async def send(
        self,
        sender: ToolUseContext,
        to: str,
        text: str,
        *,
        notify_when_idle: bool = False,
        dedupe_s: float | None = None,
    ) -> str:
        """Deliver mail by id, path or name; says what became of it. Raises MailRefused or Unknown.

        With `notify_when_idle` a notice tells the sender, once, when the recipient rests or has ended after it. With
        `dedupe_s`, a message that equals one of the sender's last so many seconds is not delivered again; InvalidValue
        is raised for a `dedupe_s` that is no time.
        """

    async def stop(self, asker: ToolUseContext, target: str, reason: str) -> StopReceipt:
        """Stop a run below the asker. Raises Unknown or Denied."""

    async def output(self, asker: ToolUseContext, target: str, *, block: bool, timeout_s: float) -> str:
        """What a run below the asker has found, waiting at most `timeout_s` for its end if `block`."""

    async def list_runs(self, asker: ToolUseContext) -> Sequence[RunView]:
        """The living and finished runs of the tree."""

    async def create(self, creator: ToolUseContext, entry: Mapping[str, Any]) -> Created:
        """Write an agent down, as the entry of a registry has it, with no capability that its creator lacks.

        Raises InvalidValue for what is no recipe, Denied where agents write none down.
        """

    async def perform(
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
        """Have an agent that was written down do a task, as a child. Raises AgentNotResolved, and as `spawn`."""

    async def use_state(self, user: ToolUseContext, asked: UseState, body: bytes = b"") -> tuple[StateReply, bytes]:
        """Do something with the run's own state. Raises InvalidValue, Conflict, UnsavedChanges, Unknown, Denied."""


class HookDecision(NamedTuple):
    """What the hooks said of one event. `deny` and `ask` carry the reason or question."""

    verdict: Literal["allow", "deny", "ask", "continue"] = "allow"
    reason: str = ""
    updated_input: dict[str, Any] | None = None  #: PreToolUse may rewrite a call's arguments
    updated_output: str | None = None  #: PostToolUse may rewrite what the model sees
    context: str = ""  #: text for the model, as data


class Hooks(Protocol):
    """The hook runner as the dispatcher and the loop see it."""

    def listens(self, event: str) -> bool:
        """Whether anything is registered for `event`: lets the hot path skip building a payload."""

    async def fire(
        self, event: str, context: ToolUseContext, payload: dict[str, Any], *, matcher: str = ""
    ) -> HookDecision:
        """Run the hooks of `event` whose matcher fits; merge their answers; a failing gate denies."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelRequest:
    """One question to a model."""

    messages: Sequence[BaseMessage]
    tools: Sequence[BaseTool] = ()
    step: StepId
    max_tokens: int | None = None
    last_word: bool = False  #: draws on what the scope keeps for its owner's last answer
    aside: bool = False  #: no word of the conversation, such as a summary of it: nobody hears it as it comes


class Ask(Protocol):
    """The way to a model: reserves, waits at the gate, retries, settles. Yields chunks, then the whole message."""

    def __call__(
        self, context: ToolUseContext, request: ModelRequest
    ) -> AsyncGenerator[AIMessageChunk | AIMessage]: ...


class Approval(NamedTuple):
    """A person's word on a call; in a condition it counts as `allowed`."""

    allowed: bool
    reason: str = ""  #: for the model, of a no

    def __bool__(self) -> bool:
        return self.allowed is True

    @property
    def denial(self) -> str:
        """A no in words."""
        return f"it was not approved: {self.reason}" if self.reason else "it was not approved"


class ForeignRequest(NamedTuple):
    """A request of a model that another framework makes: what is known of it before it is made."""

    model: str  #: its name, for events and prices
    messages: Sequence[BaseMessage]
    step: StepId
    schema_bytes: int = 0  #: of the tools that the model is shown
    max_tokens: int | None = None  #: the most that the reply may be long, if the model says
    requests: int = 1  #: that the call may make of the provider


class Charge(Protocol):
    """The reservation for a request of another framework. The first word counts, later ones do nothing."""

    def settle(self, reply: AIMessage) -> None:
        """Count what the reply says was used, or the reservation where it says nothing."""

    def fail(self, error: BaseException) -> None:
        """Count a request that brought no reply."""


class Meter(Protocol):
    """The way to reserve for requests that do not go through `Ask`."""

    def __call__(self, context: ToolUseContext, request: ForeignRequest) -> Charge:
        """Reserve, and say so on record. Raises BudgetExceeded, and Unknown for a price that nobody knows."""


class Approve(Protocol):
    """The way to a person's word."""

    def __call__(
        self, context: ToolUseContext, *, tool: str, question: str, args: dict[str, Any]
    ) -> Awaitable[Approval]:
        """Return a yes only if somebody said yes before the deadline."""


class SafetyDecision(NamedTuple):
    """What the safety gate decided of a call."""

    committed: bool
    reason: str = ""


class Safety(Protocol):
    """The safety gate: each tool call is an intention that is voted on before it runs."""

    def __call__(
        self, context: ToolUseContext, *, call_id: CallId, tool: str, args: dict[str, Any]
    ) -> Awaitable[SafetyDecision]:
        """Decide, and have the decision on record for good. Raises StoreFailed, Aborted: then it must not run."""


class ToolProcesses(Protocol):
    """Where synchronous tools run that do not run in threads: processes, which can be ended."""

    @property
    def secrets(self) -> tuple[str, ...]:
        """Values that no function may carry along."""

    def check(self, tools: Sequence[BaseTool]) -> None:
        """Raise NotShippable for a tool that cannot run there."""

    async def call(self, context: ToolUseContext, tool: str, packed: PackedCall) -> Any:
        """Open a capsule in a process, and return what its function does, as data; cancelled, the process is gone.

        Raises what the process could not do, or what it says that its function raised.
        """


class DeclaredResult(NamedTuple):
    """The agent's own word that its task is over: with a value, or since it cannot be done, or with a question."""

    kind: Literal["success", "fail", "clarify"]
    text: str = ""  #: why, or what is asked
    value: Any = None  #: JSON data, not yet held against the form that was agreed


class CodeResult(NamedTuple):
    """What a piece of code printed and gave, or its traceback."""

    text: str
    ok: bool = True


class Interpreter(Protocol):
    """Where an agent's own code runs: in its sandbox, and nowhere else."""

    async def run(self, code: str, *, timeout_s: float) -> CodeResult:
        """Run a piece of code in the namespace of the pieces before it. Time in which it waits for agents is free."""


class OrphanedThread(NamedTuple):
    """A synchronous call whose thread goes on after its call was given up; its result is nobody's."""

    tool: str
    thread: asyncio.Future[Any]


@dataclass(kw_only=True, slots=True)
class ToolUseContext:
    """Everything one run may reach. Its state, cache and directory are its own: a child's changes never show here."""

    run: RunInfo
    ask: Ask
    tools: tuple[BaseTool, ...] = ()
    system_messages: tuple[BaseMessage, ...] = ()
    history: list[BaseMessage] = field(default_factory=list)
    turn_began_at: int = 0  #: place in the history
    cwd: pathlib.Path = field(default_factory=pathlib.Path.cwd)  #: workspace root: tools do not leave it
    environ: Mapping[str, str] | None = None  #: of commands; None: what is harmless of this process's own
    read_roots: tuple[pathlib.Path, ...] = ()  #: more places that may be read, such as spilled results
    state: dict[str, Any] = field(default_factory=dict)
    file_cache: dict[str, Any] = field(default_factory=dict)  #: what was read, by path; a child starts with a copy
    abort: AbortController = field(default_factory=AbortController)
    mailbox: Mailbox = field(default_factory=lambda: Mailbox("main"))
    budget: Budget = field(default_factory=lambda: Budget(Limits(), scope="main"))
    slot: Slot = field(default_factory=lambda: Slot(Slots(None)))
    record: Callable[[Event], Event] = lambda event: event
    durable: Callable[[], Awaitable[None]] | None = None  #: return once all that is on record survives; None: it is now
    begun: dict[CallId, StepId] = field(default_factory=dict)  #: calls that were under way in a process that ended
    tree: Tree | None = None
    hooks: Hooks | None = None
    meter: Meter | None = None  #: for models that another framework asks; None: there is none here
    approve: Approve | None = None
    safety: Safety | None = None  #: None: calls are not voted on
    permissions: Permissions = NO_PERMISSIONS  #: rules of settings files, which every call must pass
    interpreter: Interpreter | None = None  #: None: this run works in the host, where no code of an agent runs
    spill: Callable[[str, str], pathlib.Path] | None = None  #: (call id, text) -> file; None keeps only a preview
    keep_blob: Callable[[bytes], Awaitable[str]] | None = None  #: keep bytes for good, by name; None: nothing does
    usage: Usage = NOTHING_USED  #: this run alone
    last_usage: Usage | None = None  #: of the newest reply
    on_usage: Callable[[Usage], None] | None = None
    processes: ToolProcesses | None = None  #: for synchronous tools; None: threads
    max_parallel_tools: int = 10
    max_result_chars: int = 30_000
    tool_timeout_s: float | None = 600.0
    steps: int = 0
    clock: Clock = field(default_factory=SystemClock)
    answered: dict[str, ToolMessage] = field(default_factory=dict)  #: of the turn's calls, until they are recorded
    exhausted: BudgetExceeded | None = None  #: what did not fit: the loop ends with this, after a last word at most
    refusal: BudgetExceeded | None = None  #: of a budget, the newest that is on record
    concluded: DeclaredResult | None = (
        None  #: said by a tool call: the loop ends after this turn's answers are recorded
    )
    left_running: dict[str, OrphanedThread] = field(
        default_factory=dict
    )  #: by call id: threads that outlive their call
    held_processes: int = 0  #: of its calls, hooks and sandboxes: each until it is gone
    _recall: Callable[[], list[BaseMessage]] = list

    def remember(self, recall: Callable[[], list[BaseMessage]]) -> None:
        """Have `recall` say what the history is, once somebody asks: of most runs that are taken up nobody does."""
        self._recall = recall
        del self.history

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:  # Called only for what is not there.
            if name != "history":
                raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
            self.history = self._recall()
            self._recall = list
            return self.history

    def next_step(self) -> StepId:
        """The key of the next model call or tool call."""
        self.steps += 1
        return step_id(self.run.id, self.steps)

    def emit(self, kind: type[Event], /, **fields: Any) -> Event:
        """Record an event of this run."""
        return self.record(kind(**self.run.stamp, **fields))

    def note(self, refusal: BudgetExceeded) -> None:
        """Put on record what a budget has refused; once, however often it is raised again."""
        if refusal is not self.refusal:
            self.refusal = refusal
            of = {"resource": refusal.resource, "asked": refusal.asked, "left": refusal.left, "scope": refusal.scope}
            self.emit(BudgetRefused, **of)

    async def settled(self) -> None:
        """Before an effect: what says that it was intended survives whatever happens now. Raises StoreFailed."""
        if self.durable is not None:
            await self.durable()

    @contextmanager
    def holding_process(self) -> Iterator[None]:
        """Count a process of this run from before its start until it is gone; a stop of the run waits for that."""
        self.held_processes += 1
        try:
            yield
        finally:
            self.held_processes -= 1

    def spend(self, usage: Usage) -> None:
        """Count what was used, here and upward."""
        self.usage = self.usage + usage
        if self.on_usage is not None:
            self.on_usage(usage)


class CurrentCall(NamedTuple):
    """The tool call being executed. `step_id` is the idempotency key for whatever it does outside."""

    context: ToolUseContext
    call_id: CallId
    step_id: StepId
    asked: str = ""  #: the request of a sandbox that it is: one that comes again after a kernel's end is the same


current_call: ContextVar[CurrentCall | None] = ContextVar("ramet_current_call", default=None)


def require_current_call() -> CurrentCall:
    """The tool call being executed. Raises LookupError outside of one."""
    call = current_call.get()
    if call is None:
        raise LookupError("no tool call and no agent's function is being executed here")
    return call


def current() -> ToolUseContext:
    """The context of the tool call, or of the agent's function, being executed. Raises LookupError outside of one."""
    return require_current_call().context
