"""The memory of all processes of a sandbox, read so that no part of it can move out of sight meanwhile.

A process that ended before its memory was read may have passed its whole address space to a child (CLONE_VM). So the
processes are listed again after they were read. If one is new, or has ended during the listing, all are read again. If
that does not help, the processes are stopped for a moment. Programs that only start many processes become stable then,
because a stopped process starts none. This also covers a process whose first thread has ended while its other threads
follow each other: an ended thread shows neither the memory nor the children of its process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple

from ramet.isolation.limits import kernel_memory
from ramet.isolation.limits.cpu_throttle import Pause
from ramet.isolation.linux import procfs
from ramet.isolation.linux.procfs import Stat

_TRIES = 3  #: attempts to read all processes while they run
_STOPPED_TRIES = 3  #: attempts while they are stopped
_RECOUNT_S = 0.1  #: of reading, after which the processes are counted again


class Census(NamedTuple):
    """The processes of a sandbox at one moment."""

    tree: dict[int, Stat]
    is_whole: bool = True  #: no process ended, or changed its place, during the listing


class MemoryUsage(NamedTuple):
    """The memory of the processes of a sandbox, in MiB."""

    total_mb: float
    hidden_mb: float = 0.0  #: the part that no process shows: sockets, page tables and shared areas
    is_whole: bool = True  #: no process can have been left out


class _TooMany(Exception):
    """The sandbox has more processes than it may have."""


class TreeMemory:
    """A reader of the memory of one sandbox."""

    def __init__(
        self,
        *,
        look: Callable[[], Census],
        exact_mb: float,
        baseline_mb: float,
        most: int,
        in_own_network: bool,
        has_cgroup: bool,
        now: Callable[[], float],
    ) -> None:
        """`look` finds the processes. From `exact_mb` on, each process is charged its part of shared memory.

        More than `most` processes are not read: they exceed the limit, and reading them takes seconds. A process that
        forks all the time holds the lock that a reader waits for. So the processes are counted again while they are
        read; `now` is a clock in seconds.

        `has_cgroup` says that a control group holds the memory: nothing is read twice then.
        """
        self._look, self._exact_mb, self._baseline_mb = look, exact_mb, baseline_mb
        self._most, self._now = most, now
        self._counted_at = now()
        self._in_own_network, self._has_cgroup = in_own_network, has_cgroup

    def read(self, tree: Mapping[int, Stat]) -> MemoryUsage:
        """Return the memory of all processes; `tree` lists the processes that existed just now."""
        self._counted_at = self._now()
        try:
            return self._measure(tree) if self._has_cgroup else self._read_whole(tree)
        except _TooMany:
            return MemoryUsage(0.0, is_whole=False)

    def _read_whole(self, tree: Mapping[int, Stat]) -> MemoryUsage:
        for _ in range(_TRIES):
            usage, census, is_whole = self._measure_between(tree)
            if is_whole:
                return usage
            tree = census.tree
        pause = Pause(lambda: self._look().tree)
        try:
            for _ in range(_STOPPED_TRIES):
                pause.stop()
                tree = self._look().tree
                usage, _, is_whole = self._measure_between(tree)
                if is_whole:
                    return usage
        finally:
            pause.release()
        return usage._replace(is_whole=False)

    def _measure_between(self, tree: Mapping[int, Stat]) -> tuple[MemoryUsage, Census, bool]:
        """Read all processes, then list them again; also return whether no memory can have moved meanwhile."""
        threads = _threads(tree)
        usage = self._measure(tree)
        census = self._look()
        return usage, census, _covers(tree, census) and threads == _threads(census.tree)

    def _measure(self, tree: Mapping[int, Stat]) -> MemoryUsage:
        self._check_count(tree)
        kernel, areas = 0.0, 0.0
        if not self._has_cgroup:
            kernel = kernel_memory.held_mb(tree, in_own_network=self._in_own_network)
            areas = kernel_memory.shared_mb(self._processes(tree))
        usage = self._sum(map(procfs.resident, self._processes(tree)), kernel, areas)
        if usage.total_mb < self._exact_mb:
            return usage
        return self._sum(map(procfs.proportional, self._processes(tree)), kernel, areas)

    def _processes(self, tree: Mapping[int, Stat]) -> Iterator[Stat]:
        for process in tree.values():
            if self._now() - self._counted_at >= _RECOUNT_S:
                self._check_count(self._look().tree)
                self._counted_at = self._now()
            yield process

    def _check_count(self, tree: Mapping[int, Stat]) -> None:
        if len(tree) > self._most:
            raise _TooMany

    def _sum(self, memory: Iterable[procfs.Memory], kernel: float, areas: float) -> MemoryUsage:
        """Return the total; resident pages of shared areas count once."""
        each = tuple(memory)
        hidden_mb = kernel + max(0.0, areas - sum(process_memory.shared for process_memory in each))
        return MemoryUsage(
            sum(process_memory.total for process_memory in each) - self._baseline_mb + hidden_mb, hidden_mb
        )


def _threads(tree: Mapping[int, Stat]) -> dict[int, list[str]]:
    """Return the threads of processes whose first thread has ended: each may hand over to the next and show nothing."""
    return {pid: procfs.threads(pid) for pid, process in tree.items() if process.is_headless}


def _covers(tree: Mapping[int, Stat], census: Census) -> bool:
    """Return whether no process was added while a tree was read."""
    return census.is_whole and all(
        pid in tree and tree[pid].start_time == process.start_time for pid, process in census.tree.items()
    )
