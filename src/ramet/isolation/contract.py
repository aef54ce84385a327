"""What a backend is: it starts a process for one run, keeps it in, and ends it. Shaped like `subprocess.Popen`.

A backend knows no agents: it is given a `Grant`, a folder and an entry point, and returns the host's end of a channel.
`ramet.testing.conformance.isolation` holds every backend to this page.
"""

from __future__ import annotations

import pathlib
import socket
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Protocol, runtime_checkable

from ramet.core.policy.policy import Grant, Isolation
from ramet.core.policy.reservation import Reservation

#: What a process has imported when it starts: what functions need, or langchain-core and the loop too.
Image = Literal["bare", "llm"]

#: Variables that a backend sets itself, since only it knows them; `SandboxSpec.env` may set them otherwise.
BASE_ENV = ("HOME", "LANG", "PATH", "TMPDIR", "USER")

#: From SIGTERM to SIGKILL.
KILL_GRACE_S = 1.0


@dataclass(frozen=True, kw_only=True)
class SandboxSpec:
    """One process to be started."""

    run: str  #: the run's id, for names of folders and cgroups
    grant: Grant
    workspace: pathlib.Path  #: the run's own folder on the host: its working directory, writable
    cwd: pathlib.Path | None = None  #: where it works, if not in its workspace: one of `readonly_mounts` or below
    image: Image = "bare"
    #: Called inside with the channel's socket, after the last gate; what it returns is the exit status.
    entry: str = "ramet.guest.__main__:main"
    #: All that it sees beside BASE_ENV and the variables of a proxy; never the host's own environment.
    env: Mapping[str, str] = field(default_factory=dict)
    proxy: pathlib.Path | None = None  #: Unix socket of the host's proxy, if endpoints are allowed
    #: By path, the mounts that the operator granted above this run: where each led then. A mount of this run lies at
    #: one of them or below, where no symbolic link is followed. None: each mount of this run is the operator's own.
    mount_roots: Mapping[str, str] | None = None
    shelf: pathlib.Path | None = None  #: a folder below `runs`, to be read: what the host puts there later is seen, too
    has_programs: bool = False  #: it starts programs in sessions of their own, as the tool Bash does
    tree: str = ""  #: the id of its tree's root, for whoever looks at what there is
    path: str = ""  #: the run's names from there down, for the same


class Exit(NamedTuple):
    """How a process ended. `reason` is the backend's own word, where the code alone does not tell."""

    code: int  #: its exit status; negative is the signal that ended it
    reason: Literal["exited", "signalled", "oom", "cpu", "workspace", "lost"]
    detail: str = ""
    cpu_seconds: float = 0.0
    peak_mb: float = 0.0


class Metrics(NamedTuple):
    """What a sandbox uses now."""

    cpu_seconds: float
    memory_mb: float
    pids: int
    workspace_mb: float


class Ran(NamedTuple):
    """What a command inside a sandbox left."""

    code: int
    stdout: bytes
    stderr: bytes


class Sandbox(Protocol):
    """One process, started. The caller reads `channel`, `stdout` and `stderr`, and calls `clean_up` in the end."""

    @property
    def channel(self) -> socket.socket:
        """The host's end: a connected stream, non-blocking. Whoever holds the other end is this run, and no other."""

    @property
    def stdout(self) -> int:
        """A descriptor to read what it prints; end of file when all of it has ended."""

    @property
    def stderr(self) -> int: ...
    @property
    def pid(self) -> int:
        """Of its first process, as the host counts; -1 if it runs on another machine."""

    @property
    def level(self) -> Isolation:
        """What stands between it and the host."""

    async def wait(self) -> Exit:
        """Wait for its end. When it returns, no process of it is left. May be called often, and given up."""

    def signal(self, number: int) -> None:
        """Send a signal to its main process, SIGKILL to all of it; nothing if it has ended. Waits for nothing."""

    async def kill(self, grace_s: float = KILL_GRACE_S) -> Exit:
        """SIGTERM, and SIGKILL to all of it after `grace_s`; returns when no process is left."""

    async def metrics(self) -> Metrics:
        """What it uses now. Raises Gone after its end."""

    async def run_command(self, argv: Sequence[str], *, timeout_s: float, max_bytes: int) -> Ran:
        """Run a command beside it, in the same sandbox under the same limits. Raises Gone, TimeoutError."""

    async def dial(self, port: int) -> socket.socket:
        """Connect to a TCP port of its own loopback, and of no other; the stream is non-blocking, and the caller's.

        Raises InvalidValue for a port that its grant does not name, Gone after its end, SandboxFailed, OSError where
        nobody listens. One that takes no connection may keep the caller waiting for minutes.
        """

    async def sync(self) -> None:
        """Have both sides see the same files: what it made in its workspace here, what was put on its shelf there.

        Nothing is to be done where they share a disk. Elsewhere this is when files travel, with its start and
        `clean_up`. After its end what was left can be had until `clean_up`. Raises SandboxFailed if they cannot travel.
        """

    async def clean_up(self) -> None:
        """Let go of everything of the host that it held: descriptors, cgroup. Kills what still lives. Idempotent."""

    def describe(self) -> Mapping[str, Any]:
        """What `Backend.adopt` needs of it, as data of JSON: no other sandbox ever has the same."""


