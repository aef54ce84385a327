"""A reply with 1,000 tool calls: concurrent ones, consecutive ones, and synchronous ones in threads."""

from __future__ import annotations

from benchmarks.cost import Cost, Figures
from benchmarks.models import Obedient, add, add_safe, add_sync
from ramet import Session


async def measure(calls: int = 1_000) -> Figures:
    """Return the microseconds of CPU for each call, and the seconds until the batch was answered."""
    figures: Figures = {}
    async with Session(Obedient(), [add, add_safe, add_sync]) as session:
        for tool in ("add_safe", "add", "add_sync"):
            await session.ask(f"batch 20 {tool}")
            with Cost() as cost:
                result = await session.ask(f"batch {calls} {tool}")
            assert result.value == "done", result
            figures |= {f"{tool}_us": cost.cpu_s / calls * 1e6, f"{tool}_wall_s": cost.wall_s}
    return figures
