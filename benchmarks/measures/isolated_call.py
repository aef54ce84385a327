"""A function agent in a process of its own, created, called and answered, one after another; and idle ones."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from psutil import Process

from benchmarks.agents import nothing, wait
from benchmarks.cost import Figures, proportional_mb
from ramet import AgentRuntime, Policy
from ramet.isolation.bwrap import BwrapBackend
from ramet.isolation.local import LocalBackend


async def measure(count: int = 40, idle: int = 8) -> Figures:
    """Return the time from `run_agent` to its result, in a sandbox and without one, and the memory of an idle one.

    No process is parked in advance, so that each new process below this one belongs to an agent.
    """
    figures: Figures = {}
    for name, kind in (("sandbox", BwrapBackend), ("bare", LocalBackend)):
        with TemporaryDirectory(prefix="ramet-bench-") as folder:
            backend = kind(runs=Path(folder) / ".ramet" / "runs", parked_count=0)
            async with AgentRuntime(folder, backend=backend) as runtime:
                figures[f"{name}_p50_ms"] = median([await _call_ms(runtime) for _ in range(count + 3)][3:])
                figures[f"{name}_idle_mb"] = await _idle_mb(runtime, idle)
            await backend.close()
    return figures


async def _call_ms(runtime: AgentRuntime) -> float:
    began = time.perf_counter()
    result = await runtime.run_agent(nothing, Policy())
    took_ms = (time.perf_counter() - began) * 1e3
    assert result.output == 1, result
    return took_ms


async def _idle_mb(runtime: AgentRuntime, count: int) -> float:
    started = asyncio.Semaphore(0)
    before = {each.pid for each in Process().children(recursive=True)}
    handles = [await runtime.start_agent(wait, Policy(), on_stdout=lambda _: started.release()) for _ in range(count)]
    for _ in handles:
        await started.acquire()
    processes = [each for each in Process().children(recursive=True) if each.pid not in before]
    memory_mb = sum(proportional_mb(each) for each in processes)
    await asyncio.gather(*(each.cancel() for each in handles))
    return memory_mb / count
