"""Memory that moves all the time: each process passes its whole address space to the next one, and ends."""

from __future__ import annotations

import ctypes
import itertools
import mmap
import os
import signal
import sys
import time

_CLONE_VM, _CLONE_VFORK = 0x100, 0x4000
_STACK = 1 << 18
_PAGE = 4096
_AT_ONCE = 64  #: pages that one process adds: none is there while all are filled
_FILLING_US, _FILLED_US = 100, 800  #: how long each process lives: the stack is deep enough for 9,000 of them


def hold(processes: int, megabytes: int, seconds: float, others: int = 12) -> list[int]:
    """Hold memory in several processes that hop, beside idle ones. Return the final memory of each in MiB.

    The idle processes lengthen the time between the list of living processes and the reading of their memory.
    """
    idle = []
    for _ in range(others):
        if not (pid := os.fork()):
            signal.pause()
            os._exit(0)
        idle.append(pid)
    reading, writing = os.pipe()
    for _ in range(processes):
        if not (pid := os.fork()):
            if not os.fork():
                os.close(reading)
                hop(megabytes, seconds, writing)
            os._exit(0)
        os.waitpid(pid, 0)
    os.close(writing)
    output = b""
    while more := os.read(reading, 4096):
        output += more
    for pid in idle:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    return [int(line) for line in output.split()]


def hop(megabytes: int, seconds: float, writing: int) -> None:
    """Hold memory and pass it on for a while, then write its size in MiB. Does not return.

    A parent waits in the kernel while its child has its memory (vfork), so the child can end the parent.
    """
    libc = ctypes.PyDLL(None)  # Whoever runs has the interpreter: nobody gives it back.
    stacks = [mmap.mmap(-1, _STACK, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) for _ in range(4)]
    tops = [ctypes.addressof(ctypes.c_char.from_buffer(each)) + _STACK - 64 for each in stacks]
    area = mmap.mmap(-1, megabytes << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    pages = iter(range(0, megabytes << 20, _PAGE))
    until, hops = time.monotonic() + seconds, 0

    def step(_: int | None) -> int:
        nonlocal hops
        if hops:
            libc.kill(libc.getppid(), signal.SIGKILL)
        hops += 1
        for at in itertools.islice(pages, _AT_ONCE):
            area[at] = 1
        is_filled = hops * _AT_ONCE * _PAGE > megabytes << 20
        libc.usleep(_FILLED_US if is_filled else _FILLING_US)
        if time.monotonic() < until and hops < 9000:
            libc.clone(ready, ctypes.c_void_p(tops[hops % 4]), _CLONE_VM | _CLONE_VFORK | signal.SIGCHLD, None)
            os._exit(1)  # No process could be made.
        with open("/proc/self/status") as status:  # noqa: PTH123
            kib = next(int(line.split()[1]) for line in status if line.startswith("RssAnon:"))
        os.write(writing, f"{kib // 1024}\n".encode())
        os._exit(0)

    ready = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(step)
    sys.setrecursionlimit(1_000_000)
    step(None)
