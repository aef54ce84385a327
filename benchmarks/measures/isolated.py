"""Function agents in sandboxes, one after another: from a parked process, from a cold fork, and from nothing."""

from __future__ import annotations

import time
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from benchmarks.agents import megabyte, nothing
from benchmarks.cost import Figures
from ramet import AgentRuntime, Isolation, Policy
from ramet.isolation.bwrap import BwrapBackend
from ramet.isolation.local import LocalBackend

#: Between two requests, so that parked processes are made again, as they are where requests do not queue up.
PAUSE_S = 0.02


async def measure(count: int = 200) -> Figures:
    """Return the milliseconds from `run_agent` to its result."""
    figures: Figures = {}
    fresh = Policy(isolation=Isolation.FRESH)
    for name, kind, parked, policy, times in (
        ("parked", BwrapBackend, 4, Policy(), count),
        ("cold", BwrapBackend, 0, Policy(), count),
        ("local", LocalBackend, 0, Policy(), count),
        ("fresh", BwrapBackend, 0, fresh, count // 4),
    ):
        with TemporaryDirectory(prefix="ramet-bench-") as folder:
            backend = kind(runs=Path(folder) / ".ramet" / "runs", parked_count=parked)
            async with AgentRuntime(folder, backend=backend) as runtime:
                found = await _one_by_one(runtime, policy, times, pause_s=PAUSE_S if parked else 0.0)
                figures |= {f"{name}_p50_ms": median(found), f"{name}_p99_ms": found[int(len(found) * 0.99)]}
                if name == "cold":
                    figures["megabyte_ms"] = await _megabyte(runtime) - median(found)
            await backend.close()
    return figures


async def _one_by_one(runtime: AgentRuntime, policy: Policy, count: int, *, pause_s: float) -> list[float]:
    import asyncio

    found = []
    for number in range(count + 5):
        began = time.perf_counter()
        result = await runtime.run_agent(nothing, policy)
        took_ms = (time.perf_counter() - began) * 1e3
        assert result.output == 1, result
        if number >= 5:  # The first find nothing warm.
            found.append(took_ms)
        if pause_s:
            await asyncio.sleep(pause_s)
    return sorted(found)


async def _megabyte(runtime: AgentRuntime) -> float:
    found = []
    for _ in range(20):
        began = time.perf_counter()
        result = await runtime.run_agent(megabyte, Policy())
        found.append((time.perf_counter() - began) * 1e3)
        assert len(result.output) == 10_000, result
    return median(found)
