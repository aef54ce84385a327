"""An agent's process: forked and parked before its run is known, then assigned, confined, and the agent.

No foreign code runs before the last gate is closed. The assignment arrives on the channel, whose first bytes are ours:
a length and an assignment in, one byte out (STARTED, or FAILED and the reason). All later bytes belong to the agent.
"""

from __future__ import annotations

import array
import contextlib
import io
import json
import os
import signal
import socket
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import NoReturn

from ramet.core.policy.rights import PROXY_PORT, STDIO
from ramet.isolation.assignment import Assignment
from ramet.isolation.confine.gates import Confinement
from ramet.isolation.confine.sandbox_root import MountSetup
from ramet.isolation.linux import calls, caps, rlimits, seccomp

STARTED, FAILED = b"\1", b"\0"
NAMESPACES = calls.CLONE_NEWNS | calls.CLONE_NEWNET | calls.CLONE_NEWIPC | calls.CLONE_NEWUTS | calls.CLONE_NEWCGROUP
PROXY_URL = f"http://127.0.0.1:{PROXY_PORT}"
OUT_OF_MEMORY = 137  #: exit code of an agent that did not handle a MemoryError

_SETUP_FAILED = 70
_SAMPLE = b'["", {"A": "a"}, "", "", "", {}, {}, null, null, 1, 1, 1, 1, 1, false]'  #: a sample of an assignment
_NOT_FOUND = 127
#: of a group that the process enters, and of a program that it starts
_FDS_SPACE = socket.CMSG_SPACE(16 * array.array("i").itemsize)
_PATH = "/usr/local/bin:/usr/bin:/bin"
_PROXIED = ("http_proxy", "https_proxy", "all_proxy")


def child_main(gates: Confinement, fds: Sequence[int]) -> NoReturn:
    """Run as a child, from the fork to the end.

    The descriptors are its channel, stdout, stderr, and descriptors to enter its group.
    """
    code = _SETUP_FAILED
    try:
        fd, *output = setup_fds(fds[:3], fds[3:])
        channel = socket.socket(fileno=fd)
        try:
            assignment, relay = _become(gates, channel, output)
        except Exception as error:
            channel.sendall(FAILED + f"{type(error).__name__}: {error}"[:2000].encode())
            raise
        if assignment is not None:
            code = _work(gates, assignment, channel, relay)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def run_program(
    gates: Confinement, agent: int, assignment: Assignment, argv: list[str], fds: Sequence[int]
) -> NoReturn:
    """Run as a program in an agent's sandbox, once the start byte arrives.

    `agent` is the agent's pidfd; `fds` are stdout, stderr and the pipe of the start byte.
    """
    code = _NOT_FOUND
    try:
        inner, *output, start_signal = setup_fds((agent, *fds))
        if gates.config.is_apart:
            calls.setns(inner, NAMESPACES)
            calls.setns(inner, calls.CLONE_NEWUSER)
        os.close(inner)
        os.chdir(assignment.cwd)
        if os.read(start_signal, 1):
            has_network = assignment.has_network
            gates.apply_inside(assignment, gates.rules(tcp=has_network and gates.config.is_apart))
            if has_network:
                gates.forbid_unix_sockets()
            _turn_output(output)
            for number in (signal.SIGPIPE, signal.SIGXFSZ):
                signal.signal(number, signal.SIG_DFL)
            _execute(argv, environment(assignment))
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def setup_fds(fds: Sequence[int], cgroup_fds: Sequence[int] = ()) -> list[int]:
    """Keep the given descriptors, at the lowest numbers from 3, and close all others of the zygote."""
    for cgroup_fd in cgroup_fds:
        os.write(cgroup_fd, b"0")
    os.setsid()
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGCHLD, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    null = os.open(os.devnull, os.O_RDWR)
    high = [os.dup2(fd, 100 + index, inheritable=False) for index, fd in enumerate(fds)]
    for index in range(3):
        os.dup2(null, index)
    low = [os.dup2(fd, 3 + index, inheritable=False) for index, fd in enumerate(high)]
    calls.close_range(3 + len(low))
    return low


def environment(assignment: Assignment) -> Mapping[str, str]:
    """Return the complete environment of an agent, or of a command in its sandbox."""
    env = {"HOME": assignment.workspace, "TMPDIR": assignment.tmp, "PATH": _PATH, "LANG": "C.UTF-8", "USER": "agent"}
    if assignment.proxy is not None:
        env |= {name: PROXY_URL for each in _PROXIED for name in (each, each.upper())}
    return env | assignment.env


def warm_pages(gates: Confinement) -> None:
    """Touch the pages that are used later while a caller waits: the first write to a shared page faults."""
    os.environ.update(environment(Assignment(*json.loads(_SAMPLE))))
    os.environ.clear()
    rlimits.apply(core=0)
    caps.read_capabilities()
    for capability in range(40):
        calls.prctl(calls.PR_CAPBSET_READ, capability)
    if (rules := gates.rules()) is not None:
        rules.close()
    with contextlib.suppress(OSError):
        seccomp.install(b"")


