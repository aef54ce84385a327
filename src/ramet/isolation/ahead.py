"""What a pod's program forks of itself before it has threads: trials of the gates, and a zygote that waits to be told.

Both are cheaper than an interpreter of their own, and get on while the program makes its line.
"""

from __future__ import annotations

import functools
import json
import os
import signal
import socket
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple, NoReturn

from ramet.isolation import packets, zygote
from ramet.isolation.linux import calls
from ramet.isolation.linux.trials import gates
from ramet.isolation.linux.trials.apart import tried

_SOON = "bare"  #: what a zygote has imported before it is told of what kind it is to be

Found = Mapping[str, tuple[bool, str]]


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


class Waiting(NamedTuple):
    """A zygote that waits for the packet with its room."""

    process: Child
    control: socket.socket
    printed: int  #: a memfd with what it printed
    leash: int


_zygotes: list[Waiting] = []
_trials: list[tuple[Child, int]] = []


def begin() -> None:
    """Fork both. Once in the life of a process, which has a single thread, no secret yet, and is nobody's root."""
    out, into = os.pipe()
    _trials.append((Child(_forked(lambda: _try(into))), out))
    os.close(into)
    control, theirs = packets.pair()
    printed = os.memfd_create("printed", os.MFD_CLOEXEC)
    leash, hand = os.pipe()
    with theirs:
        child = Child(_forked(lambda: _wait(theirs.fileno(), leash, printed)))
    os.close(leash)
    _zygotes.append(Waiting(child, control, printed, hand))


def take() -> Waiting | None:
    """The zygote, for whoever then owns it; None if there is none, or no more."""
    return _zygotes.pop() if _zygotes else None


@functools.cache
def found() -> Found:
    """What the trials have found; nothing if none were begun. Blocks until they are over."""
    if not _trials:
        return {}
    child, out = _trials.pop()
    with os.fdopen(out, "rb") as pipe:
        said = pipe.read()
    child.wait()
    return {name: (works, detail) for name, (works, detail) in json.loads(said or b"{}").items()}


def _forked(be: Callable[[], object]) -> int:
    parent = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    try:
        calls.die_with_parent(signal.SIGTERM)
        if os.getppid() == parent:
            be()
    finally:
        os._exit(1)


def _try(into: int) -> NoReturn:
    said = json.dumps({name: tried(trial, None) for name, trial in gates.TRIALS.items()})
    with os.fdopen(into, "wb") as pipe:
        pipe.write(said.encode())
    os._exit(0)


def _wait(control: int, leash: int, printed: int) -> NoReturn:
    """Be as a zygote is that was executed: without environment, descriptors, and what the program has for itself."""
    os.setsid()
    os.chdir("/")
    os.environ.clear()
    sys.excepthook, sys.argv[1:] = sys.__excepthook__, []
    _order(sys.path)
    null = os.open(os.devnull, os.O_RDWR)
    high = [os.dup2(fd, 100 + at) for at, fd in enumerate((null, null, printed, control, leash))]
    for at, fd in enumerate(high):
        os.dup2(fd, at)
    calls.close_range(len(high))
    zygote.load(_SOON)
    zygote.main(3, 4)


def _order(path: list[str]) -> None:
    """Have packages found behind the library, as `ramet.isolation.runtime` has it."""
    home = str(Path(__file__).parents[2])
    if Path(home).name.endswith("-packages") and home in path:
        path.remove(home)
        path.append(home)
