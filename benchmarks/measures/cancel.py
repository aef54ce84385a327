"""Cancel a tree of 10,000 sleeping agents: flat, two levels, and 100 chains of 100."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from benchmarks.cost import Cost, Figures
from ramet import AgentRuntime, SpawnLimits, SpawnRequest, Status
from ramet.tools.context import current

SHAPES: dict[str, tuple[int, ...]] = {
    "flat": (10_000,),
    "wide": (100, 99),
    "deep": (100, *[1] * 99),
}


async def measure(shape: str) -> Figures:
    """Grow the tree, wait until each agent in it sleeps, and cancel its root. Fails if anything is left."""
    return await cancel(SHAPES[shape])


async def cancel(levels: Sequence[int]) -> Figures:
    """Measure a tree in which `levels` says how many children each agent of a level has."""
    size = level = 1
    for each in levels:
        level *= each
        size += level
    wide = SpawnLimits(depth=len(levels), children=max(levels), runs=size, running=None)
    born = _SpawnCounter(size)
    async with AgentRuntime() as runtime:
        with Cost() as growing:
            root = await runtime.spawn(_grow, args=(levels, born), spawn_limits=wide)
            await born.all.wait()
            await asyncio.sleep(0)  # The last one falls asleep, too.
        with Cost() as cancelling:
            receipt = await root.cancel()
        result = await root.result()
        assert (result.status, len(receipt.stopped), receipt.left) == (Status.CANCELLED, size, ())
        assert asyncio.all_tasks() == {asyncio.current_task()}, "tasks are left"
    return {
        "wall_s": cancelling.wall_s,
        "cpu_s": cancelling.cpu_s,
        "grow_us": growing.cpu_s / size * 1e6,
    }


class _SpawnCounter:
    """A counter of spawned runs, which notices when all of them are there."""

    def __init__(self, expected: int) -> None:
        self.missing = expected
        self.all = asyncio.Event()

    def one(self) -> None:
        self.missing -= 1
        if not self.missing:
            self.all.set()


async def _grow(levels: Sequence[int], born: _SpawnCounter) -> None:
    context = current()
    assert context.tree is not None
    born.one()
    if not levels:
        await asyncio.sleep(3600)
    request = SpawnRequest(agent=_grow, args=(levels[1:], born))
    handles = [await context.tree.spawn(context, request) for _ in range(levels[0])]
    for handle in handles:
        await handle.result()
