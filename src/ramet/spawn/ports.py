"""What the host gives to a tree: every way out of it, as plain callables."""

from __future__ import annotations

import pathlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Coroutine, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

from ramet.agent.definition import Agent
from ramet.agent.history.compaction import Compaction
from ramet.agent.hooks.config import HookConfig
from ramet.concurrency.cancel import AbortController
from ramet.concurrency.clock import Clock
from ramet.core.agent_ref import AgentRef
from ramet.core.errors import RametError, SpawnRefused
from ramet.core.events import Event
from ramet.core.ids import RunId
from ramet.core.policy.decision import PolicyDecision, PolicyRequest
from ramet.core.policy.permissions import NO_PERMISSIONS, Permissions
from ramet.core.policy.policy import Grant, Policy
from ramet.isolation.contract import Backend, Sandbox
from ramet.isolation.git.git import Git
from ramet.isolation.workspace.run_dirs import RunFolder
from ramet.spawn.result_cache import Results
from ramet.spawn.run import Run
from ramet.spawn.served_ports import Ports
from ramet.tools.context import Approve, Ask, Hooks, Meter, RunInfo, Safety, SpawnRequest, ToolProcesses, ToolUseContext
from ramet.wire.guest_protocol import StateReply, UseState

if TYPE_CHECKING:
    from langchain_core.language_models import BaseChatModel
    from langchain_core.messages import AIMessageChunk
    from langchain_core.tools import BaseTool

#: Seconds that a cancelled run gets to come to its end before it is fenced off.
GRACE_S = 5.0


#: Asks the policy adapter. Always returns a decision; raises Aborted where the run that asks is stopped meanwhile.
Decide = Callable[[PolicyRequest, AbortController | None], Awaitable[PolicyDecision]]


class ModelPort(NamedTuple):
    """A model as a run reaches it."""

    ask: Ask
    label: str  #: for events and prices
    window: int | None = None  #: input tokens that it takes, if it says


class Placement(Protocol):
    """Where runs work that do not work in the host."""

    @property
    def children(self) -> Policy | None:
        """What a child of a run of the host gets that asks for nothing; None leaves it in the host."""

    async def backend(self, grant: Grant) -> Backend:
        """What keeps a run of this grant in. Raises IsolationUnavailable."""

    def folder(self, run: RunInfo, *, is_there: bool = False) -> RunFolder:
        """The run's own folder, made now, or the one that it has. Raises OSError."""

    def env(self, run: RunInfo, grant: Grant) -> dict[str, str]:
        """The variables that it sees."""

    def mount_roots(self, mounts: Sequence[str]) -> Mapping[str, str]:
        """Where the mounts lead that an operator grants now: see `ramet.isolation.mounts.roots_of`."""

    def check_mounts(self, mounts: Sequence[str], roots: Mapping[str, str]) -> None:
        """Raise InvalidValue for a mount that no run may have, or that a link leads to from a root."""

    def check_endpoints(self, endpoints: Sequence[str], above: Collection[str]) -> None:
        """Raise InvalidValue for an address of this machine by its number that is not listed above."""

    def later(self, work: Coroutine[Any, Any, None]) -> None:
        """Do something that nobody waits for, at the latest before the runtime has stopped."""

    def serving(self, run: RunInfo, grant: Grant, box: Sandbox) -> AbstractAsyncContextManager[Ports]:
        """While this is open, programs of the host reach the ports of a run in its sandbox.

        Raises InvalidValue for a port whose place something else has, SandboxFailed.
        """

    def attending(self, run: ToolUseContext, grant: Grant) -> AbstractAsyncContextManager[pathlib.Path | None]:
        """While this is open, what is seen of the run's sandbox from outside goes on its record.

        Gives the socket of the proxy to its allowed endpoints, or None without any.
        """


class CreatedAgent(Protocol):
    """An agent that was written down: its handle, and capabilities that it asked for in vain."""

    @property
    def ref(self) -> AgentRef | str: ...
    @property
    def dropped(self) -> tuple[str, ...]: ...


