"""A process that has imported everything that agents need, and only forks: single-threaded, without secrets.

The zygote ends when its control socket closes; its children are in its pid namespace and end with it. For each agent
the zygote makes a pid namespace. The first process there only reaps, and the second is the agent; both are children of
the zygote.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import gc
import os
import select
import signal
import socket
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import NoReturn

from ramet.isolation.assignment import Assignment, ZygoteConfig
from ramet.isolation.confine.gates import Confinement
from ramet.isolation.linux import calls, procfs
from ramet.isolation.zygote import packets
from ramet.isolation.zygote.child import child_main, run_program, warm_pages

_BARE = (
    "asyncio",
    "cloudpickle",
    "dataclasses",
    "datetime",
    "json",
    "msgspec",
    "ramet.core.policy.policy",
    "ramet.guest.__main__",
    "ramet.guest.client",
    "ramet.sub_agent_client",
    "ramet.tools.workers.process_worker",
)
_LLM = (
    "langchain_core.messages",
    "langchain_core.runnables",
    "langchain_core.tools",
    "pydantic",
    "ramet.agent.definition",
    "ramet.agent.loop",
    "ramet.guest.serve",
    "ramet.tools.files.files",
    "ramet.tools.files.grep",
    "ramet.tools.shell",
    "ramet.tools.workspace",
)
IMAGES = {"bare": _BARE, "llm": (*_BARE, *_LLM)}

#: the program of the first process of an agent's namespace, which does almost nothing
_FIRST = ("/bin/sleep", "2147483647")
_REHEARSALS = 10  #: code that the interpreter has specialized by then is not written again in every child
_SWEEP_S = 0.001  #: between two checks of the killed processes
_NOROOT = 1  #: of the securebits: a program does not become privileged by being executed as uid 0


def main(control: int, leash: int) -> NoReturn:
    """Run as a zygote on an inherited socket; the first message on it has the configuration.

    `leash` is a pipe whose other end the host holds as long as it lives, and never writes to.
    """
    end = socket.socket(fileno=control)
    for fd in (control, leash):
        os.set_inheritable(fd, False)
    request = packets.receive(end)
    if request is None:
        os._exit(0)
    config = ZygoteConfig(*request.body)
    if config.is_apart:
        _die_with_host(leash)
    check_mounts(config)
    load(config.image)
    gates = Confinement.of(config)
    if config.mode != "pod":  # A pod serves one agent, which does not repay this time.
        for _ in range(_REHEARSALS):
            warm_pages(gates)
        gc.collect()
    gc.freeze()
    assert len(list(Path("/proc/self/task").iterdir())) == 1, (
        "the image started a thread: nothing can be forked from it"
    )
    Zygote(end, gates).serve()


def _die_with_host(watched_end: int) -> None:
    """Die with the host, whatever the zygote does then.

    `launcher` prepared the signal of the leash. The signal is aimed at our parent, with which we die.
    """
    calls.die_with_parent(signal.SIGKILL)
    fcntl.fcntl(watched_end, fcntl.F_SETFL, fcntl.fcntl(watched_end, fcntl.F_GETFL) | os.O_ASYNC)
    if select.select([watched_end], [], [], 0)[0]:  # The host had ended before.
        os._exit(0)


def check_mounts(config: ZygoteConfig) -> None:
    """Check that bwrap has bound the files that the host inspected: bwrap may have opened them by name.

    Raises OSError.
    """
    if config.mode != "bwrap":
        return
    for path, identity in config.identities.items():
        status = os.stat(path)  # noqa: PTH116
        if [status.st_dev, status.st_ino] != list(identity):
            raise OSError(errno.ESTALE, "a mount was exchanged while it was bound", path)


def load(image: str) -> None:
    """Import the modules of an image.

    Raises ImportError: each child would have to load a module that was skipped here.
    """
    for name in IMAGES[image]:
        import_module(name)


@dataclass
class _Family:
    """An agent and the first process of its namespace, or a program in an agent's sandbox; over when all are reaped."""

    number: int
    first: int  #: 0 if there is none, or it has been reaped
    main: int  #: 0 once it has been reaped
    group: int  #: of processes, that of the main one
    agent_number: int | None = None  #: the number of the agent, if this is a program
    code: int = 0
    cpu_s: float = 0.0
    peak_mb: float = 0.0

    def kill(self) -> bool:
        """Kill all visible processes of the family; return False if none is left, not even an unreaped one."""
        for pid in (self.main, self.first):
            if pid:  # A child of ours: no other process has its pid.
                os.kill(pid, signal.SIGKILL)
        try:
            os.killpg(self.group, signal.SIGKILL)
        except ProcessLookupError:
            return bool(self.main or self.first)
        return True


