"""A program that tries all that a process can do to another of the same user, by its pid, and prints each outcome.

No success changes anything. Run with a pid and the numbers of calls, as the text of this file: it needs nothing that a
sandbox may lack.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import pathlib
import resource
import signal
import sys
from collections.abc import Callable, Mapping

_LIBC = ctypes.CDLL(None, use_errno=True)


def attempts(pid: int, number: Mapping[str, int]) -> dict[str, Callable[[], object]]:
    """Return the attempts by name."""
    other = pathlib.Path("/proc", str(pid))
    here = ctypes.create_string_buffer(64)
    piece = (ctypes.c_uint64 * 2)(ctypes.addressof(here), 8)
    limit = resource.RLIM_INFINITY

    def call(name: str, *args: object) -> None:
        words = [ctypes.c_long(each) if isinstance(each, int) else each for each in args]
        if _LIBC.syscall(ctypes.c_long(number[name]), *words) < 0:
            raise OSError(ctypes.get_errno(), name)

    return {
        "environ": (other / "environ").read_bytes,
        "maps": (other / "maps").read_bytes,
        "mem": lambda: (other / "mem").open("rb", buffering=0).close(),
        "cmdline": (other / "cmdline").read_bytes,
        "fd": lambda: list((other / "fd").iterdir()),
        "fd/0": (other / "fd" / "0").readlink,
        "cwd": (other / "cwd").readlink,
        "kill": lambda: os.kill(pid, signal.SIGCONT),
        "pidfd_send_signal": lambda: signal.pidfd_send_signal(os.pidfd_open(pid), signal.SIGCONT),
        "rt_sigqueueinfo": lambda: call("rt_sigqueueinfo", pid, signal.SIGCONT, _siginfo()),
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


def _siginfo() -> ctypes.Array[ctypes.c_char]:
    """Return a siginfo_t as sigqueue(3) makes it."""
    found = ctypes.create_string_buffer(128)
    ctypes.c_int.from_buffer(found, 0).value = signal.SIGCONT
    ctypes.c_int.from_buffer(found, 8).value = -1  # SI_QUEUE
    return found


def main(pid: int, number: Mapping[str, int]) -> None:
    """Print for each attempt "" if it succeeded, or the name of its error."""
    error_names = {}
    for name, attempt in attempts(pid, number).items():
        try:
            attempt()
            error_names[name] = ""
        except OSError as error:
            error_names[name] = errno.errorcode[error.errno or 0]
    print(json.dumps(error_names))  # noqa: T201


if __name__ == "__main__":
    main(int(sys.argv[1]), json.loads(sys.argv[2]))
