"""Costs of depth: an event that is recorded and delivered to a reader of the tree, and a turn, at depth 1 and 100."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from statistics import median

from benchmarks.cost import Cost, Figures
from benchmarks.models import Obedient, add
from ramet import Agent, Session, SpawnLimits, SpawnRequest, ToolUseContext
from ramet.core.events import Event, Notice
from ramet.tools.context import current

BURST = 50  #: events between two moments in which the reader may run


async def measure(depth: int = 100, events: int = 5_000, turns: int = 100, repeats: int = 7) -> Figures:
    """Measure two agents of one session in turn: one near the root, and one far below it."""
    limits = SpawnLimits(depth=depth + 1, children=8, runs=2 * depth + 10, running=None)
    worker = Agent(name="worker", model=Obedient(), tools=[add], max_turns=turns + 10)
    async with Session(Obedient(), [add], spawn_limits=limits, agents=[worker]) as session:
        near, far = await _spawn_at_depth(session, 1), await _spawn_at_depth(session, depth)
        figures: Figures = {}
        async with aclosing(session.events()) as arriving:
            await _skip_to(arriving, _emit_mark(near))
            per_event = [
                (await _per_event(each, arriving, events), each) for _ in range(repeats) for each in (near, far)
            ]
        per_turn = [(await _per_turn(each, turns), each) for _ in range(repeats) for each in (near, far)]
        for name, costs in (("event", per_event), ("turn", per_turn)):
            shallow, deep = (median(cost for cost, whose in costs if whose is each) for each in (near, far))
            figures |= {f"{name}_near_us": shallow, f"{name}_far_us": deep, f"{name}_ratio": deep / shallow}
        await session.cancel()
    return figures


async def _spawn_at_depth(session: Session, depth: int) -> ToolUseContext:
    """Spawn an agent at `depth` below the root that stays active; return its context."""
    found: asyncio.Future[ToolUseContext] = asyncio.get_running_loop().create_future()
    await session.spawn(SpawnRequest(agent=_descend, args=(depth - 1, found)))
    return await found


async def _descend(further: int, found: asyncio.Future[ToolUseContext]) -> None:
    context = current()
    assert context.tree is not None
    if not further:
        found.set_result(context)
        await asyncio.sleep(3600)
    handle = await context.tree.spawn(context, SpawnRequest(agent=_descend, args=(further - 1, found)))
    await handle.result()


def _emit_mark(context: ToolUseContext) -> str:
    text = f"mark {context.next_step()}"
    context.emit(Notice, text=text)
    return text


async def _skip_to(arriving: AsyncGenerator[Event], text: str) -> None:
    async for event in arriving:
        if isinstance(event, Notice) and event.text == text:
            return


async def _per_event(context: ToolUseContext, arriving: AsyncGenerator[Event], count: int) -> float:
    with Cost() as cost:
        reading = asyncio.create_task(_read(arriving, count))
        for number in range(count):
            context.emit(Notice, text="something happened")
            if number % BURST == BURST - 1:
                await asyncio.sleep(0)
        await reading
    return cost.cpu_s / count * 1e6


async def _read(arriving: AsyncGenerator[Event], count: int) -> None:
    for _ in range(count):
        event = await anext(arriving)
        assert isinstance(event, Notice), event


async def _per_turn(context: ToolUseContext, count: int) -> float:
    assert context.tree is not None
    with Cost() as cost:
        handle = await context.tree.spawn(context, SpawnRequest(subagent_type="worker", prompt=f"tools {count} add"))
        result = await handle.result()
    assert result.value == "done", result
    return cost.cpu_s / count * 1e6