def _become(
    gates: Confinement, channel: socket.socket, output: Sequence[int]
) -> tuple[Assignment | None, Callable[[], None]]:
    """Park, receive the assignment, and close every gate; return None if the host has gone.

    Also returns the function that starts the inner end of the proxy.
    """
    mount_setup = None
    if gates.config.is_apart:
        calls.unshare(NAMESPACES)
        mount_setup = MountSetup(gates.config)
    _renew_shared_state()
    warm_pages(gates)
    rules = gates.rules()
    assignment, stdio = _receive_assignment(channel, is_apart=mount_setup is not None)
    if assignment is None:
        return None, lambda: None
    _turn_output(output)
    os.environ.clear()
    os.environ.update(environment(assignment))
    if stdio:
        os.environ[STDIO] = ",".join(map(str, stdio))
    if mount_setup is not None:
        mount_setup.apply(assignment)
    os.chdir(assignment.cwd)
    relay = _relay_in_pod(assignment.proxy) if assignment.proxy is not None and mount_setup is None else None
    gates.apply(assignment, rules, stdio)
    channel.sendall(STARTED)
    return assignment, relay or _relay


def _receive_assignment(channel: socket.socket, *, is_apart: bool) -> tuple[Assignment | None, Sequence[int]]:
    """Wait for the assignment: four bytes of length, then JSON. Also returns the descriptors of its program.

    Enters the control group through the other descriptors that come with it, and closes them.
    """
    data, need, received_fds = bytearray(), 4, array.array("i")
    while len(data) < need:
        chunk, ancillary, _, _ = channel.recvmsg(need - len(data), _FDS_SPACE, socket.MSG_CMSG_CLOEXEC)
        if not chunk:
            return None, ()
        data += chunk
        for _, _, fds in ancillary:
            received_fds.frombytes(fds)
        if need == 4 == len(data):
            need += int.from_bytes(data, "big")
    assignment = Assignment(*json.loads(data[4:]))
    cgroup_fds = received_fds[: len(received_fds) - assignment.stdio_count]
    for cgroup_fd in cgroup_fds:
        os.write(cgroup_fd, b"0")
        os.close(cgroup_fd)
    if cgroup_fds and is_apart:
        calls.unshare(calls.CLONE_NEWCGROUP)  # Inside, the process sees its own group as the root group.
    return assignment, received_fds[len(cgroup_fds) :]


def _renew_shared_state() -> None:
    """Create streams and random state that no other child of the zygote shares; `random` reseeds itself."""
    sys.stdout, sys.stderr = _text(1), _text(2)
    if (numpy := sys.modules.get("numpy")) is not None:
        numpy.random.seed()


def _turn_output(output: Sequence[int]) -> None:
    for number, fd in enumerate(output, 1):
        os.dup2(fd, number)
        os.close(fd)


def _work(gates: Confinement, assignment: Assignment, channel: socket.socket, relay: Callable[[], None]) -> int:
    """Call the entry point; return its exit code."""
    try:
        if assignment.proxy is not None:
            relay()
        if assignment.has_network:
            gates.forbid_unix_sockets()
        return _code(_entry(assignment.entry)(channel))
    except MemoryError:
        return OUT_OF_MEMORY
    except SystemExit as system_exit:
        return _code(system_exit.code)
    except BaseException:
        traceback.print_exc()
        return 1
    finally:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):
                stream.flush()


def _relay() -> None:
    """Start the inner end of the proxy, which listens inside, detached from this process."""
    # By name, like the entry point: this layer does not know the guest.
    relay = import_module("ramet.guest.proxy_forwarder")
    listener = relay.listen()

    def serve() -> None:
        os.setsid()
        relay.serve(listener, parent=1)

    _fork_away(serve, listener)


def _relay_in_pod(path: str) -> Callable[[], None]:
    """Listen before that is forbidden, and return the function that starts the inner end of the proxy.

    That end runs in the process group of this process.
    """
    relay = import_module("ramet.guest.proxy_forwarder")
    listener, agent = relay.listen(), os.getpid()
    return lambda: _fork_away(lambda: relay.serve(listener, path, parent=agent), listener)


def _fork_away(serve: Callable[[], None], listener: socket.socket) -> None:
    pid = os.fork()
    if pid:
        listener.close()
        os.waitpid(pid, 0)
        return
    with contextlib.suppress(BaseException):
        if not os.fork():
            serve()
    os._exit(0)


def _execute(argv: list[str], env: Mapping[str, str]) -> None:
    try:
        os.execvpe(argv[0], argv, env)
    except OSError as error:
        os.write(2, f"{argv[0]}: {error.strerror}\n".encode())


def _entry(reference: str) -> Callable[..., object]:
    module, _, name = reference.partition(":")
    entry: object = import_module(module)
    for part in name.split("."):
        entry = getattr(entry, part)
    assert callable(entry)
    return entry


def _code(value: object) -> int:
    """Return the exit code for a value, as sys.exit does."""
    if value is None:
        return 0
    if isinstance(value, int):
        return value & 0xFF
    print(value, file=sys.stderr)  # noqa: T201 - what the interpreter would do
    return 1


def _text(fd: int) -> io.TextIOWrapper:
    return open(fd, "w", buffering=1, encoding="utf-8", errors="backslashreplace", closefd=False)
