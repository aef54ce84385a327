"""Trials of gates that a process closes behind itself: the filter of system calls, and Landlock."""

from __future__ import annotations

import errno
import os
import pathlib
import socket
from collections.abc import Callable, Mapping

from ramet.isolation.linux import calls, landlock, seccomp
from ramet.isolation.linux.trials.throwaway import check_refused


def _seccomp() -> str:
    calls.set_no_new_privs()
    program = seccomp.program(inet=False, unix=False)
    socket.socket(socket.AF_UNIX).close()
    seccomp.install(program)
    check_refused(lambda: socket.socket(socket.AF_UNIX), "a socket", errno.EAFNOSUPPORT)
    check_refused(lambda: calls.unshare(calls.CLONE_NEWUSER), "a new user namespace", errno.EPERM)
    os.getppid()
    return f"{len(program) // 8} instructions"


def _landlock() -> str:
    files = [path for path in ("/etc/passwd", "/etc/hostname", "/proc/version") if os.access(path, os.R_OK)]
    if not files:
        raise OSError(errno.ENOENT, "no file that every user may read")
    calls.set_no_new_privs()
    support = landlock.restrict(read=["/usr"])
    check_refused(lambda: os.open(files[0], os.O_RDONLY), f"reading {files[0]}", errno.EACCES)
    next(pathlib.Path("/usr").iterdir())
    return f"ABI {support.abi}"


def _landlock_tcp() -> str:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = server.getsockname()
        calls.set_no_new_privs()
        support = landlock.restrict()
        if not support.tcp:
            raise OSError(errno.EOPNOTSUPP, f"Landlock of ABI {support.abi} knows no TCP")
        with socket.socket() as attempt:
            check_refused(lambda: attempt.connect(address), "a connection to the host's loopback", errno.EACCES)
    return f"ABI {support.abi}"


def _landlock_scopes() -> str:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("")
        server.listen()
        parent_pid = os.getppid()
        calls.set_no_new_privs()
        support = landlock.restrict()
        if not support.scopes:
            raise OSError(errno.EOPNOTSUPP, f"Landlock of ABI {support.abi} knows no scopes")
        with socket.socket(socket.AF_UNIX) as attempt:
            name = server.getsockname()
            check_refused(lambda: attempt.connect(name), "a connection to an abstract socket of the host", errno.EPERM)
        check_refused(lambda: os.kill(parent_pid, 0), "a signal to a process of the host", errno.EPERM)
    return f"ABI {support.abi}"


TRIALS: Mapping[str, Callable[[], str]] = {
    "seccomp": _seccomp,
    "landlock": _landlock,
    "landlock_tcp": _landlock_tcp,
    "landlock_scopes": _landlock_scopes,
}
