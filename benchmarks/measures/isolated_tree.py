"""Sandboxed agents below sandboxed agents: three levels to a result, and a cancel while a call inside is stuck."""

from __future__ import annotations

import time
from statistics import median

from benchmarks.agents import top, top_of_deaf
from benchmarks.cost import Figures
from ramet import AgentRuntime, Policy, Status
from ramet.isolation.contract import KILL_GRACE_S

ALL = Policy(allow_sub_agents=True, memory_mb=512)


async def measure(count: int = 40, cancels: int = 3) -> Figures:
    """Return the milliseconds from request to result, and the seconds that a cancel takes beyond its grace."""
    async with AgentRuntime() as runtime:
        found = []
        for _ in range(count + 3):
            began = time.perf_counter()
            result = await runtime.run_agent(top, ALL)
            found.append((time.perf_counter() - began) * 1e3)
            assert result.output == 1, result
        late = [await _measure_cancel(runtime) for _ in range(cancels)]
    return {"nested_p50_ms": median(found[3:]), "beyond_grace_s": max(late)}


async def _measure_cancel(runtime: AgentRuntime) -> float:
    import asyncio

    handle = await runtime.start_agent(top_of_deaf, ALL)
    while len(runtime.get_status()["sessions"][handle.id]) < 3:  # noqa: ASYNC110 - what is waited for is a process
        await asyncio.sleep(0.01)
    await asyncio.sleep(2)  # The lowest has told SIGTERM to be ignored by then.
    began = time.perf_counter()
    await handle.cancel()
    took = time.perf_counter() - began
    assert (await handle.result()).status is Status.CANCELLED
    return took - KILL_GRACE_S
