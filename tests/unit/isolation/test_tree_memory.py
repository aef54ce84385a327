"""Tests of reading a tree's memory: changed processes are read again, and too many processes are not read."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from ramet.isolation.limits import kernel_memory
from ramet.isolation.limits.tree_memory import Census, MemoryUsage, TreeMemory
from ramet.isolation.linux import procfs
from ramet.isolation.linux.procfs import Stat

MAX_PROCESSES = 10


def tree_of(count: int) -> dict[int, Stat]:
    """Return processes with made-up numbers."""
    me = procfs.stat(os.getpid())
    assert me is not None
    return {number: me._replace(pid=number) for number in range(1, count + 1)}


class SlowTree:
    """Tree whose processes take long to read, by a clock that each reading advances."""

    def __init__(self, patch: pytest.MonkeyPatch, *, read_s: float, has_cgroup: bool = False) -> None:
        self.time_s, self.read_s, self.readings = 0.0, read_s, 0
        self.count_now = 5
        self.memory = TreeMemory(
            look=lambda: Census(tree_of(self.count_now)),
            exact_mb=100,
            baseline_mb=0,
            most=MAX_PROCESSES,
            in_own_network=False,
            has_cgroup=has_cgroup,
            now=lambda: self.time_s,
        )
        patch.setattr(procfs, "resident", self._read_one)
        patch.setattr(kernel_memory, "held_mb", lambda *_, **__: 0.0)
        patch.setattr(kernel_memory, "shared_mb", lambda processes: 0.0)

    def _read_one(self, one: Stat) -> procfs.Memory:
        self.readings += 1
        self.time_s += self.read_s
        return procfs.Memory(1, 0)


@pytest.mark.parametrize("has_cgroup", [False, True])
def test_a_reading_stops_when_the_tree_has_grown_above_its_limit(
    monkeypatch: pytest.MonkeyPatch, has_cgroup: bool
) -> None:
    """A fork bomb makes readings slow: at most two more are made before the processes are counted again."""
    slow = SlowTree(monkeypatch, read_s=0.06, has_cgroup=has_cgroup)
    slow.count_now = MAX_PROCESSES + 1

    assert slow.memory.read(tree_of(5)) == MemoryUsage(0.0, is_whole=False)
    assert slow.readings == 2


def test_a_slow_tree_within_its_limit_is_read_to_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """A guest cannot hide its memory by making it slow to read."""
    slow = SlowTree(monkeypatch, read_s=5.0)

    assert slow.memory.read(tree_of(5)) == MemoryUsage(5.0)


def test_a_tree_above_its_limit_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """The watchdog ends the tree at its next look."""
    slow = SlowTree(monkeypatch, read_s=0.0)

    assert slow.memory.read(tree_of(MAX_PROCESSES + 1)) == MemoryUsage(0.0, is_whole=False)
    assert slow.readings == 0


@pytest.mark.parametrize("follow", [True, False])
def test_changing_threads_make_a_reading_incomplete(follow: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """After the first thread has ended, the other threads must be equal before and after the reading."""
    me = procfs.stat(os.getpid())
    assert me is not None
    one = me._replace(pid=2**22 + 1, state="Z", threads=2)
    numbers: Iterator[int] = iter(range(10**6))
    monkeypatch.setattr(procfs, "threads", lambda pid: [str(2**22 + 2 + (next(numbers) if follow else 0))])
    memory = TreeMemory(
        look=lambda: Census({one.pid: one}),
        exact_mb=1,
        baseline_mb=0,
        most=9,
        in_own_network=False,
        has_cgroup=False,
        now=lambda: 0.0,
    )

    assert memory.read({one.pid: one}).is_whole is not follow
