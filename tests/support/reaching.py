"""What a process can try on another of the same user, by its pid: a program that says what became of each attempt.

Nothing that succeeds here changes anything. Run with a pid, as a file or as the text of it.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import resource
import signal
import sys
from collections.abc import Callable

from ramet.isolation.linux import calls, numbers


def attempts(pid: int) -> dict[str, Callable[[], object]]:
    """By name."""
    number = numbers.of(os.uname().machine).number
    queue = 129 if os.uname().machine == "x86_64" else 138
    here = ctypes.create_string_buffer(64)
    piece = (ctypes.c_uint64 * 2)(ctypes.addressof(here), 8)
    limit = resource.RLIM_INFINITY

    def call(name: str, *args: int | ctypes.Array[ctypes.c_char] | ctypes.Array[ctypes.c_uint64] | None) -> int:
        return calls.syscall(name, number[name], *args)

    def read(name: str) -> None:
        with open(f"/proc/{pid}/{name}", "rb", buffering=0) as file:
            file.read(0 if name == "mem" else 10)

    return {
        **{f"/proc/…/{name}": lambda name=name: read(name) for name in ("environ", "maps", "mem", "cmdline")},  # type: ignore[misc]
        "/proc/…/fd": lambda: os.listdir(f"/proc/{pid}/fd"),
        "/proc/…/fd/0": lambda: os.readlink(f"/proc/{pid}/fd/0"),
        "/proc/…/cwd": lambda: os.readlink(f"/proc/{pid}/cwd"),
        "kill": lambda: os.kill(pid, signal.SIGCONT),
        "pidfd_send_signal": lambda: signal.pidfd_send_signal(os.pidfd_open(pid), signal.SIGCONT),
        "rt_sigqueueinfo": lambda: calls.syscall("rt_sigqueueinfo", queue, pid, signal.SIGCONT, _queued()),
        "prlimit, to look": lambda: resource.prlimit(pid, resource.RLIMIT_CORE),
        "prlimit, to set": lambda: resource.prlimit(pid, resource.RLIMIT_RSS, (limit, limit)),
        "setpriority": lambda: os.setpriority(os.PRIO_PROCESS, pid, 0),
        "setpriority of a user": lambda: os.setpriority(os.PRIO_USER, 0, 0),
        "ioprio_set": lambda: call("ioprio_set", 1, pid, 0),
        "ioprio_set of a user": lambda: call("ioprio_set", 3, 0, 0),
        "sched_setaffinity": lambda: os.sched_setaffinity(pid, os.sched_getaffinity(pid)),
        "sched_setscheduler": lambda: os.sched_setscheduler(pid, os.SCHED_OTHER, os.sched_param(0)),
        "sched_setparam": lambda: os.sched_setparam(pid, os.sched_param(0)),
        "process_vm_readv": lambda: call("process_vm_readv", pid, piece, 0, piece, 0, 0),
        "process_vm_writev": lambda: call("process_vm_writev", pid, piece, 0, piece, 0, 0),
        "pidfd_getfd": lambda: call("pidfd_getfd", os.pidfd_open(pid), 0, 0),
        "kcmp": lambda: call("kcmp", os.getpid(), pid, 1, 0, 0),
        "move_pages": lambda: call("move_pages", pid, 0, None, None, None, 0),
        "ptrace": lambda: call("ptrace", 0x4206, pid, 0, 0),
    }


def _queued() -> ctypes.Array[ctypes.c_char]:
    """A siginfo_t as sigqueue(3) makes it."""
    found = ctypes.create_string_buffer(128)
    ctypes.c_int.from_buffer(found, 0).value = signal.SIGCONT
    ctypes.c_int.from_buffer(found, 8).value = -1  # SI_QUEUE
    return found


def main(pid: int) -> None:
    """Each in a process of its own: one that is traced by another ends with it."""
    said = {}
    for name, attempt in attempts(pid).items():
        try:
            attempt()
            said[name] = ""
        except OSError as error:
            said[name] = errno.errorcode[error.errno or 0]
    print(json.dumps(said))  # noqa: T201


if __name__ == "__main__":
    main(int(sys.argv[1]))
