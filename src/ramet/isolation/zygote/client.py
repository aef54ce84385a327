"""The host's view of one zygote: it requests processes, receives their ends, and ends all of them when it is closed."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import os
import re
import signal
import socket
from collections import deque
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, Protocol

from ramet.concurrency.deadline import run_shielded
from ramet.concurrency.threads import in_thread
from ramet.core.errors import Gone, SandboxFailed
from ramet.isolation import spawn_thread
from ramet.isolation.assignment import Assignment, ZygoteConfig
from ramet.isolation.limits.cgroup_cleanup import GroupRemover
from ramet.isolation.limits.cgroups import Cgroup
from ramet.isolation.python_runtime import Runtime
from ramet.isolation.zygote import packets
from ramet.isolation.zygote.launcher import Launch
from ramet.isolation.zygote.process import ChildExit, ZygoteChild, pid_of

_START_S = 60.0  #: an image of many packages, on a machine that is busy
_END_S = 5.0  #: the time limit for processes that were asked to end; only a stalled machine needs all of it
_REFILL_S = 0.005  #: from a child's departure to the fork of the next: an immediate fork would take time from the first
_AT_ONCE = 32  #: forks that are requested and not done: more would overfill the socket
_MAX_REPORTED = 2_000  #: the number of characters of a zygote's output that are reported
_PATH = re.compile(r"""'/[^']*'|"/[^"]*"|(?<!\w)/\S+""")
_log = logging.getLogger("ramet.isolation")

#: Makes a control group for a process that is to be forked; blocks.
MakeGroup = Callable[[], Cgroup]


class Process(Protocol):
    """A child process of ours, with the interface of `subprocess.Popen`."""

    @property
    def pid(self) -> int: ...
    @property
    def returncode(self) -> int | None: ...
    def kill(self) -> None: ...
    def wait(self) -> int: ...


