"""A turn with one tool at the end of a long conversation, with and without a budget that counts tokens."""

from __future__ import annotations

from statistics import median

from benchmarks.cost import Cost, Figures
from benchmarks.models import Obedient, add
from ramet import Limits, Session

PROMPT = "x" * 1_000


async def measure(messages: int = 500, turns: int = 15) -> Figures:
    """Measure the CPU of a prompt with one tool call, after `messages` messages (half of them 1 KB) and after a few."""
    short = await _prompts(0, turns, Limits())
    long = await _prompts(messages, turns, Limits())
    budget = await _prompts(messages, turns, Limits(tokens=10**12, usd=None))
    return {"short_ms": short, "long_ms": long, "budget_ms": budget, "ratio": long / short}


async def _prompts(messages: int, turns: int, limits: Limits) -> float:
    async with Session(Obedient(), [add], limits=limits) as session:
        await session.ask("tools 1 add")
        while len(session.messages) < messages:
            await session.ask(PROMPT)
        costs = []
        for _ in range(turns):
            with Cost() as cost:
                result = await session.ask("tools 1 add")
            assert result.value == "done", result
            costs.append(cost.cpu_s * 1e3)
    return median(costs)
