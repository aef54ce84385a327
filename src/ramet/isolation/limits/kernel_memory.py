"""Memory that the kernel holds for a tree of processes and that no resident size shows.

These are socket buffers, page tables, and shared areas whose pages were dropped or unmapped.

Only a control group counts this memory exactly. The content of a socket is not visible from outside, so each socket is
charged with the memory of a full one. A socket that is sent over another one and closed has no descriptor any more. In
a separate network namespace it is counted all the same; elsewhere the queue that holds it shows how many there are.

A shared area keeps its written content until no process maps any page of it. Neither its content nor its size is
visible from outside. So the filter of system calls keeps each area small, and each is charged with that maximum size.
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
_FULL = 2  #: times the size of its buffer: the memory of a socket that is filled with large packets until it blocks
_MIB = 1024 * 1024


def held_mb(tree: Mapping[int, Stat], *, in_own_network: bool) -> float:
    """Return the memory that sockets and page tables of these processes may take, in MiB.

    `in_own_network` says that they share a network namespace, and that no other process is in it.
    """
    sockets = _sockets_of_network(tree.values()) if in_own_network else None
    if sockets is None:  # No process shows the namespace, but the sockets exist.
        sockets = _sockets(tree.values())
    return sockets * socket_mb() + sum(map(procfs.page_tables_mb, tree.values()))


def shared_mb(processes: Iterable[Stat]) -> float:
    """Return the memory that the shared areas of these processes may hold, in MiB; each area counts once."""
    device = _shared_device()
    reaches: dict[int, int] = {}
    if device is not None:
        for process in processes:
            for area in procfs.areas(process, device=device):
                reaches[area.inode] = max(area.reach, reaches.get(area.inode, LARGEST_SHARED_AREA))
    return sum(reaches.values()) / _MIB


@functools.cache
def _shared_device() -> str | None:
    """Return the device of shared areas, which is the same for every process; None if unknown."""
    own_stat = procfs.stat(os.getpid())
    with mmap.mmap(-1, mmap.PAGESIZE) as area:
        area[0] = 1
        names = () if own_stat is None else procfs.areas(own_stat)
        return next((each.device for each in names if each.is_removed and each.name == "/dev/zero"), None)


@functools.cache
def socket_mb() -> float:
    """Return the memory of one full socket whose buffer has the default size, in MiB."""
    size = _BUFFER_BYTES
    with contextlib.suppress(OSError, ValueError):  # The file is hidden in some containers.
        size = int(_BUFFER.read_text())
    return size * _FULL / _MIB


def _sockets_of_network(processes: Iterable[Stat]) -> int | None:
    """Return the number of sockets of the network that all processes share; None if no process shows it."""
    counts = map(procfs.sockets_of_network, processes)
    return next((count for count in counts if count is not None), None)


def _sockets(processes: Iterable[Stat]) -> int:
    """Count the open sockets of the processes, and the descriptors that wait in the queues of these."""
    links: set[str] = set()
    additional = 0
    for process in processes:
        # Each thread may have its own.
        for thread in (str(process.pid),) if process.threads == 1 else procfs.threads(process.pid):
            try:
                names = os.listdir(f"{procfs.PROC}/{thread}/fd")  # noqa: PTH208 - only the names
            except PermissionError:
                if procfs.is_ending(thread):  # It hides nothing: the other threads show what is open.
                    continue
                # A process that hides its descriptors is charged with the maximum that it may have.
                additional += procfs.descriptor_slots(process)
                break
            except OSError:
                continue
            for name in names:
                link = _link(thread, name)
                if link.startswith("socket:") and link not in links:
                    links.add(link)
                    additional += procfs.descriptors_in_queue(int(thread), name)
    return len(links) + additional


def _link(pid: str, name: str) -> str:
    try:
        return os.readlink(f"{procfs.PROC}/{pid}/fd/{name}")  # noqa: PTH115 - no path, and a hot one
    except OSError:
        return ""