class Probe(NamedTuple):
    """What a backend offers on this machine, found by trying what must fail."""

    level: Isolation
    mechanisms: Mapping[str, bool]  #: by name: works as it should
    missing: tuple[str, ...] = ()
    remedy: str = ""
    together: frozenset[str] = frozenset()  #: of "cpu_cores" and "memory_mb": what of a reservation it enforces
    remote: bool = False  #: sandboxes run on another machine: files travel when they are told to (`Sandbox.sync`)


class Backend(Protocol):
    """Starts sandboxes of one kind. One that enforces reservations, as its probe says, is a `ReservingBackend`, too."""

    @property
    def name(self) -> str: ...
    @property
    def owner(self) -> tuple[int, int] | None:
        """User and group that a workspace must belong to; None: the host's own."""

    async def probe(self) -> Probe:
        """What it offers here; tried once, then remembered."""

    async def start(self, spec: SandboxSpec) -> Sandbox:
        """Start one. Raises IsolationUnavailable if `grant.isolation` is above what is offered, InvalidValue for a
        field it cannot enforce, SandboxFailed if it could not be started; nothing is left then.
        """

    async def adopt(self, description: Mapping[str, Any], spec: SandboxSpec) -> Sandbox:
        """Go on with what another process had started, which has ended since then without a word to it.

        What had been said on its channel, and was not answered, comes there again, and nothing else. Raises Gone where
        it has ended, or cannot go on without what that process knew; nothing of it is left then.
        """

    async def reap(self) -> Sequence[str]:
        """Remove what dead kernels of this working directory left behind; says what."""

    async def close(self) -> None:
        """End everything it started; idempotent."""


@runtime_checkable
class ProcessBackend(Backend, Protocol):
    """Backend whose sandboxes are processes of this machine, and end with the kernel."""

    @property
    def parked(self) -> int:
        """How many processes wait to become a sandbox."""

    def terminate(self) -> None:
        """Kill every sandbox and remove what it has on this machine but its files; for a process that exits next.

        Blocks for seconds at most, and needs no event loop: nothing of what ends here is told to its run.
        """


@runtime_checkable
class ReservingBackend(Backend, Protocol):
    """Bounds what the sandboxes of a reservation use together, from the start of the first of them on."""

    async def reserve(self, reservation: Reservation) -> None:
        """Have it before the first sandbox starts, where that means anything. Idempotent.

        Raises SpawnRefused if there is not so much, SandboxFailed, IsolationUnavailable; nothing is left then.
        """

    async def keep(self, names: Callable[[], Awaitable[Collection[str]]]) -> Sequence[str]:
        """Let go of all reservations of this working directory but these, whoever has made them; says what went.

        `names` is asked after the backend has looked what there is: what is made meanwhile stays.
        """

    async def warm(self) -> None:
        """Have made ahead what a sandbox takes long to get; waits for nothing of it. Raises what `probe` does."""

    async def disband(self, name: str) -> None:
        """Let go of what a reservation has on the host, once its sandboxes have ended. Idempotent."""


@runtime_checkable
class ConfigurableBackend(Backend, Protocol):
    """Takes configuration of teams, which nobody else reads: a zone, say, or a class of machines."""

    def check_team(self, config: Any) -> None:
        """Raise InvalidValue for a configuration, plain data of JSON, that is not accepted."""

    async def configure_team(self, team: str, config: Any) -> None:
        """Know the configuration of a team, by the name of its reservations, before its first sandbox starts.

        Comes again with each server that goes on with the team. Idempotent. Raises what `reserve` does.
        """
