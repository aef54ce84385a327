"""The process from which `tests.support.warm` forks programs: `python -m tests.support.warming SOCKET MODULE…`.

It has one thread and no event loop, imports the modules, and then receives one order for a program after the other.
Each order comes with the descriptors of the program. The answer is its pid.
"""

from __future__ import annotations

import ctypes
import fcntl
import gc
import importlib
import io
import json
import os
import pathlib
import platform
import runpy
import signal
import socket
import struct
import sys
import termios
import time
from typing import Any

_NUMBER = struct.Struct("=i")
_CLONE = {"x86_64": 56, "aarch64": 220}
_CLONE_PARENT = 0x8000
_FIRST_FREE = 200  #: descriptors from here on are of nobody
_MAX_ORDER = 1 << 20  #: bytes


def main() -> None:
    """Serve orders until the other end closes; in a fork, run the program."""
    orders = socket.socket(fileno=int(sys.argv[1]))
    for name in sys.argv[2:]:
        importlib.import_module(name)
    assert len(list(pathlib.Path("/proc/self/task").iterdir())) == 1, "a fork would not have the other threads"
    gc.collect()
    gc.freeze()  # What is here stays, in every fork.
    while data := (received := socket.recv_fds(orders, _MAX_ORDER, 64))[0]:
        fds = received[1]
        if not (pid := fork_sibling()):
            orders.close()
            return run_program(json.loads(data), fds)
        for fd in fds:
            os.close(fd)
        orders.send(_NUMBER.pack(pid))


def fork_sibling() -> int:
    """Fork like `os.fork`, but the new process is a child of this one's parent, which can wait for it."""
    interpreter = ctypes.pythonapi
    interpreter.PyOS_BeforeFork()
    call = ctypes.PyDLL(None).syscall
    flags = ctypes.c_long(_CLONE_PARENT | signal.SIGCHLD)
    pid: int = call(ctypes.c_long(_CLONE[platform.machine()]), flags, *(ctypes.c_long(0),) * 4)
    (interpreter.PyOS_AfterFork_Parent if pid else interpreter.PyOS_AfterFork_Child)()
    assert pid >= 0, "no process could be forked"
    return pid


def run_program(order: dict[str, Any], fds: list[int]) -> None:
    """Run the program as `python FILE` or `python -m MODULE` does, in this process."""
    if order["new_session"]:
        os.setsid()
    os.chdir(order["cwd"])
    os.environ.clear()
    os.environ.update(order["env"])
    time.tzset()
    high = [fcntl.fcntl(fd, fcntl.F_DUPFD, _FIRST_FREE) for fd in fds]
    for fd in fds:
        os.close(fd)
    for fd, number in zip(high, order["numbers"], strict=True):
        os.dup2(fd, number)
        os.close(fd)
    if order["new_session"] and os.isatty(0):
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    # Python's own are of what was there when it started.
    sys.stdin = open(0, closefd=False)
    sys.stdout = _output(1, is_by_line=os.isatty(1), errors="strict")
    sys.stderr = _output(2, is_by_line=True, errors="backslashreplace")
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.path[1:1] = [each for each in order["env"].get("PYTHONPATH", "").split(os.pathsep) if each]
    importlib.invalidate_caches()
    if order["words"][0] == "-m":
        sys.argv = order["words"][1:]
        sys.path[0] = order["cwd"]
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
    else:
        sys.argv = order["words"]
        sys.path[0] = str(pathlib.Path(sys.argv[0]).absolute().parent)
        runpy.run_path(sys.argv[0], run_name="__main__")


def _output(fd: int, *, is_by_line: bool, errors: str) -> io.TextIOWrapper:
    """Return a standard stream as Python makes it."""
    is_unbuffered = bool(os.environ.get("PYTHONUNBUFFERED"))
    binary: Any = open(fd, "wb", buffering=0 if is_unbuffered else -1, closefd=False)
    return io.TextIOWrapper(binary, errors=errors, newline="\n", line_buffering=is_by_line, write_through=is_unbuffered)


if __name__ == "__main__":
    main()
