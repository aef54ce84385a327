"""Time and memory of this process."""

from __future__ import annotations

import ctypes
import gc
import time
from typing import Self

import psutil

Figures = dict[str, float]  #: what a measurement found, by the names that `benchmarks.catalogue` gives them


class Cost:
    """The time that a block took: `with Cost() as cost: …`, then `cost.cpu_s` and `cost.wall_s`."""

    wall_s: float
    cpu_s: float

    def __enter__(self) -> Self:
        gc.collect()
        self.wall_s, self.cpu_s = time.perf_counter(), time.process_time()
        return self

    def __exit__(self, *_: object) -> None:
        self.wall_s, self.cpu_s = time.perf_counter() - self.wall_s, time.process_time() - self.cpu_s


def rss_mb() -> float:
    """Return the present memory of this process, after it gave back what is free."""
    gc.collect()
    try:
        ctypes.CDLL(None).malloc_trim(0)
    except (AttributeError, OSError):
        pass  # not glibc
    return float(psutil.Process().memory_info().rss) / 2**20


def own_kb() -> float:
    """Return the present memory that no other process shares."""
    return float(psutil.Process().memory_full_info().uss) / 1024


def proportional_mb(process: psutil.Process) -> float:
    """Return the memory of a process, with its share of the memory that other processes have too.

    Where the system does not show that, shared memory counts in full.
    """
    try:
        return float(process.memory_full_info().pss) / 2**20
    except psutil.AccessDenied:
        return float(process.memory_info().rss) / 2**20


def child_processes_mb() -> float:
    """Return the present memory of all processes below this one; what several of them share counts once."""
    return sum(map(proportional_mb, psutil.Process().children(recursive=True)))
