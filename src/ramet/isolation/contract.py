"""The contract of a backend: it starts a process for one run, confines it, and ends it.

Shaped like `subprocess.Popen`.

A backend knows no agents: it receives a `Grant`, a folder and an entry point, and returns the host's end of a channel.
`ramet.testing.conformance.isolation` checks every backend against this module.
"""

from __future__ import annotations

import asyncio
import pathlib
import socket
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Protocol, runtime_checkable

from ramet.core.policy.policy import Grant, Isolation
from ramet.core.policy.reservation import Reservation

#: The modules that a process has imported when it starts: those that functions need, or langchain-core and the loop,
#: too.
Image = Literal["bare", "llm"]

#: Variables that a backend sets itself, because only a backend knows them; `SandboxSpec.env` may override them.
BASE_ENV = ("HOME", "LANG", "PATH", "TMPDIR", "USER")

#: The time between SIGTERM and SIGKILL.
KILL_GRACE_S = 1.0


@dataclass(frozen=True, kw_only=True)
class SandboxSpec:
    """The description of one process to start."""

    run: str  #: the run's id, for names of folders and cgroups
    grant: Grant
    workspace: pathlib.Path  #: the run's own folder on the host: its working directory, writable
    #: its working directory, if that is not the workspace: one of its mounts or below
    cwd: pathlib.Path | None = None
    image: Image = "bare"
    #: Called inside with the channel's socket, after the last gate; its return value is the exit status.
    entry: str = "ramet.guest.__main__:main"
    #: All variables that the process sees besides BASE_ENV and those of a proxy; never the host's own environment.
    env: Mapping[str, str] = field(default_factory=dict)
    proxy: pathlib.Path | None = None  #: Unix socket of the host's proxy, if endpoints are allowed
    #: By path, the mounts that the operator granted above this run, with their targets at that time. A mount of this
    #: run lies at one of them or below, where no symbolic link is followed. None: each mount of this run is the
    #: operator's own.
    mount_roots: Mapping[str, str] | None = None
    #: a read-only folder below `runs`: files that the host adds later are visible, too
    import_dir: pathlib.Path | None = None
    has_programs: bool = False  #: whether the process starts programs in sessions of their own, as the tool Bash does
    has_loopback: bool = False  #: whether its processes reach each other at a loopback address of its own
    #: Descriptors for stdin, stdout and stderr of a program inside: one pseudo-terminal for all three, or three pipes.
    #: The host made them: a sandbox never has a descriptor of the user's own. The process finds their numbers in the
    #: variable STDIO. The caller closes its own. A sandbox with them ends with its kernel.
    stdio: tuple[int, ...] = ()
    tree: str = ""  #: the id of its tree's root, for people who inspect running sandboxes
    path: str = ""  #: the names of the runs from the root down to this run, for the same purpose
    #: Set once nobody waits for the start any more. A backend need not look: what it starts is ended at once.
    abandoned: asyncio.Event = field(default_factory=asyncio.Event, compare=False, repr=False)


class Exit(NamedTuple):
    """The end of a process. `reason` is the backend's own classification, where the exit code alone is ambiguous."""

    code: int  #: its exit status; a negative value is the signal that ended it
    reason: Literal["exited", "signalled", "oom", "cpu", "workspace", "lost"]
    detail: str = ""
    cpu_seconds: float = 0.0
    peak_mb: float = 0.0


class Metrics(NamedTuple):
    """The current resource usage of a sandbox."""

    cpu_seconds: float
    memory_mb: float
    pids: int
    workspace_mb: float


class Ran(NamedTuple):
    """The result of a command inside a sandbox."""

    code: int
    stdout: bytes
    stderr: bytes


class Sandbox(Protocol):
    """A started process. The caller reads `channel`, `stdout` and `stderr`, and calls `clean_up` at the end."""

    @property
    def channel(self) -> socket.socket:
        """The host's end of the channel: a connected, non-blocking stream. Only this run holds the other end."""

    @property
    def stdout(self) -> int:
        """A descriptor to read the process's output from; end of file when every process of the sandbox has ended."""

    @property
    def stderr(self) -> int: ...
    @property
    def pid(self) -> int:
        """The pid of the first process, in the host's pid namespace; -1 if the process runs on another machine."""

    @property
    def level(self) -> Isolation:
        """The isolation level between the sandbox and the host."""

    async def wait(self) -> Exit:
        """Wait for the end of the sandbox. When this returns, no process of the sandbox is left.

        Callers may call this more than once, and may cancel a call.
        """

    def signal(self, number: int) -> None:
        """Send a signal to the main process, but SIGKILL to all processes; do nothing if the sandbox has ended.

        Does not wait.
        """

    async def kill(self, grace_s: float = KILL_GRACE_S) -> Exit:
        """Send SIGTERM, and SIGKILL to all processes after `grace_s` seconds; return when no process is left."""

    async def metrics(self) -> Metrics:
        """Return the current resource usage. Raises Gone after the end of the sandbox."""

    async def run_command(self, argv: Sequence[str], *, timeout_s: float, max_bytes: int) -> Ran:
        """Run a command in the same sandbox, concurrently and under the same limits. Raises Gone or TimeoutError."""

    async def dial(self, port: int) -> socket.socket:
        """Connect to a TCP port of the sandbox's own loopback, and of no other.

        The returned stream is non-blocking and belongs to the caller.

        Raises InvalidValue if the grant does not name the port, Gone after the end of the sandbox, or SandboxFailed.
        Raises OSError if nothing listens on the port. A port that accepts no connection may keep the caller waiting for
        minutes.
        """

    async def sync(self) -> None:
        """Make both sides see the same files: the workspace on the host, and the import folder in the sandbox.

        Sandboxes that share a disk with the host need nothing. Other sandboxes transfer files only here, at the start
        and in `clean_up`. After the end of the sandbox its files stay available until `clean_up`. Raises SandboxFailed
        if the files cannot be transferred.
        """

    async def clean_up(self) -> None:
        """Release every resource of the host that the sandbox held: descriptors, cgroup.

        Kills live processes. Idempotent.
        """

    def describe(self) -> Mapping[str, Any]:
        """Return the JSON data that `Backend.adopt` needs; no other sandbox ever has the same data."""


