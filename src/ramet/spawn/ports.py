"""The ports of a tree: every access to the host, as plain callables."""

from __future__ import annotations

import pathlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Coroutine, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

from ramet.agent.definition import Agent
from ramet.agent.external.program_policy import Programs
from ramet.agent.history.compaction import Compaction
from ramet.agent.hooks.config import HookConfig
from ramet.concurrency.cancel import AbortController
from ramet.concurrency.clock import Clock
from ramet.concurrency.timers import TimerQueue
from ramet.core.errors import RametError, SpawnRefused
from ramet.core.events import Event
from ramet.core.ids import RunId, StepId
from ramet.core.liveness.watch_settings import NO_WATCH, Watch
from ramet.core.policy.decision import PolicyDecision, PolicyRequest
from ramet.core.policy.mount_rights import Mounts
from ramet.core.policy.permissions import NO_PERMISSIONS, Permissions
from ramet.core.policy.policy import Grant, Policy
from ramet.isolation.contract import Backend, Sandbox
from ramet.isolation.git.git import Git
from ramet.isolation.workspace.run_dirs import RunFolder
from ramet.models.effort import Effort
from ramet.spawn.result_cache import Results
from ramet.spawn.run import Run
from ramet.spawn.served_ports import Ports
from ramet.tools.context import Approve, Ask, Hooks, Meter, Safety, ToolProcesses, ToolUseContext
from ramet.tools.forwarding import OpenForwarding
from ramet.tools.mcp.connection_port import McpClient
from ramet.tools.mcp.package_port import McpPackages
from ramet.tools.run_info import RunInfo
from ramet.tools.spawn_request import CreationReceipt, SpawnRequest
from ramet.wire.guest_protocol.answer_data import StateReply
from ramet.wire.guest_protocol.guest_to_host import UseState

if TYPE_CHECKING:
    from langchain_core.language_models import BaseChatModel
    from langchain_core.messages import AIMessageChunk, BaseMessage
    from langchain_core.tools import BaseTool

#: Seconds that a cancelled run has to end before it is fenced off.
GRACE_S = 5.0


#: Asks the policy adapter. Always returns a decision. Raises Aborted if the asking run is stopped meanwhile.
Decide = Callable[[PolicyRequest, AbortController | None], Awaitable[PolicyDecision]]


class ModelPort(NamedTuple):
    """A model, as a run calls it."""

    ask: Ask
    label: str  #: name for events and prices
    window: int | None = None  #: input tokens that it accepts, if it says so
    ignores_effort: bool = False  #: an effort was asked for, and the model does not take it


class ModelPorts(Protocol):
    """The models of a tree."""

    def __call__(self, model: str | BaseChatModel, effort: Effort | None = None, /) -> ModelPort:
        """Return a model, with an effort if it takes that. Raises Unknown, MissingExtra, ModelFailed, InvalidValue."""


class Placement(Protocol):
    """The place where sandboxed runs work."""

    @property
    def children(self) -> Policy | None:
        """The policy of a host run's child that requests none; None leaves the child in the host."""

    async def backend(self, grant: Grant) -> Backend:
        """Return the backend for a run of this grant.

        Raises IsolationUnavailable if no backend satisfies the grant, and InvalidValue for models or writable mounts on
        another machine.
        """

    def folder(self, run: RunInfo, *, is_there: bool = False) -> RunFolder:
        """Return the run's own folder, created now, or the one that exists.

        Raises OSError.
        """

    def env(self, run: RunInfo, grant: Grant) -> dict[str, str]:
        """Return the environment variables of the run."""

    def mount_roots(self, mounts: Sequence[str]) -> Mapping[str, str]:
        """Return the targets of the mounts that an operator grants now: see `ramet.isolation.mounts.roots_of`."""

    def check_mounts(self, mounts: Mounts, roots: Mapping[str, str]) -> None:
        """Raise InvalidValue for a mount that is forbidden, or that a link leads to from a root.

        The field of the error is `readonly_mounts` or `writable_mounts`.
        """

    def check_endpoints(self, endpoints: Sequence[str], parent_endpoints: Collection[str]) -> None:
        """Raise InvalidValue for a numeric address of this machine that is not listed above."""

    def run_in_background(self, work: Coroutine[Any, Any, None]) -> None:
        """Schedule work that no caller waits for; it is done at the latest before the runtime has stopped."""

    def serving_ports(self, run: RunInfo, grant: Grant, sandbox: Sandbox) -> AbstractAsyncContextManager[Ports]:
        """Make the ports of a run in its sandbox reachable for host programs while the context is open.

        Raises InvalidValue if the place of a port is occupied, and SandboxFailed.
        """

    def observing(
        self, run: ToolUseContext, grant: Grant, roots: Mapping[str, str]
    ) -> AbstractAsyncContextManager[pathlib.Path | None]:
        """Record what is observed of the run's sandbox from outside while the context is open.

        `roots` are those of its mounts: see `mount_roots`.

        Yields the socket of the proxy to its allowed endpoints, or None if there are none.
        """

    def server_folder(self) -> AbstractAsyncContextManager[pathlib.Path]:
        """Provide a new folder for a server that belongs to no run; it is removed with what is in it."""

    def network_access(
        self, run: ToolUseContext, grant: Grant, path: pathlib.Path, backend: Backend
    ) -> AbstractAsyncContextManager[None]:
        """Let a process of this backend reach its allowed endpoints by a socket at `path` while the context is open."""


