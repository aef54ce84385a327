"""The owner's view of one agent's process, from its assignment on: `Sandbox` of the contract for a zygote's child."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import os
import signal
import socket
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from ramet.concurrency import pipes
from ramet.concurrency.deadline import run_shielded
from ramet.concurrency.pipes import Capture
from ramet.concurrency.threads import in_thread
from ramet.core.errors import Gone, InvalidValue, SandboxFailed
from ramet.core.policy.policy import Isolation
from ramet.isolation import spawn_thread
from ramet.isolation.assignment import Assignment
from ramet.isolation.contract import KILL_GRACE_S, Exit, Metrics, Ran
from ramet.isolation.limits.cgroups import Cgroup
from ramet.isolation.limits.freezer import Freezer
from ramet.isolation.limits.team_cgroups import MemoryBounds
from ramet.isolation.limits.watchdog import WatchedSandbox
from ramet.isolation.linux import procfs
from ramet.isolation.linux.procfs import Stat
from ramet.isolation.zygote.child import FAILED, OUT_OF_MEMORY, STARTED
from ramet.isolation.zygote.client import ZygoteClient
from ramet.isolation.zygote.process import ChildExit, ZygoteChild

LOOPBACK = "127.0.0.1"  #: the loopback of an agent's own network
#: Exit codes of an agent that tried a forbidden system call, or whose memory was corrupted.
CRASHES = frozenset({-signal.SIGSYS, -signal.SIGSEGV, -signal.SIGBUS})


class ForkedSandbox:
    """A sandbox whose processes die with their zygote, and so with the kernel.

    The sandbox keeps its descriptors: `clean_up` closes them. A caller that needs one longer makes a copy.
    """

    def __init__(
        self,
        run: str,
        level: Isolation,
        zygote: ZygoteClient,
        child: ZygoteChild,
        assignment: Assignment,
        watched_sandbox: WatchedSandbox | None,
        *,
        on_end: Callable[[Exit], None],
        on_leaving: Callable[[], Awaitable[None]],
        oom_kills: Callable[[], int] | None,
        bounds: MemoryBounds,
        make_freezer_group: Callable[[], Cgroup | None],
    ) -> None:
        self._run, self.level, self._zygote, self._child, self._assignment = run, level, zygote, child, assignment
        self._watched_sandbox, self._bounds = watched_sandbox, bounds
        self._exit: Exit | None = None
        self._on_end, self._on_leaving = on_end, on_leaving
        self._oom_kills = oom_kills  #: of all processes that share its memory limit
        self._oom_kills_before = oom_kills() if oom_kills else 0
        self._is_killed, self._has_left = False, False
        self._programs: set[ZygoteChild] = set()  #: commands that are being run
        self._freezer = Freezer(self._processes, self._freezer_group)
        self._make_freezer_group = make_freezer_group
        self._own_freezer_group: Cgroup | None = None
        self._freezing = asyncio.Lock()
        self._is_thawed = asyncio.Event()
        self._is_thawed.set()
        child.exit_future.add_done_callback(lambda _: self._finish())

    @property
    def channel(self) -> socket.socket:
        return self._child.channel

    @property
    def stdout(self) -> int:
        return self._child.host_fds[0]

    @property
    def stderr(self) -> int:
        return self._child.host_fds[1]

    @property
    def pid(self) -> int:
        return self._child.pid

    async def wait(self) -> Exit:
        await asyncio.shield(self._child.exit_future)
        return self._finish()

    def signal(self, number: int) -> None:
        self._is_killed = self._is_killed or number == signal.SIGKILL
        self._child.signal(number)
        if number == signal.SIGKILL:
            self._zygote.end(self._child)  # Before the zygote learns of the main process's end, which takes a while.

    async def kill(self, grace_s: float = KILL_GRACE_S) -> Exit:
        """Send SIGTERM, then SIGKILL: when the main process ends, the zygote ends its pid namespace."""
        try:
            if grace_s > 0 and self._is_thawed.is_set():  # A frozen process could not handle it.
                self.signal(signal.SIGTERM)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(grace_s):
                        return await self.wait()
        finally:
            self.signal(signal.SIGKILL)
        return await self.wait()

    async def metrics(self) -> Metrics:
        if self._watched_sandbox is None or self._child.exit_future.done():
            raise Gone("the sandbox has ended")
        return self._watched_sandbox.metrics()

    async def freeze(self) -> bool:
        watched = self._watched_sandbox
        async with self._freezing:
            if watched is None or self._child.exit_future.done():
                raise Gone("the sandbox has ended")
            self._is_thawed.clear()
            try:
                await run_shielded(in_thread(self._freezer.freeze, name="ramet-freeze"))
            except Exception:
                self._freezer.thaw()
                self._is_thawed.set()
                raise
            watched.freezer = self._freezer
            if self._exit is not None and self._own_freezer_group is not None:
                self._zygote.forget_group(self._own_freezer_group)  # It ended before its group was made.
        return True

    async def thaw(self) -> None:
        async with self._freezing:
            if self._watched_sandbox is not None:
                self._watched_sandbox.freezer = None
            self._freezer.thaw()
            self._is_thawed.set()

    async def run_command(self, argv: Sequence[str], *, timeout_s: float, max_bytes: int) -> Ran:
        """Run a command; then its processes are ended, except those that left the command's group.

        In a frozen sandbox it begins when the sandbox is thawed.
        """
        zygote, child = self._zygote, self._child
        if child.exit_future.done():
            raise Gone("the sandbox has ended")
        out, err = Capture(head=max_bytes), Capture(head=max_bytes)
        with contextlib.ExitStack() as ours:
            with contextlib.ExitStack() as theirs:
                sinks = [
                    pipes.reader_pipe(each, on_full=lambda: None, parent_fds=ours, child_fds=theirs)
                    for each in (out, err)
                ]
                try:
                    program = await zygote.run_program(child, self._assignment, argv, sinks)
                except SandboxFailed:
                    if child.exit_future.done():
                        raise Gone("the sandbox has ended") from None
                    raise
            self._programs.add(program)
            try:
                if (cgroup := child.cgroup) is not None:
                    pid = program.pid
                    await spawn_thread.call(lambda: cgroup.add(pid))
                async with asyncio.timeout(timeout_s):
                    await self._is_thawed.wait()
                    with contextlib.suppress(BrokenPipeError):
                        os.write(program.host_fds[0], b"1")
                    await asyncio.shield(program.exit_future)
            finally:
                self._programs.discard(program)
                zygote.end(program)
                await run_shielded(asyncio.shield(program.exit_future))
                program.close()
        return Ran(program.exit_future.result().code, out.data(), err.data())

    async def dial(self, port: int) -> socket.socket:
        if port not in self._assignment.ports:
            declared_ports = ", ".join(map(str, self._assignment.ports))
            raise InvalidValue("port", port, f"a port of its policy: {declared_ports or 'it has none'}")
        if self._child.exit_future.done():
            raise Gone("the sandbox has ended")
        sock = await self._zygote.open_socket(self._child)
        try:
            await asyncio.get_running_loop().sock_connect(sock, (LOOPBACK, port))
            if sock.getsockname()[1] == port:  # If nothing listens, TCP may connect a socket with itself.
                raise ConnectionRefusedError(errno.ECONNREFUSED, os.strerror(errno.ECONNREFUSED))
        except BaseException:
            sock.close()
            raise
        return sock

    async def sync(self) -> None:
        """Do nothing: both sides always see the same files."""

    async def clean_up(self) -> None:
        """Kill live processes and close open descriptors. Idempotent."""
        if not self._child.exit_future.done():
            await self.kill(0)
        self._child.close()
        if self._child.removal is not None:
            await asyncio.shield(self._child.removal)
        if not self._has_left:
            self._has_left = True
            await run_shielded(self._on_leaving())

    def describe(self) -> Mapping[str, Any]:
        """Return enough data for a later kernel to determine that this sandbox has ended."""
        return {"run": self._run, "pid": self._child.pid}

    def _processes(self) -> Mapping[int, Stat]:
        """Return all present processes, also those of commands."""
        assert self._watched_sandbox is not None, "only a watched sandbox is frozen"
        processes = self._watched_sandbox.tree()
        for program in list(self._programs):
            processes |= procfs.tree(program.pid)
        return processes

    def _freezer_group(self) -> Cgroup | None:
        """Return the group by which this sandbox is frozen: the one that has its limits, or one of its own."""
        if (group := self._child.cgroup) is not None and group.freezer is not None:
            return group
        self._own_freezer_group = self._make_freezer_group()
        return self._own_freezer_group

    def _finish(self) -> Exit:
        if self._exit is None:
            if self._own_freezer_group is not None:
                self._zygote.forget_group(self._own_freezer_group)
            self._exit = self._judge_exit(self._child.exit_future.result())
            self._on_end(self._exit)
        return self._exit

    def _judge_exit(self, ending: ChildExit) -> Exit:
        if self._watched_sandbox is not None:
            self._watched_sandbox.close()
        code, cpu, peak = ending.code, ending.cpu_seconds, ending.peak_mb
        if ending.loss_reason:
            return Exit(code, "lost", ending.loss_reason, cpu, peak)
        if self._watched_sandbox is not None and (verdict := self._watched_sandbox.verdict) is not None:
            return Exit(code, "signalled" if verdict == "pids" else verdict, self._watched_sandbox.reason, cpu, peak)
        if code == -signal.SIGXCPU:
            return Exit(code, "cpu", f"more than {self._assignment.cpu_s} s of processor time", cpu, peak)
        if code == OUT_OF_MEMORY:
            return Exit(code, "oom", "MemoryError", cpu, peak)
        if code == -signal.SIGKILL and (group := self._child.cgroup) is not None and group.oom_kills():
            return Exit(code, "oom", self._bounds.describe_exceeded(group), cpu, peak)
        if code == -signal.SIGKILL and not self._is_killed and self._oom_kills is not None:
            if self._oom_kills() > self._oom_kills_before:
                return Exit(code, "oom", "the kernel killed it for the memory of its container", cpu, peak)
        return Exit(code, "signalled" if code < 0 else "exited", "", cpu, peak)


async def send_assignment(child: ZygoteChild, assignment: Assignment, fds: Sequence[int]) -> None:
    """Send a parked child its assignment, and descriptors: its group's, its program's. Raises SandboxFailed."""
    data = json.dumps(assignment).encode()
    length = len(data).to_bytes(4, "big")
    try:
        if fds:
            socket.send_fds(child.channel, [length], fds)  # The first message on the channel: there is room.
        else:
            data = length + data
        await asyncio.get_running_loop().sock_sendall(child.channel, data)
    except OSError as error:
        raise SandboxFailed(f"a sandbox did not start: {error}") from error


async def wait_started(child: ZygoteChild) -> None:
    """Wait until the child reports that all gates are closed. Raises SandboxFailed."""
    loop = asyncio.get_running_loop()
    try:
        answer = await loop.sock_recv(child.channel, 1)
        if answer == STARTED:
            return
        reason = await loop.sock_recv(child.channel, 4096) if answer == FAILED else b"it ended"
    except OSError as error:
        raise SandboxFailed(f"a sandbox did not start: {error}") from error
    raise SandboxFailed(f"a sandbox could not be made: {reason.decode(errors='replace')}")