class ZygoteClient:
    """The owner of a zygote and of its children."""

    def __init__(
        self,
        config: ZygoteConfig,
        control: socket.socket,
        process: Process,
        output_fd: int,
        leash: int,
        make_group: MakeGroup | None,
    ) -> None:
        self.config, self.spawn_count = config, 0
        self._loop = asyncio.get_running_loop()
        self.started_at = self._loop.time()
        self._control, self._process, self._make_group = control, process, make_group
        self._output_fd, self._held_end = output_fd, leash
        self._pidfd = -1  #: a pidfd of the zygote
        self._ready: asyncio.Future[None] = self._loop.create_future()
        self._numbers = itertools.count()
        self._children: dict[int, ZygoteChild] = {}  #: processes that live, or are being forked
        self._sockets: dict[int, asyncio.Future[socket.socket]] = {}  #: requested sockets
        self._parked_children: deque[ZygoteChild] = deque()
        self._parked_target = 0  #: the number of agents to keep parked
        self._parking = 0  #: the number of agents that are being forked to be parked
        self._refill: asyncio.TimerHandle | None = None
        self._turn = asyncio.Semaphore(_AT_ONCE)
        self.is_open = True  #: it accepts requests for processes
        self._has_exited = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._leftovers = GroupRemover()
        control.setblocking(False)
        self._loop.add_reader(control, self._hear)

    @classmethod
    async def start(
        cls, config: ZygoteConfig, launch: Launch, runtime: Runtime, make_group: MakeGroup | None = None
    ) -> ZygoteClient:
        """Start a zygote and wait until it can fork. Raises SandboxFailed, with the zygote's printed output."""
        control, child_end = packets.pair()
        output = os.memfd_create("printed", os.MFD_CLOEXEC)
        watched_end, held_end = os.pipe()
        try:
            with child_end:
                fd = child_end.fileno()
                packets.send(control, "launch", launch._replace(argv=runtime.program("zygote.main", fd, watched_end)))
                packets.send(control, "room", config)
                program = runtime.program("zygote.launcher", fd, watched_end, options=("-S",))
                process = await spawn_thread.start(program, stderr=output, pass_fds=[fd, watched_end])
        except BaseException:
            control.close()
            for each in (output, held_end):
                os.close(each)
            raise
        finally:
            os.close(watched_end)
        return await cls(config, control, process, output, held_end, make_group)._wait_ready()

    @classmethod
    async def from_prefork(
        cls, process: Process, control: socket.socket, output_fd: int, leash: int, config: ZygoteConfig
    ) -> ZygoteClient:
        """Take over a zygote that waits for its configuration, and wait until it can fork.

        Raises SandboxFailed, as `start` does.
        """
        with contextlib.suppress(OSError):  # It has ended: `_wait_ready` finds that next.
            packets.send(control, "room", config)
        return await cls(config, control, process, output_fd, leash, None)._wait_ready()

    async def _wait_ready(self) -> ZygoteClient:
        try:
            async with asyncio.timeout(_START_S):
                await self._ready
        except BaseException as error:
            await run_shielded(self.close())
            if isinstance(error, TimeoutError):
                raise SandboxFailed(f"no zygote within {_START_S:g} s") from None
            raise
        return self

    @property
    def has_exited(self) -> bool:
        """Return whether the zygote and all its children have ended."""
        return self._has_exited.is_set()

    @property
    def parked_count(self) -> int:
        return len(self._parked_children)

    @property
    def pid(self) -> int:
        """The pid of the zygote in the host's namespace; -1 once it is reaped. Known once the zygote has started."""
        return pid_of(self._pidfd)

    @property
    def children(self) -> tuple[ZygoteChild, ...]:
        """The processes that live, or are being forked, including parked ones."""
        return tuple(self._children.values())

    def park(self, count: int) -> None:
        """Keep this many agents parked, from now on."""
        self._parked_target = count
        while self.is_open and len(self._parked_children) + self._parking < count:
            self._parking += 1
            self._do(self._fill())

    def refill_soon(self) -> None:
        """Replace the agents that were taken, once they have had time to start."""
        if self._refill is None and self.is_open:
            self._refill = self._loop.call_later(_REFILL_S, self._do_refill)

    async def take_child(self) -> ZygoteChild:
        """Return a child for an agent, parked or forked now. Raises SandboxFailed.

        Its `channel` and its `ours` (stdout and stderr) are the host's ends.
        """
        self.spawn_count += 1
        while self._parked_children:
            child = self._parked_children.popleft()
            if not child.exit_future.done():
                return child
            child.close()
        return await self._new_child()

    async def run_program(
        self, other: ZygoteChild, assignment: Assignment, argv: Sequence[str], output: Sequence[int]
    ) -> ZygoteChild:
        """Start a program in an agent's sandbox; it waits for a byte on its `ours`, a pipe. Raises SandboxFailed."""
        read_end, write_end = os.pipe()
        program = ZygoteChild(next(self._numbers), [write_end], [read_end])
        fds = (*output, read_end)
        async with self._turn:
            self._ask("run", program, fds, {"beside": other.number, "given": assignment, "argv": list(argv)})
            return await self._wait_forked(program)

    async def open_socket(self, agent: ZygoteChild) -> socket.socket:
        """Return a TCP socket in an agent's network: its connections go to that network.

        Raises SandboxFailed or Gone.
        """
        async with self._turn:
            number, pending = next(self._numbers), self._loop.create_future()
            self._sockets[number] = pending
            try:
                packets.send(self._control, "socket", {"number": number, "of": agent.number})
            except OSError as error:
                del self._sockets[number]
                raise _no_socket(error.strerror or str(error)) from error
            try:
                return await asyncio.shield(pending)
            except asyncio.CancelledError:
                pending.add_done_callback(lambda done: done.exception() or done.result().close())
                raise
            except SandboxFailed:
                if agent.exit_future.done():
                    raise Gone("the sandbox has ended") from None
                raise

    def end(self, child: ZygoteChild) -> None:
        """Kill an agent with every process of its namespace, or a program with its group."""
        if self._control.fileno() >= 0 and not child.exit_future.done():
            # Its main process can be killed without the zygote, which then kills the rest.
            with contextlib.suppress(OSError):
                packets.send(self._control, "end", {"number": child.number})

    def change_group(self, child: ZygoteChild, group: Cgroup) -> None:
        """Record that a process has moved to another group, and remove its former group.

        If it has ended, remove both.
        """
        if child.removal is None and child.cgroup is not None:
            child.cgroup, group = group, child.cgroup
        self.forget_group(group)

    def forget_group(self, group: Cgroup) -> None:
        """Remove a group that no process will enter."""
        self._leftovers.remove(group)

    def retire(self) -> None:
        """Fork no more processes; end once the last agent has ended."""
        self.is_open = False
        self._stop_refilling()
        while self._parked_children:
            self._parked_children.popleft().discard()
        if not self._children:
            self._hang_up()

    async def close(self) -> None:
        """End the zygote and all its children, and wait until none is left. Idempotent."""
        self.retire()
        self._hang_up()
        await self._has_exited.wait()

    async def _new_child(self) -> ZygoteChild:
        group, child = await self._new_group(), None
        try:
            async with self._turn:
                child = ZygoteChild.agent(next(self._numbers), group)
                self._ask("fork", child, child.child_fds)
                await self._wait_forked(child)
            if group is not None and not group.has_entry_fds:
                pid = child.pid
                await run_shielded(spawn_thread.call(lambda: group.add(pid)))
        except BaseException:
            if child is not None:
                child.discard()  # Its group is removed when it has ended.
            elif group is not None:
                self._leftovers.remove(group)
            raise
        return child

    async def _new_group(self) -> Cgroup | None:
        if self._make_group is None:
            return None
        creation = spawn_thread.call(self._make_group)
        try:
            return await asyncio.shield(creation)
        except asyncio.CancelledError:
            creation.add_done_callback(lambda done: done.exception() or self._leftovers.remove(done.result()))
            raise

    async def _fill(self) -> None:
        try:
            child = await self._new_child()
        except SandboxFailed:
            return  # The next caller sees the error.
        finally:
            self._parking -= 1
        if self.is_open:
            self._parked_children.append(child)
        else:
            child.discard()

    def _ask(self, kind: str, child: ZygoteChild, fds: Sequence[int], more: Mapping[str, object] | None = None) -> None:
        self._children[child.number] = child
        try:
            packets.send(self._control, kind, {"number": child.number, **(more or {})}, fds)
        except OSError as error:
            self._refuse(child, error.strerror or str(error))
        finally:
            child.close_child_fds()

    async def _wait_forked(self, child: ZygoteChild) -> ZygoteChild:
        try:
            await asyncio.shield(child.fork_future)
        except BaseException:
            child.discard()
            raise
        return child

    def _refuse(self, child: ZygoteChild, reason: str) -> None:
        self._children.pop(child.number, None)
        if not child.fork_future.done():
            child.fork_future.set_exception(SandboxFailed(f"no process could be forked: {reason}"))
        self._note_end(child, ChildExit(-signal.SIGKILL, loss_reason=reason))

    def _note_end(self, child: ZygoteChild, ending: ChildExit) -> None:
        if not child.exit_future.done():
            child.exit_future.set_result(ending)
        self._remove_group(child)

    def _remove_group(self, child: ZygoteChild) -> None:
        """Remove the group after all waiters for the end have looked at it: they are called before a new task."""
        if child.cgroup is not None and child.removal is None:
            child.removal = self._leftovers.remove(child.cgroup)

    def _do_refill(self) -> None:
        self._refill = None
        self.park(self._parked_target)

    def _stop_refilling(self) -> None:
        if self._refill is not None:
            self._refill.cancel()
            self._refill = None

    def _do(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _hear(self) -> None:
        """Receive all messages that the zygote has sent so far."""
        while self._control.fileno() >= 0:
            try:
                packet = packets.receive(self._control)
            except BlockingIOError:
                return
            except OSError:
                packet = None
            if packet is None:
                self._hang_up()
            else:
                self._take_packet(packet)

    def _take_packet(self, packet: packets.Packet) -> None:
        match packet.kind:
            case "ready":
                (self._pidfd,) = packet.fds or (-1,)
                if self._ready.done():
                    return
                if packet.fds:
                    self._ready.set_result(None)
                else:
                    self._ready.set_exception(SandboxFailed("no zygote: no descriptor is left"))
            case "forked":
                child = self._children[packet.body]
                try:
                    child.on_forked(packet.fds)
                except SandboxFailed:  # Its waiter has the reason.
                    self.end(child)
            case "socket":
                pending = self._sockets.pop(packet.body)
                if packet.fds:
                    sock = socket.socket(fileno=packet.fds[0])
                    sock.setblocking(False)
                    pending.set_result(sock)
                else:  # The kernel drops descriptors that a process has no room for.
                    pending.set_exception(_no_socket("no descriptor is left"))
            case "gone":
                self._sockets.pop(packet.body).set_exception(Gone("the sandbox has ended"))
            case "refused" if packet.body[0] in self._sockets:
                number, reason = packet.body
                self._sockets.pop(number).set_exception(_no_socket(reason))
            case "refused":
                number, reason = packet.body
                self._refuse(self._children[number], reason)
            case "ended":
                number, code, cpu_s, peak_mb = packet.body
                self._note_end(self._children.pop(number), ChildExit(code, cpu_s, peak_mb))
                if not self.is_open and not self._children:
                    self._hang_up()

    def _hang_up(self) -> None:
        """Close the control socket; the zygote and everything below it end then, or have ended already."""
        if self._control.fileno() < 0:
            return
        self._loop.remove_reader(self._control)
        self._control.close()
        self.is_open = False
        self._stop_refilling()
        while self._parked_children:
            self._parked_children.popleft().close()
        while self._sockets:
            self._sockets.popitem()[1].set_exception(_no_socket("its zygote ended"))
        self._ending = self._loop.create_task(self._end())

    async def _end(self) -> None:
        """Make sure that every process has ended, and report the ends to all waiters, whatever goes wrong."""
        pidfds: list[int] = []
        try:
            reason = f"the zygote ended: {await self._end_processes(pidfds)}"
        except Exception:  # Without their ends, runs would wait forever.
            _log.exception("the processes of a zygote may not have ended")
            reason = "the zygote ended"
        try:
            for child in list(self._children.values()):
                self._refuse(child, reason)
            if not self._ready.done():
                self._ready.set_exception(SandboxFailed(reason))
                self._ready.exception()  # The caller that started it may have been cancelled.
            while self._tasks:
                await asyncio.wait(self._tasks)
            await self._leftovers.close()
        finally:
            for fd in (*pidfds, self._output_fd, self._held_end):
                os.close(fd)
            self._has_exited.set()

    async def _end_processes(self, pidfds: list[int]) -> str:
        """Wait until all processes have ended, and kill them if that takes long; return the zygote's last words.

        The descriptors of the processes, which the caller closes, are added to `pidfds`.
        """
        # A child of ours: not reaped before `wait` below, unless this program ignores or handles SIGCHLD.
        with contextlib.suppress(OSError):
            pidfds.append(os.pidfd_open(self._process.pid))
        if self._pidfd >= 0:
            pidfds.append(self._pidfd)
        for each in self._children.values():
            with contextlib.suppress(OSError):  # No descriptor is left: its end is not waited for.
                if (fd := each.watch()) >= 0:
                    pidfds.append(fd)
        if not self.config.is_apart:  # No other process does this if the zygote was killed.
            for each in self._children.values():
                each.kill_group()
        if not await spawn_thread.wait_all_ended(pidfds, within_s=_END_S):
            self._process.kill()
            await spawn_thread.wait_all_ended(pidfds, within_s=_END_S)
        await in_thread(self._process.wait, name="ramet-wait")
        return self._last_words()

    def _last_words(self) -> str:
        """Return the last printed line, or the exit code, in a form that outsiders may read.

        The log has the full output.
        """
        size = os.fstat(self._output_fd).st_size
        text = os.pread(self._output_fd, _MAX_REPORTED, max(0, size - _MAX_REPORTED)).decode(errors="replace").strip()
        if text:
            _log.warning("a zygote ended and had printed: %s", text)
        return without_paths(text) or f"exit code {self._process.returncode}"


def _no_socket(reason: str) -> SandboxFailed:
    return SandboxFailed(f"no socket could be made in a sandbox: {reason}")


def without_paths(text: str) -> str:
    """Return the last line of a process's output, with an ellipsis for each path of this machine."""
    line = text.splitlines()[-1].strip() if text else ""
    return _PATH.sub("…", line)
