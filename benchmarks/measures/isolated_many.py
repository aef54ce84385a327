"""Many sandboxes: as many as possible for a while, and a thousand that only wait."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

from benchmarks.agents import nothing, wait
from benchmarks.cost import Figures
from ramet import AgentRuntime, Policy

SMALL = Policy(memory_mb=64, pids=4)


async def measure(kind: str, amount: int) -> Figures:
    """Measure sandboxes per second and what is left of them (`rate SECONDS`), or the memory of each (`idle COUNT`)."""
    return await (_rate(amount) if kind == "rate" else _idle(amount))


async def _rate(seconds: int, at_once: int = 4) -> Figures:
    async with AgentRuntime() as runtime:
        for _ in range(20):
            await runtime.run_agent(nothing, SMALL)
        before, until, count = _count_held(), time.perf_counter() + seconds, 0

        async def go_on() -> None:
            nonlocal count
            while time.perf_counter() < until:
                result = await runtime.run_agent(nothing, SMALL)
                assert result.output == 1, result
                count += 1

        began = time.perf_counter()
        await asyncio.gather(*(go_on() for _ in range(at_once)))
        took = time.perf_counter() - began
        await asyncio.sleep(2)  # What nobody waits for is done by then.
        after = _count_held()
    return {"per_s": count / took, "fds_left": after[0] - before[0], "groups_left": after[1] - before[1]}


def _count_held() -> tuple[int, int]:
    """Return the numbers of descriptors of this process, and of control groups of ramet."""
    groups = sum(1 for _ in Path("/sys/fs/cgroup/memory/ramet").rglob("agent*")) if _has_groups() else 0
    return len(os.listdir("/proc/self/fd")), groups  # noqa: PTH208 - once a round


def _has_groups() -> bool:
    return Path("/sys/fs/cgroup/memory/ramet").is_dir()


async def _idle(count: int) -> Figures:
    async with AgentRuntime() as runtime:
        await runtime.run_agent(nothing, SMALL)
        before, here = _available_mb(), 0

        def hear(_: str) -> None:
            nonlocal here
            here += 1

        began = time.perf_counter()
        handles = [await runtime.start_agent(wait, SMALL, on_stdout=hear) for _ in range(count)]
        while here < count:  # noqa: ASYNC110 - what is waited for are processes
            await asyncio.sleep(0.05)
        grown = time.perf_counter() - began
        used = before - _available_mb()
        began = time.perf_counter()
        await asyncio.gather(*(each.cancel() for each in handles))
        return {"each_mb": used / count, "start_s": grown, "cancel_s": time.perf_counter() - began}


def _available_mb() -> float:
    line = next(each for each in Path("/proc/meminfo").read_text().splitlines() if each.startswith("MemAvailable"))
    return int(line.split()[1]) / 1024
