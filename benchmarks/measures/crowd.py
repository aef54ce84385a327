"""A reply that asks for 500 sub-agents under the default limits of a session: most of them wait for admission."""

from __future__ import annotations

from benchmarks.cost import Cost, Figures
from benchmarks.models import Obedient
from ramet import Agent, Session


async def measure(children: int = 500) -> Figures:
    """Return the time until all agents were spawned, asked their model and reported, and the CPU time for each."""
    async with Session(Obedient(), agents=[Agent(name="worker", tools=[])]) as session:
        with Cost() as cost:
            result = await session.ask(f"spawn {children} 1")
        assert (result.value, session.usage.agents) == ("done", children), result
    return {"child_ms": cost.cpu_s / children * 1e3, "wall_s": cost.wall_s}
