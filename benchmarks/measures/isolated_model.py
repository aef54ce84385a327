"""A model agent in a sandbox: time from its request to the end of its first turn, and private memory of its process."""

from __future__ import annotations

import asyncio
import time
from statistics import median

from benchmarks.cost import Figures
from ramet import Agent, AgentRuntime, Policy, ScriptedModel
from ramet.models.scripted.dialogue import Hang


async def measure(count: int = 40) -> Figures:
    """Return the milliseconds, and the MB of private memory while the agent waits for its model."""
    async with AgentRuntime() as runtime:
        found = []
        for _ in range(count + 3):
            agent = Agent(name="one", model=ScriptedModel(["done"]), tools=[])
            began = time.perf_counter()
            result = await runtime.run_agent(agent, Policy(), prompt="go")
            found.append((time.perf_counter() - began) * 1e3)
            assert result.output == "done", result
            await asyncio.sleep(0.02)
        handle = await runtime.start_agent(Agent(name="one", model=ScriptedModel([Hang()])), Policy(), prompt="go")
        await asyncio.sleep(1)
        memory = (await handle.metrics()).memory_mb
        await handle.cancel()
    return {"turn_p50_ms": median(found[3:]), "private_mb": memory}