class Authoring(Protocol):
    """Agents that agents write down. What comes from them is data: nothing of it is imported or evaluated."""

    async def create(self, run: Run, entry: Mapping[str, Any]) -> CreatedAgent:
        """Put a recipe into the registry of a run's agent, with no capability that it lacks. Raises InvalidValue."""

    async def asked(self, run: Run, ref: str, task: str, arguments: Mapping[str, Any]) -> SpawnRequest:
        """What is to be born below a run to do a task. Raises AgentNotResolved, Unknown, InvalidValue."""


class Memory(Protocol):
    """The states of agents: each run's own, whose place is known here and is never asked for."""

    async def use(self, run: Run, asked: UseState, body: bytes) -> tuple[StateReply, bytes]:
        """Do something with a run's own state. Raises InvalidValue, Conflict, UnsavedChanges, Unknown, Denied."""

    async def begins_at(self, parent: Run) -> str:
        """The commit at which a branch of a run's state begins now. Raises UnsavedChanges."""

    async def branch(self, run: Run) -> None:
        """Have the branch that a run was born to work on; once is enough."""


@dataclass(frozen=True, kw_only=True)
class TreePorts:
    """The ports of one tree."""

    model: Callable[[str | BaseChatModel], ModelPort]  #: raises Unknown, MissingExtra
    record: Callable[[Event], Event]
    feed: Callable[[RunInfo, AIMessageChunk, str], None]  #: a chunk of a reply: provisional
    clock: Clock
    mint: Callable[[], RunId]
    definitions: Mapping[str, Agent]
    instructions: Callable[[Agent, pathlib.Path, pathlib.Path], str]  #: of a fresh agent, by its folder; where it works
    own_tools: Callable[[Agent, pathlib.Path], Sequence[BaseTool]]  #: what a definition brings itself, such as memory
    follow: Callable[[RunInfo], AsyncGenerator[Event]]  #: a run's events, kept ones first, then live
    spill: Callable[[RunInfo], Callable[[str, str], pathlib.Path] | None]
    hooks: Callable[
        [Agent, tuple[HookConfig, ...], bool], Hooks | None
    ]  #: of a definition, and whether it runs as a child
    refused: Callable[[SpawnRefused], None] = lambda refusal: None  #: told of each birth that a limit stood against
    meter: Meter | None = None  #: for models that agents of other frameworks ask
    approve: Approve | None = None
    safety: Safety | None = None  #: of every run, whatever it or its parent asks for; None: calls are not voted on
    decide: Decide | None = None  #: asks the host's policy adapter about each birth; None: there is none
    permissions: Permissions = NO_PERMISSIONS  #: rules of settings files, for every run
    compaction: Callable[[int | None], Compaction | None] = lambda _: None  #: for a model's window
    grace_s: float = GRACE_S
    omitted_type: Literal["fork", "general-purpose"] = "fork"  #: what a spawn without a type means
    kept_runs: int = 256  #: finished runs whose history stays, so that mail can take them up again
    read_roots: Callable[[RunInfo], tuple[pathlib.Path, ...]] = lambda _: ()
    recipe: Callable[[Agent], dict[str, Any]] = lambda agent: {"name": agent.name}  #: a definition as data
    durable: Callable[[], Awaitable[None]] | None = None  #: until what is on record survives; None: nothing does
    after: Callable[[Callable[[RametError | None], None], bool], None] = lambda do, _: do(None)  #: see Recorder.after
    keep_blob: Callable[[RunInfo], Callable[[bytes], Awaitable[str]] | None] = lambda _: None
    processes: ToolProcesses | None = None  #: of synchronous tools; None: threads
    placement: Placement | None = None  #: None: everything works in the host
    authoring: Authoring | None = None  #: None: agents write no agents down
    results: Results | None = None  #: of equal calls; None: everything is worked on
    memory: Memory | None = None  #: None: agents keep no state
    git: Git = field(default_factory=Git)  #: what makes worktrees; by default it trusts no repository