class Zygote:
    """The zygote's main object: forks on request, and reports ends."""

    def __init__(self, control: socket.socket, gates: Confinement) -> None:
        self._control, self._gates = control, gates
        self._families: dict[int, _Family] = {}  #: by the pid of each process
        self._closing: list[_Family] = []  #: families whose own processes are reaped
        self._is_apart = gates.config.is_apart
        self._is_alone = gates.config.mode == "pod"  #: whether all processes below us belong to one run
        self._pids = os.open("/proc/self/ns/pid", os.O_RDONLY | os.O_CLOEXEC)
        self._network = os.open("/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        self._wake, wake = os.pipe()
        os.set_blocking(wake, False)
        os.set_blocking(self._wake, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        if self._is_apart:
            calls.prctl(calls.PR_SET_SECUREBITS, _NOROOT)
        else:  # No other process would end and reap them.
            calls.prctl(calls.PR_SET_CHILD_SUBREAPER, 1)
            signal.signal(signal.SIGTERM, lambda *_: self._end_all())

    def serve(self) -> NoReturn:
        """Serve until the host has gone, or an error occurs; then end every child."""
        try:
            self._listen()
        except ConnectionError:  # The host has gone, and had not read all our messages.
            pass
        except Exception:
            traceback.print_exc()  # The host keeps the printed output.
        finally:
            self._end_all()

    def _listen(self) -> None:
        self._report("ready", None, os.getpid())
        poll = select.poll()
        poll.register(self._control, select.POLLIN)
        poll.register(self._wake, select.POLLIN)
        while True:
            for fd, _ in poll.poll():
                if fd == self._wake:
                    with contextlib.suppress(BlockingIOError):
                        os.read(self._wake, 4096)
                else:
                    packet = packets.receive(self._control)
                    if packet is None:
                        return
                    self._handle(packet)
            self._reap()

    def _handle(self, packet: packets.Packet) -> None:
        number = packet.body["number"]
        try:
            if packet.kind == "fork":
                family = self._fork(number, packet.fds)
            elif packet.kind == "run":
                assignment = Assignment(*packet.body["given"])
                family = self._fork_program(number, packet.body["beside"], assignment, packet.body["argv"], packet.fds)
            elif packet.kind == "socket":
                try:
                    self._open_socket(number, packet.body["of"])
                except ProcessLookupError:  # It is reaped, or will be next: its network has gone with it.
                    packets.send(self._control, "gone", number)
                return
            else:
                self._end(number)
                return
        except OSError as error:
            packets.send(self._control, "refused", [number, str(error)])
        else:
            self._families |= {pid: family for pid in (family.first, family.main) if pid}
            self._report("forked", number, *filter(None, (family.main, family.first)))
        finally:
            for fd in packet.fds:
                os.close(fd)

    def _report(self, kind: str, number: int | None, *pids: int) -> None:
        """Send a message with a pidfd of each process: our pids mean nothing outside."""
        pidfds = [os.pidfd_open(pid) for pid in pids]
        packets.send(self._control, kind, number, pidfds)
        for fd in pidfds:
            os.close(fd)

    def _fork(self, number: int, fds: tuple[int, ...]) -> _Family:
        """Fork a process that will become an agent."""
        first = 0
        try:
            if self._is_apart:
                calls.unshare(calls.CLONE_NEWPID)
                first = self._new(_idle)
            main = self._new(lambda: child_main(self._gates, fds))
        except OSError:
            if first:
                os.kill(first, signal.SIGKILL)
                os.waitpid(first, 0)
            raise
        finally:
            self._leave_pid_namespace()
        return _Family(number, first, main, main)

    def _fork_program(
        self, number: int, other: int, assignment: Assignment, argv: list[str], fds: tuple[int, ...]
    ) -> _Family:
        """Start a program in the namespaces of a live agent."""
        agent = self._pidfd_of(other)
        try:
            if self._is_apart:
                calls.setns(agent, calls.CLONE_NEWPID)
            main = self._new(lambda: run_program(self._gates, agent, assignment, argv, fds))
            return _Family(number, 0, main, main, other)
        finally:
            self._leave_pid_namespace()
            os.close(agent)

    def _open_socket(self, number: int, agent: int) -> None:
        """Send a TCP socket to the host that belongs to an agent's network permanently, whatever it is connected to."""
        pidfd = self._pidfd_of(agent)
        try:
            calls.setns(pidfd, calls.CLONE_NEWNET)
            try:
                with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as sock:
                    packets.send(self._control, "socket", number, [sock.fileno()])
            finally:
                calls.setns(self._network, calls.CLONE_NEWNET)
        finally:
            os.close(pidfd)

    def _pidfd_of(self, number: int) -> int:
        """Return a descriptor of an agent's main process. Raises ProcessLookupError if that process has been reaped."""
        pids = [pid for pid, family in self._families.items() if family.number == number and family.main == pid]
        if not pids:
            raise ProcessLookupError("the agent has ended")
        return os.pidfd_open(pids[0])

    def _new(self, be: Callable[[], NoReturn]) -> int:
        pid = os.fork()
        if not pid:
            self._control.detach()
            be()
        return pid

    def _leave_pid_namespace(self) -> None:
        """Place future children in our own pid namespace again."""
        if self._is_apart:
            calls.setns(self._pids, calls.CLONE_NEWPID)

    def _end(self, number: int) -> None:
        """Kill a program and every process that did not leave its group."""
        for family in self._families.values():
            if number in (family.number, family.agent_number):
                family.kill()

    def _end_all(self) -> NoReturn:
        """Kill every child, which would live on without a pid namespace, and exit."""
        if not self._is_apart:
            for family in (*self._families.values(), *self._closing):
                family.kill()
        if self._is_alone:
            self._families.clear()
            self._sweep()
            with contextlib.suppress(ChildProcessError):  # Otherwise the first process of the pod would have to.
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass
        os._exit(0)

    def _sweep(self) -> None:
        """Kill every process below us except parked agents.

        Reaps none meanwhile: a process that forks continuously reaches its limit.
        """
        previous: set[int] = set()
        parked_processes = {pid: procfs.stat(pid) for pid, each in self._families.items() if each.agent_number is None}
        spared_processes = {pid: process for pid, process in parked_processes.items() if process is not None}
        while True:
            descendants = procfs.tree(os.getpid(), excluded_processes=spared_processes)
            del descendants[os.getpid()]
            live_pids = [pid for pid, process in descendants.items() if process.is_alive]
            # Otherwise a process may have moved on during the scan.
            if not live_pids and descendants.keys() == previous:
                return
            previous = set(descendants)
            for pid in live_pids:
                with contextlib.suppress(ProcessLookupError):  # Not reaped by us, but perhaps by its parent.
                    os.kill(pid, signal.SIGKILL)
            if live_pids:
                time.sleep(_SWEEP_S)

    def _reap(self) -> None:
        while True:
            try:
                pid, status, usage = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                pid = 0
            if not pid:
                break
            if (family := self._families.pop(pid, None)) is None:
                continue
            if pid == family.main:
                family.main = 0
                family.code = os.waitstatus_to_exitcode(status)
                family.cpu_s = usage.ru_utime + usage.ru_stime
                family.peak_mb = usage.ru_maxrss / 1024
                family.kill()
                if not self._is_apart:
                    self._end(family.number)
                if self._is_alone and family.agent_number is None:
                    self._sweep()
            else:
                family.first = 0
            if not family.main and not family.first:
                self._closing.append(family)
        for family in list(self._closing):
            if self._is_apart or not family.kill():
                self._closing.remove(family)
                packets.send(self._control, "ended", [family.number, family.code, family.cpu_s, family.peak_mb])


def _idle() -> NoReturn:
    """Run as the first process of a namespace: the kernel reaps orphans of the namespace in its name."""
    try:
        os.setsid()
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # This stays in effect in the executed program.
        null = os.open(os.devnull, os.O_RDWR)
        for fd in range(3):
            os.dup2(null, fd)
        os.execve(_FIRST[0], _FIRST, {})
    finally:
        os._exit(0)