class Authoring(Protocol):
    """The port for agents that agents create.

    Their content is data: nothing of it is imported or evaluated.
    """

    async def create(self, run: Run, entry: Mapping[str, Any]) -> CreationReceipt:
        """Add a recipe to the registry of a run's agent, without the capabilities that the agent lacks.

        Raises InvalidValue.
        """

    async def spawn_request(self, run: Run, ref: str, task: str, arguments: Mapping[str, Any]) -> SpawnRequest:
        """Return the spawn request for a task below a run.

        Raises AgentNotResolved, Unknown or InvalidValue.
        """


class Memory(Protocol):
    """The states of agents.

    Each run uses its own state; its place is known here and never requested.
    """

    async def use(self, run: Run, request: UseState, body: bytes) -> tuple[StateReply, bytes]:
        """Execute an operation on a run's own state.

        Raises InvalidValue, Conflict, UnsavedChanges, Unknown or Denied.
        """

    async def begins_at(self, parent: Run) -> str:
        """Return the commit at which a branch of a run's state begins now.

        Raises UnsavedChanges.
        """

    async def branch(self, run: Run) -> None:
        """Create the branch that a run was spawned to work on; idempotent."""


class SessionPort(Protocol):
    """Other sessions of the same user, which the root of a tree may write to."""

    async def send(self, run: Run, to: str, text: str) -> str:
        """Send a message of the root, and return what happened to it.

        Raises Unknown, InvalidValue or MailRefused.
        """


class ForkSource(NamedTuple):
    """The messages and the state of a run as of an event, from which a run of another tree begins."""

    messages: tuple[BaseMessage, ...]  #: empty for a run without a conversation
    place: str  #: the namespace of its state
    begins_at: str  #: the commit of its state; empty if it had none
    owner: str  #: of the states of its tree
    is_gated: bool  #: its tree has a safety gate


@dataclass(frozen=True, kw_only=True)
class TreePorts:
    """The ports of one tree."""

    model: ModelPorts
    record: Callable[[Event], Event]
    feed: Callable[[RunInfo, AIMessageChunk, StepId], None]  #: a chunk of the reply of a step: provisional
    clock: Clock
    mint: Callable[[], RunId]
    definitions: Mapping[str, Agent]
    instructions: Callable[[Agent, pathlib.Path, str], str]  #: of a fresh agent, by its folder; what is said of it
    own_tools: Callable[[Agent, pathlib.Path], Sequence[BaseTool]]  #: tools that a definition brings, such as memory
    follow: Callable[[RunInfo], AsyncGenerator[Event]]  #: a run's events: recorded ones first, then live ones
    spill: Callable[[RunInfo], Callable[[str, str], pathlib.Path] | None]
    hooks: Callable[
        [Agent, tuple[HookConfig, ...], bool], Hooks | None
    ]  #: of a definition, and whether it runs as a child
    on_refusal: Callable[[SpawnRefused], None] = lambda refusal: None  #: called with each spawn that a limit prevented
    meter: Meter | None = None  #: for models that agents of other frameworks call
    forwarding: OpenForwarding | None = None  #: for models that programs in sandboxes call
    programs: Programs | None = None  #: of other makers, to be started in sandboxes; None: there are none
    mcp_client: McpClient | None = None  #: for servers in sandboxes; None: no agent may have one
    mcp_packages: McpPackages | None = None  #: of servers that start with npx or uvx; None: these run as they are
    approve: Approve | None = None
    withdraw_restored: Callable[[RunId], None] | None = None  #: closes questions that a run will not ask again
    safety: Safety | None = None  #: of every run, whatever it or its parent requests; None: there are no votes on calls
    decide: Decide | None = None  #: asks the host's policy adapter about each spawn; None: there is none
    other_sessions: SessionPort | None = None  #: None: the tree may write to no other session
    permissions: Permissions = NO_PERMISSIONS  #: rules of settings files, for every run
    compaction: Callable[[int | None], Compaction | None] = lambda _: None  #: for a model's window
    watch: Watch = NO_WATCH  #: of a root, unless it has its own
    timers: TimerQueue | None = None  #: of watches; None: a queue for this tree alone
    grace_s: float = GRACE_S
    omitted_type: Literal["fork", "general-purpose"] = "fork"  #: the meaning of a spawn without a type
    max_finished_runs: int = 256  #: number of finished runs whose history is kept, so that mail can resume them
    read_roots: Callable[[RunInfo], tuple[pathlib.Path, ...]] = lambda _: ()
    recipe: Callable[[Agent], dict[str, Any]] = lambda agent: {"name": agent.name}  #: a definition as data
    durable: Callable[[], Awaitable[None]] | None = None  #: waits until the record is durable; None: nothing is durable
    #: returns if the tree is still this kernel's; None: no other kernel can take it
    confirm_ownership: Callable[[], Awaitable[None]] | None = None
    after: Callable[[Callable[[RametError | None], None], bool], None] = lambda do, _: do(None)  #: see Recorder.after
    store_blob: Callable[[RunInfo], Callable[[bytes], Awaitable[str]] | None] = lambda _: None
    load_blob: Callable[[RunInfo], Callable[[str], Awaitable[bytes | None]] | None] = lambda _: None
    processes: ToolProcesses | None = None  #: for synchronous tools; None: threads
    placement: Placement | None = None  #: None: every run works in the host
    authoring: Authoring | None = None  #: None: agents cannot create agents
    results: Results | None = None  #: of equal calls; None: no result is reused
    memory: Memory | None = None  #: None: agents keep no state
    #: reads a recorded run as of an event, for a fork in the tree of this root; None: no run of other trees is readable
    fork_source: Callable[[RunId, str, int | None], Awaitable[ForkSource]] | None = None
    git: Git = field(default_factory=Git)  #: makes worktrees; by default it trusts no repository
