"""A machine that keeps sandboxes for this kernel, and each of them as a `Sandbox` like any other.

What is at the other end may be taken over by who works there: it can lie about its own sandboxes, and no more. Memory
is bounded by windows; a word out of turn, or one about what is not there, is the end of the line.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ramet.core.policy import Isolation
from ramet.isolation.contract import KILL_GRACE_S, Exit, Metrics, Ran, SandboxSpec
from ramet.isolation.remote.line import Line
from ramet.isolation.remote.messages import Hello

#: Told of a run, what it uses most of, how much, and its limit: as of `ramet.isolation.forking`.
OnThreshold = Callable[[str, str, float, float], object]


class Machine:
    """One line to one machine. Make it on a running event loop; it reads the line at once."""

    def __init__(self, line: Line, *, level: Isolation | None = None, on_threshold: OnThreshold | None = None) -> None:
        """`level` is what stands between its sandboxes and the host, if that is more than the machine itself has.

        Whoever gives it has compared it with what a run asks for; the machine is then not asked about isolation.
        """

    @property
    def is_open(self) -> bool:
        """Whether sandboxes can be started: the line has not ended, nothing was lost, nobody closed it."""
        raise NotImplementedError

    @property
    def living(self) -> int:
        """How many sandboxes were started and are not yet cleaned up."""
        raise NotImplementedError

    async def hello(self) -> Hello:
        """What it said first; waits for that, without end. Raises SandboxFailed if the line ends before or after."""
        raise NotImplementedError

    async def start(self, spec: SandboxSpec) -> RemoteSandbox:
        """As of a `Backend`: files go there, it starts. Raises InvalidValue, IsolationUnavailable, SandboxFailed."""
        raise NotImplementedError

    def lost(self, exit: Exit) -> None:
        """The machine is known to be gone: all its sandboxes end so, at once. The first word of it stands."""

    async def wait_ended(self) -> Exit:
        """Wait until the line has ended or the machine is lost; how its sandboxes ended by that."""
        raise NotImplementedError

    async def close(self) -> None:
        """Tell it to leave, and end the line: all its sandboxes end. Idempotent; they may be cleaned up later."""


class RemoteSandbox:
    """One process on that machine."""

    channel: socket.socket
    stdout: int
    stderr: int
    level: Isolation
    pid = -1

    async def wait(self) -> Exit:
        """See `ramet.isolation.contract.Sandbox`."""
        raise NotImplementedError

    def signal(self, number: int) -> None:
        """See `ramet.isolation.contract.Sandbox`."""

    async def kill(self, grace_s: float = KILL_GRACE_S) -> Exit:
        """See `ramet.isolation.contract.Sandbox`."""
        raise NotImplementedError

    async def metrics(self) -> Metrics:
        """See `ramet.isolation.contract.Sandbox`."""
        raise NotImplementedError

    async def run_command(self, argv: Sequence[str], *, timeout_s: float, max_bytes: int) -> Ran:
        """See `ramet.isolation.contract.Sandbox`."""
        raise NotImplementedError

    async def sync(self) -> None:
        """See `ramet.isolation.contract.Sandbox`."""

    async def clean_up(self) -> None:
        """See `ramet.isolation.contract.Sandbox`."""

    def describe(self) -> Mapping[str, Any]:
        """See `ramet.isolation.contract.Sandbox`."""
        raise NotImplementedError
