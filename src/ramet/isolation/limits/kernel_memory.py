"""Memory that the kernel holds for a tree of processes and that no resident size shows.

These are socket buffers, page tables, and shared areas whose pages were dropped or unmapped.

Only a control group counts it exactly. What a socket holds cannot be seen from outside, so each is charged with what a
full one takes. A socket that is sent over another one and closed has no descriptor any more. In a network namespace of
its own it is counted all the same; elsewhere the queue that it waits in says how many there are.

A shared area keeps what was written to it until nobody maps any page of it. What it holds cannot be seen from outside,
nor how large it was made. So the filter of system calls keeps each small, and each is charged with that size.
"""

from __future__ import annotations

import contextlib
import functools
import mmap
import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from ramet.isolation.linux import procfs
from ramet.isolation.linux.procfs import Stat
from ramet.isolation.linux.seccomp import LARGEST_SHARED_AREA

_BUFFER = Path("/proc/sys/net/core/wmem_default")
_BUFFER_BYTES = 212_992  #: Linux's own default
_FULL = 2  #: times the size of its buffer: what a socket takes that is filled with large packets until it blocks
_MIB = 1024 * 1024


def held_mb(tree: Mapping[int, Stat], *, in_own_network: bool) -> float:
    """Return what sockets and page tables of these processes may take, in MiB.

    `in_own_network` says that they have a network namespace in common, and that nobody else is in it.
    """
    sockets = _sockets_of_network(tree.values()) if in_own_network else None
    if sockets is None:  # What no process shows is not nothing.
        sockets = _sockets(tree.values())
    return sockets * socket_mb() + sum(map(procfs.page_tables_mb, tree.values()))


def shared_mb(processes: Iterable[Stat]) -> float:
    """Return what the shared areas of these processes may hold, in MiB: each once, whoever maps it."""
    device = _shared_device()
    found: dict[int, int] = {}
    if device is not None:
        for one in processes:
            for area in procfs.areas(one, device=device):
                found[area.inode] = max(area.reach, found.get(area.inode, LARGEST_SHARED_AREA))
    return sum(found.values()) / _MIB


@functools.cache
def _shared_device() -> str | None:
    """Return the device that shared areas lie on, of every process alike, under whatever name; None if unknown."""
    me = procfs.stat(os.getpid())
    with mmap.mmap(-1, mmap.PAGESIZE) as area:
        area[0] = 1
        names = () if me is None else procfs.areas(me)
        return next((each.device for each in names if each.is_removed and each.name == "/dev/zero"), None)


@functools.cache
def socket_mb() -> float:
    """Return what one full socket takes, in MiB, whose buffer has the default size."""
    size = _BUFFER_BYTES
    with contextlib.suppress(OSError, ValueError):  # Not shown in some containers.
        size = int(_BUFFER.read_text())
    return size * _FULL / _MIB


def _sockets_of_network(processes: Iterable[Stat]) -> int | None:
    """Ask one process after the other, since all are in the same network; None if none of them shows it."""
    found = map(procfs.sockets_of_network, processes)
    return next((count for count in found if count is not None), None)


def _sockets(processes: Iterable[Stat]) -> int:
    """Count sockets that processes have open, and descriptors that wait in the queues of these."""
    seen: set[str] = set()
    more = 0
    for one in processes:
        for thread in (str(one.pid),) if one.threads == 1 else procfs.threads(one.pid):  # Each may have its own.
            try:
                names = os.listdir(f"{procfs.PROC}/{thread}/fd")  # noqa: PTH208 - only the names
            except PermissionError:  # A process that hides its descriptors is charged with all that it may have.
                more += procfs.descriptor_slots(one)
                break
            except OSError:
                continue
            for name in names:
                link = _link(thread, name)
                if link.startswith("socket:") and link not in seen:
                    seen.add(link)
                    more += procfs.descriptors_in_queue(int(thread), name)
    return len(seen) + more


def _link(pid: str, name: str) -> str:
    try:
        return os.readlink(f"{procfs.PROC}/{pid}/fd/{name}")  # noqa: PTH115 - no path, and a hot one
    except OSError:
        return ""
