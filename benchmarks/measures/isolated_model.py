"""A model agent in a sandbox: time from its request to the end of its first turn, and its memory while it waits."""

from __future__ import annotations

import asyncio
import time
from statistics import median

from benchmarks.cost import Figures, child_processes_mb
from ramet import Agent, AgentRuntime, Policy, ScriptedModel
from ramet.models.scripted.dialogue import Hang


async def measure(count: int = 40, waiting: int = 8) -> Figures:
    """Return the milliseconds, and the MB by which all processes together grow for each agent that waits for its model.

    The metrics of one agent would include its part of the zygote's memory, which shrinks with the number of agents.
    """
    async with AgentRuntime() as runtime:
        found = []
        for _ in range(count + 3):
            agent = Agent(name="one", model=ScriptedModel(["done"]), tools=[])
            began = time.perf_counter()
            result = await runtime.run_agent(agent, Policy(), prompt="go")
            found.append((time.perf_counter() - began) * 1e3)
            assert result.output == "done", result
            await asyncio.sleep(0.02)
        before = await _grow(runtime, 1)
        after = await _grow(runtime, waiting)
    return {"turn_p50_ms": median(found[3:]), "private_mb": (after - before) / waiting}


async def _grow(runtime: AgentRuntime, count: int) -> float:
    """Start `count` agents that wait for their model; return the memory of all processes then."""
    asked = 0

    def ask(_: object) -> Hang:
        nonlocal asked
        asked += 1
        return Hang()

    for _ in range(count):
        await runtime.start_agent(Agent(name="one", model=ScriptedModel(ask)), Policy(), prompt="go")
    while asked < count:  # noqa: ASYNC110 - what is waited for are processes
        await asyncio.sleep(0.05)
    await asyncio.sleep(1)  # As many processes are parked again.
    return child_processes_mb()
