"""A kernel with many idle conversations, resumed from its journal, and some active ones: what `scale` predicts.

Each idle conversation has had one turn with a tool. Each active one begins a turn with a tool `pace_ms` after the last
one began.
"""

from __future__ import annotations

import asyncio
import os
import pathlib
import tempfile
from contextlib import AsyncExitStack

from benchmarks.cost import Cost, Figures, rss_mb
from benchmarks.measures import recovery
from benchmarks.models import Obedient, add
from ramet import Agent, AgentRuntime, Session
from ramet.store.sqlite.store import SqliteStore

EVENTS = 7  #: of each at rest: one tool call


async def measure(idle: int = 1_000, working: int = 20, lasting_ms: int = 5_000, pace_ms: int = 1_000) -> Figures:
    """Return kilobytes, CPU time and events of so many conversations for so long."""
    with tempfile.TemporaryDirectory(prefix="ramet-bench-") as folder:
        path = pathlib.Path(folder) / "journal.db"
        await recovery.write(path, idle, EVENTS)
        async with AgentRuntime(store=SqliteStore(path)) as runtime, AsyncExitStack() as stack:
            sessions = [
                await stack.enter_async_context(Session(Obedient(), [add], runtime=runtime)) for _ in range(working)
            ]
            await asyncio.gather(*(session.ask("tools 1 add") for session in sessions))
            at_rest = Agent(name="worker", model="offline")
            base = before = rss_mb()
            with Cost() as taking_up:
                handles = await runtime.resume(agents=[at_rest])
            grown = rss_mb() - before
            store = await runtime.open_store()
            events = await store.head()
            with Cost() as cost:
                took = await asyncio.gather(
                    *(_work(each, lasting_ms / 1e3, pace_ms / 1e3, n) for n, each in enumerate(sessions))
                )
            turns = sum(map(len, took))
            late = sorted(each for some in took for each in some)
            return {
                "base_mb": base,
                "agents": float(len(handles) + working),
                "idle_kb": grown / len(handles) * 1024,
                "taken_up_ms": taking_up.cpu_s / len(handles) * 1e3,
                "rss_mb": rss_mb(),
                "turns_per_s": turns / cost.wall_s,
                "turn_ms": cost.cpu_s / turns * 1e3,
                "turn_events": (await store.head() - events) / turns,
                "busy": cost.cpu_s / cost.wall_s,
                "turn_p50_ms": late[len(late) // 2] * 1e3,
                "descriptors": float(len(os.listdir("/proc/self/fd"))),  # noqa: PTH208
            }


async def _work(session: Session, lasting_s: float, pace_s: float, number: int) -> list[float]:
    """Take turns, and return how long each took."""
    clock, took = asyncio.get_running_loop().time, list[float]()
    began = clock()
    await asyncio.sleep(pace_s * (number * 0.618 % 1))  # they did not all begin at once
    while (at := clock()) - began < lasting_s:
        assert (await session.ask("tools 1 add")).value == "done"
        took.append(clock() - at)
        await asyncio.sleep(max(0.0, pace_s - took[-1]))
    return took
