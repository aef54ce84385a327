"""A tree of models three levels deep, with 10 children each: 1,110 sub-agents that ask, delegate and answer."""

from __future__ import annotations

import resource

from benchmarks.cost import Cost, Figures
from benchmarks.models import Obedient
from ramet import Agent, Session, SpawnLimits


async def measure(width: int = 10, depth: int = 3) -> Figures:
    """Return the costs of the tree from the prompt to the answer, and of each sub-agent in it."""
    size = sum(width**level for level in range(1, depth + 1))
    async with Session(
        Obedient(),
        agents=[Agent(name="worker")],
        spawn_limits=SpawnLimits(depth=depth, children=width, runs=size + 1, running=None),
    ) as session:
        with Cost() as cost:
            result = await session.ask(f"spawn {width} {depth}")
        assert (result.value, session.usage.agents) == ("done", size), result
    return {
        "agent_ms": cost.cpu_s / size * 1e3,
        "cpu_s": cost.cpu_s,
        "wall_s": cost.wall_s,
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }
