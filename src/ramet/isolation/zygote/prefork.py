"""A zygote that a program forks of itself, and that waits to be told of what kind it is to be.

It is cheaper than an interpreter of its own, and imports what agents need while the program makes its line.
"""

from __future__ import annotations

import ctypes
import gc
import os
import signal
import socket
import sys
from pathlib import Path
from typing import NamedTuple, NoReturn

from ramet.isolation.contract import Image
from ramet.isolation.linux import calls
from ramet.isolation.zygote import main, packets

_ENVIRONMENT = slice(47, 49)  #: where it begins and ends, of the fields of a process that come behind its name


class Child:
    """A process of ours, as far as `subprocess.Popen` is needed for one."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None

    def kill(self) -> None:
        """SIGKILL, unless it was waited for."""
        if self.returncode is None:
            os.kill(self.pid, signal.SIGKILL)

    def wait(self) -> int:
        """Blocks until it has ended; how."""
        if self.returncode is None:
            self.returncode = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return self.returncode


class PreforkedZygote(NamedTuple):
    """A zygote that waits for the packet with its room."""

    process: Child
    control: socket.socket
    printed: int  #: a memfd with what it printed
    leash: int

    def end(self) -> None:
        """It is not wanted. Blocks for a moment."""
        self.control.close()
        self.process.kill()
        self.process.wait()
        for fd in (self.printed, self.leash):
            os.close(fd)


_waiting: list[PreforkedZygote] = []


def start_zygote(image: Image = "bare") -> None:
    """Fork it, and have it import what this one is made of, whichever it is told to be.

    Once in the life of a process, which has a single thread, no secret yet, and is not root.
    """
    control, theirs = packets.pair()
    printed = os.memfd_create("printed", os.MFD_CLOEXEC)
    leash, hand = os.pipe()
    parent, pid = os.getpid(), os.fork()
    if not pid:
        try:
            calls.die_with_parent(signal.SIGTERM)
            if os.getppid() == parent:
                _be(image, theirs.fileno(), leash, printed)
        finally:
            os._exit(1)
    theirs.close()
    os.close(leash)
    _waiting.append(PreforkedZygote(Child(pid), control, printed, hand))


def claim_zygote() -> PreforkedZygote | None:
    """It, for whoever then owns it; None if there is none, or no more."""
    return _waiting.pop() if _waiting else None


def _be(image: Image, control: int, leash: int, printed: int) -> NoReturn:
    """Be as a zygote that was executed: without an environment, descriptors, and what the program has for itself."""
    os.setsid()
    os.chdir("/")
    _forget_environment()
    sys.excepthook, sys.argv[1:] = sys.__excepthook__, []
    _order(sys.path)
    null = os.open(os.devnull, os.O_RDWR)
    high = [os.dup2(fd, 100 + at) for at, fd in enumerate((null, null, printed, control, leash))]
    for at, fd in enumerate(high):
        os.dup2(fd, at)
    calls.close_range(len(high))
    main.load(image)
    gc.enable()
    main.main(3, 4)


def _forget_environment() -> None:
    """Also where it was at first: every process can read that of its own, and has ours from the fork."""
    os.environ.clear()
    with open("/proc/self/stat") as file:  # noqa: PTH123
        start, end = map(int, file.read().rpartition(")")[2].split()[_ENVIRONMENT])
    if start:
        ctypes.memset(start, 0, end - start)


def _order(path: list[str]) -> None:
    """Have packages found behind the library, as `ramet.isolation.python_runtime` has it."""
    home = str(Path(__file__).parents[3])
    if home.endswith("-packages") and home in path:
        path.remove(home)
        path.append(home)
