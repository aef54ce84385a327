"""One reply that asks for 500 sub-agents under the limits that a session has by default: most of them wait for room."""

from __future__ import annotations

from benchmarks.cost import Cost, Figures
from benchmarks.models import Obedient
from ramet import Agent, Session


async def measure(children: int = 500) -> Figures:
    """What it takes until all were born, asked their model and reported, and for each of them."""
    async with Session(Obedient(), agents=[Agent(name="worker", tools=[])]) as session:
        with Cost() as cost:
            result = await session.ask(f"spawn {children} 1")
        assert (result.value, session.usage.agents) == ("done", children), result
    return {"child_ms": cost.cpu_s / children * 1e3, "wall_s": cost.wall_s}
