"""A process that the host requested from a zygote: its descriptors, its end, its control group."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
from collections.abc import Sequence
from typing import NamedTuple

from ramet.core.errors import SandboxFailed
from ramet.isolation.limits.cgroups import Cgroup


class ChildExit(NamedTuple):
    """The end of a process, as the zygote saw it; `loss_reason` is the reason if no zygote saw it."""

    code: int
    cpu_seconds: float = 0.0
    peak_mb: float = 0.0
    loss_reason: str = ""


class ZygoteChild:
    """A process, on a running event loop. Only `close` closes its descriptors."""

    def __init__(
        self, number: int, host_fds: Sequence[int], child_fds: Sequence[int], channel: socket.socket | None = None
    ) -> None:
        loop = asyncio.get_running_loop()
        self.number = number
        self.host_fds = list(host_fds)  #: whose other ends the process has, except the channel; -1 once closed
        self.child_fds = list(child_fds)
        self._channel = channel
        self._pidfd = -1
        self.pid = self.adopter = -1  #: in the host's namespace; the adopter becomes the parent of orphans inside
        self.cgroup: Cgroup | None = None
        self.removal: asyncio.Task[bool] | None = None  #: of the control group, once the process has ended
        self.is_unwanted = False
        self.fork_future: asyncio.Future[None] = loop.create_future()
        self.exit_future: asyncio.Future[ChildExit] = loop.create_future()
        self.fork_future.add_done_callback(lambda done: done.cancelled() or done.exception())  # there may be no waiter

    @classmethod
    def agent(cls, number: int, cgroup: Cgroup | None = None) -> ZygoteChild:
        """Create a process for an agent, with a channel, stdout, stderr, and descriptors to enter its group.

        Raises SandboxFailed.
        """
        with contextlib.ExitStack() as cleanup:
            try:
                channel, child_end = socket.socketpair()
                cleanup.callback(channel.close)
                cleanup.callback(child_end.close)
                first = os.pipe()
                for fd in first:
                    cleanup.callback(os.close, fd)
                second = os.pipe()
                for fd in second:
                    cleanup.callback(os.close, fd)
                pipes = [first, second]
            except OSError as error:
                raise SandboxFailed(f"no descriptors for a sandbox: {error.strerror}") from error
            cgroup_fds = [] if cgroup is None else cgroup.entry_fds()
            cleanup.pop_all()
        channel.setblocking(False)
        for read_end, _ in pipes:
            os.set_blocking(read_end, False)
        child_fds = [child_end.detach(), *(end for _, end in pipes), *cgroup_fds]
        agent = cls(number, [read_end for read_end, _ in pipes], child_fds, channel)
        agent.cgroup = cgroup
        return agent

    @property
    def channel(self) -> socket.socket:
        assert self._channel is not None
        return self._channel

    def on_forked(self, pidfds: Sequence[int]) -> None:
        """Record the pidfds of the main process, and of the first process of its pid namespace if there is one.

        Raises SandboxFailed, as `fork_future` does then, if there is no descriptor for them: the process must be ended.
        """
        self._pidfd, *first = pidfds or (-1,)
        try:
            self.pid = pid_of(self._pidfd)
            for fd in first:
                self.adopter = pid_of(fd)
        except OSError:
            error = SandboxFailed("no process could be forked: no descriptor is left")
            self.fork_future.set_exception(error)
            raise error from None
        finally:
            for fd in first:
                os.close(fd)
        self.fork_future.set_result(None)
        if self.is_unwanted:
            self.discard()

    def watch(self) -> int:
        """Return a copy of the pidfd; -1 if there is none."""
        return self._pidfd if self._pidfd < 0 else os.dup(self._pidfd)

    def signal(self, number: int) -> None:
        """Signal only the main process; do nothing if it has ended."""
        if self._pidfd >= 0 and not self.exit_future.done():
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, number)

    def kill_group(self) -> None:
        """Send SIGKILL to the main process and its process group, if it lives."""
        if self._pidfd >= 0:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                signal.pidfd_send_signal(self._pidfd, 0)  # The pid stays valid as long as the process is not reaped.
                os.killpg(self.pid, signal.SIGKILL)

    def close_child_fds(self) -> None:
        """Close our copies of the ends that the process has received."""
        while self.child_fds:
            os.close(self.child_fds.pop())

    def close(self) -> None:
        """Close our ends. Idempotent."""
        self.is_unwanted = True
        self.close_child_fds()
        if self._channel is not None:
            self._channel.close()
        for fd in (*self.host_fds, self._pidfd):
            if fd >= 0:
                os.close(fd)
        self.host_fds = [-1] * len(self.host_fds)
        self._pidfd = -1

    def discard(self) -> None:
        """Kill a process that is not wanted, now or as soon as it is forked, and close our ends."""
        self.signal(signal.SIGKILL)
        self.close()


def pid_of(pidfd: int) -> int:
    """Return the pid behind a descriptor, in the host's namespace; -1 once the process is reaped."""
    with open(f"/proc/self/fdinfo/{pidfd}") as file:  # noqa: PTH123
        return next(int(line[4:]) for line in file if line.startswith("Pid:"))
