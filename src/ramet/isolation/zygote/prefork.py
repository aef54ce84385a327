"""A zygote that a program forks from itself, and that waits for its configuration.

It is cheaper than an interpreter of its own, and imports the modules of agents while the program connects to the
kernel.
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

_ENVIRONMENT = slice(47, 49)  #: the position of its begin and end among the fields of a process that follow its name


class Child:
    """A child process of ours, with the part of the interface of `subprocess.Popen` that is needed."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None

    def kill(self) -> None:
        """Send SIGKILL, unless the process has been waited for."""
        if self.returncode is None:
            os.kill(self.pid, signal.SIGKILL)

    def wait(self) -> int:
        """Block until the process has ended; return its exit code."""
        if self.returncode is None:
            self.returncode = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return self.returncode


class PreforkedZygote(NamedTuple):
    """A zygote that waits for the packet with its configuration."""

    process: Child
    control: socket.socket
    output: int  #: a memfd with its printed output
    held_end: int

    def end(self) -> None:
        """Kill a zygote that is not wanted. Blocks for a moment."""
        self.control.close()
        self.process.kill()
        self.process.wait()
        for fd in (self.output, self.held_end):
            os.close(fd)


_waiting: list[PreforkedZygote] = []


def start_zygote(image: Image = "bare") -> None:
    """Fork a zygote, and have it import the modules of `image`, whichever kind it is assigned later.

    Call this once per process, while the process has a single thread and no secret. The process must not be root.
    """
    control, child_end = packets.pair()
    output = os.memfd_create("printed", os.MFD_CLOEXEC)
    watched_end, held_end = os.pipe()
    parent, pid = os.getpid(), os.fork()
    if not pid:
        try:
            calls.die_with_parent(signal.SIGTERM)
            if os.getppid() == parent:
                _become_zygote(image, child_end.fileno(), watched_end, output)
        finally:
            os._exit(1)
    child_end.close()
    os.close(watched_end)
    _waiting.append(PreforkedZygote(Child(pid), control, output, held_end))


def claim_zygote() -> PreforkedZygote | None:
    """Return the waiting zygote, which the caller then owns; None if there is none left."""
    return _waiting.pop() if _waiting else None


def _become_zygote(image: Image, control: int, watched_end: int, output: int) -> NoReturn:
    """Run like an executed zygote: without an environment, and without the program's descriptors and settings."""
    os.setsid()
    os.chdir("/")
    _forget_environment()
    sys.excepthook, sys.argv[1:] = sys.__excepthook__, []
    _search_install_folder_last(sys.path)
    null = os.open(os.devnull, os.O_RDWR)
    high = [os.dup2(fd, 100 + number) for number, fd in enumerate((null, null, output, control, watched_end))]
    for number, fd in enumerate(high):
        os.dup2(fd, number)
    calls.close_range(len(high))
    main.load(image)
    gc.enable()
    main.main(3, 4)


def _forget_environment() -> None:
    """Clear the environment, also at its original address.

    Every process can read its own original environment, and a forked child has ours.
    """
    os.environ.clear()
    with open("/proc/self/stat") as file:  # noqa: PTH123
        start, end = map(int, file.read().rpartition(")")[2].split()[_ENVIRONMENT])
    if start:
        ctypes.memset(start, 0, end - start)


def _search_install_folder_last(path: list[str]) -> None:
    """Order package folders behind the library, as `ramet.isolation.python_runtime` does."""
    install_folder = str(Path(__file__).parents[3])
    if install_folder.endswith("-packages") and install_folder in path:
        path.remove(install_folder)
        path.append(install_folder)
