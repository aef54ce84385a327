"""Memory of agents that do nothing: agents that wait for a model, are idle between turns, sleep, or have ended."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, aclosing

from benchmarks.cost import Figures, rss_mb
from benchmarks.models import Obedient, add
from ramet import Agent, AgentRuntime, Session, SpawnLimits, SpawnRequest
from ramet.core.events import Event, StateChanged, TurnStarted


async def measure(kind: str, count: int) -> Figures:
    """Return the memory by which a process grows for each of `count` agents of a kind."""
    grow = {"waiting": _waiting, "idle": _idle, "asleep": _asleep, "session": _sessions, "over": _ended}[kind]
    async with AsyncExitStack() as stack:
        await grow(stack, 20)  # What the first ones import and cache is not theirs.
        before = rss_mb()
        await grow(stack, count)
        return {"kb": (rss_mb() - before) / count * 1024}


async def _waiting(stack: AsyncExitStack, count: int) -> None:
    """Sub-agents in the middle of a turn, each with one tool, whose model does not answer."""
    await _children(stack, count, SpawnRequest(subagent_type="worker", prompt="hang"), _is_start)


async def _idle(stack: AsyncExitStack, count: int) -> None:
    """Sub-agents idle after a turn that left a function asleep in the background: two agents each."""
    await _children(stack, count, SpawnRequest(subagent_type="worker", prompt="background"), _is_idle)


async def _asleep(stack: AsyncExitStack, count: int) -> None:
    """Function agents that sleep."""
    await _children(stack, count, SpawnRequest(agent=_sleep), _is_start)


async def _sessions(stack: AsyncExitStack, count: int) -> None:
    """Roots of sessions of one runtime after a turn with a tool."""
    runtime = await stack.enter_async_context(AgentRuntime())
    model = Obedient()
    for _ in range(count):
        session = await stack.enter_async_context(Session(model, [add], runtime=runtime))
        assert (await session.ask("tools 1 add")).value == "done"


async def _ended(stack: AsyncExitStack, count: int) -> None:
    """Trees that have ended, one after another, in a runtime that stays open: the memory that each leaves behind."""
    runtime = await stack.enter_async_context(AgentRuntime())
    agent = Agent(name="worker", model=Obedient(), tools=[])
    for _ in range(count):
        assert (await (await runtime.spawn(agent, "say")).result()).value == "done"


async def _sleep() -> None:
    await asyncio.sleep(3600)


async def _children(
    stack: AsyncExitStack, count: int, request: SpawnRequest, is_there: Callable[[Event], bool]
) -> None:
    session = await stack.enter_async_context(
        Session(
            Obedient(),
            [add],
            agents=[
                Agent(name="worker", tools=["add", "Agent"]),
                Agent(name="sleeper", function=_sleep_after),
            ],
            spawn_limits=SpawnLimits(children=count, runs=2 * count + 1, running=None),
        )
    )
    events = await stack.enter_async_context(aclosing(session.events()))
    for _ in range(count):
        await session.spawn(request)
    await _wait_for_events(events, count, is_there)


async def _sleep_after(_: str) -> None:
    await asyncio.sleep(3600)


async def _wait_for_events(events: AsyncGenerator[Event], count: int, is_there: Callable[[Event], bool]) -> None:
    async for event in events:
        count -= is_there(event)
        if not count:
            break
    for _ in range(5):
        await asyncio.sleep(0)


def _is_start(event: Event) -> bool:
    return isinstance(event, TurnStarted) and event.depth == 1


def _is_idle(event: Event) -> bool:
    return isinstance(event, StateChanged) and event.state == "idle" and event.depth == 1