@runtime_checkable
class FreezableSandbox(Sandbox, Protocol):
    """A sandbox whose processes can stand still, and go on later as if nothing had happened."""

    async def freeze(self) -> bool:
        """Stop every process, also those that are being started, until `thaw`; return False if that is not possible.

        No limit of the sandbox counts the time. A frozen sandbox keeps its memory, and can be killed: `kill` does not
        wait for its grace. A command of `run_command` waits until it is thawed. Idempotent. Raises Gone after the end
        of the sandbox.
        """

    async def thaw(self) -> None:
        """Let the processes of a frozen sandbox go on. Idempotent, also after the end of the sandbox."""


class Probe(NamedTuple):
    """The abilities of a backend on this machine, found by trying operations that must fail."""

    level: Isolation
    mechanisms: Mapping[str, bool]  #: by name: whether it works as it should
    missing: tuple[str, ...] = ()
    remedy: str = ""
    #: of "cpu_cores" and "memory_mb": the parts of a reservation that the backend enforces
    bounded_resources: frozenset[str] = frozenset()
    remote: bool = False  #: sandboxes run on another machine: files are transferred on request (`Sandbox.sync`)


class Backend(Protocol):
    """A starter of sandboxes of one kind.

    A backend that enforces reservations, as its probe says, is a `ReservingBackend`, too.
    """

    @property
    def name(self) -> str: ...
    @property
    def owner(self) -> tuple[int, int] | None:
        """The user and group that a workspace must belong to; None: the host's own."""

    async def probe(self) -> Probe:
        """Return what the backend offers here; tried once, then cached."""

    async def start(self, spec: SandboxSpec) -> Sandbox:
        """Start a sandbox.

        Raises IsolationUnavailable if `grant.isolation` is above the offered level, InvalidValue for a field that the
        backend cannot enforce, SandboxFailed if the sandbox could not be started. Nothing is left after an error.
        """

    async def adopt(self, description: Mapping[str, Any], spec: SandboxSpec) -> Sandbox:
        """Adopt a sandbox that another process started, which has ended since then without a message to it.

        Messages of its channel that were sent and not answered arrive there again, and no others. A frozen sandbox is
        thawed. Raises Gone if the
        sandbox has ended, or cannot continue without the data of that process; nothing of the sandbox is left then.
        """

    async def reap(self) -> Sequence[str]:
        """Remove everything that dead kernels of this working directory left behind; return what was removed."""

    async def close(self) -> None:
        """End everything that the backend started. Idempotent."""


@runtime_checkable
class ProcessBackend(Backend, Protocol):
    """A backend whose sandboxes are processes of this machine, and end with the kernel."""

    @property
    def parked_count(self) -> int:
        """The number of processes that wait to become a sandbox."""

    def terminate(self) -> None:
        """Kill every sandbox and remove its resources on this machine, except its files; for a process that exits next.

        Blocks for a few seconds at most, and needs no event loop. The runs are not notified of these ends.
        """


@runtime_checkable
class ReservingBackend(Backend, Protocol):
    """A backend that bounds the joint usage of the sandboxes of a reservation, from the start of the first of them."""

    async def reserve(self, reservation: Reservation) -> None:
        """Allocate a reservation before the first sandbox starts, where that has a meaning. Idempotent.

        Raises SpawnRefused if too few resources are free, SandboxFailed, or IsolationUnavailable; nothing is left then.
        """

    async def keep(self, names: Callable[[], Awaitable[Collection[str]]]) -> Sequence[str]:
        """Release all other reservations of this working directory, from any owner; return what was released.

        The backend calls `names` after it has listed the existing reservations: a reservation made meanwhile stays.
        """

    async def warm(self) -> None:
        """Prepare in advance the parts of a sandbox that take long; does not wait for them.

        Raises the same as `probe`.
        """

    async def disband(self, name: str) -> None:
        """Release the resources of a reservation on the host, once its sandboxes have ended. Idempotent."""


@runtime_checkable
class ConfigurableBackend(Backend, Protocol):
    """A backend that accepts configuration of teams, for example a zone or a machine class.

    No other component reads that configuration.
    """

    def check_team(self, config: Any) -> None:
        """Raise InvalidValue if a configuration, which is plain JSON data, is not accepted."""

    async def configure_team(self, team: str, config: Any) -> None:
        """Store the configuration of a team, under the name of its reservations, before its first sandbox starts.

        Each server that continues the team calls this again. Idempotent. Raises the same as `reserve`.
        """
