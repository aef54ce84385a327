"""Three kernels on one PostgreSQL. One with runs of schedules is killed: the time until its runs continue."""

from __future__ import annotations

import asyncio
import time

from benchmarks.cost import Figures
from benchmarks.measures.takeover import measured, say
from ramet import AgentRuntime, AgentScheduler
from ramet.store.postgres import PostgresStore

LOOK_S = 0.002


async def for_ever() -> None:
    """Wait for ever, as the function of a schedule."""
    await asyncio.Event().wait()


async def measure(runs: int = 200) -> Figures:
    """Return the seconds from SIGKILL to the first and to the last run that continues in one of two other kernels."""
    return await measured("benchmarks.measures.scheduled_takeover", runs)


async def hold(dsn: str, runs: str) -> None:
    """Hold so many active runs of schedules until this process is killed."""
    store = PostgresStore(dsn, kernel="one")
    async with AgentRuntime(store=store) as runtime, AgentScheduler(runtime) as scheduler:
        for number in range(int(runs)):
            await scheduler.schedule_agent_in(0, for_ever, name=f"job-{number}", repeatable=True, in_process=True)
        while len(runtime.trees) < int(runs):  # noqa: ASYNC110 - nobody says it
            await asyncio.sleep(LOOK_S)
        for root in runtime.trees:
            await runtime.get(root).run.context.wait_persisted()
        say("ready")
        await asyncio.Event().wait()


async def adopt(dsn: str, name: str) -> None:
    """Run a scheduler among others until this process is killed, and print the time when a run continues here."""
    async with AgentRuntime(store=PostgresStore(dsn, kernel=name)) as runtime, AgentScheduler(runtime):
        say("ready")
        known = 0
        while True:
            for _ in range(known, len(runtime.trees)):
                say(time.monotonic())
            known = len(runtime.trees)
            await asyncio.sleep(LOOK_S)


if __name__ == "__main__":
    print(asyncio.run(measure()))
