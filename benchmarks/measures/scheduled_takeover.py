"""Three kernels on one PostgreSQL, of which the one whose schedules' runs are at work is killed: until all go on."""

from __future__ import annotations

import asyncio
import time

from benchmarks.cost import Figures
from benchmarks.measures.takeover import measured, say
from ramet import AgentRuntime, AgentScheduler
from ramet.store.postgres import PostgresStore

LOOK_S = 0.002


async def for_ever() -> None:
    """What is scheduled."""
    await asyncio.Event().wait()


async def measure(runs: int = 200) -> Figures:
    """Seconds from SIGKILL to the first run that goes on in one of two other kernels, and to the last."""
    return await measured("benchmarks.measures.scheduled_takeover", runs)


async def hold(dsn: str, runs: str) -> None:
    """Have so many runs at work, each of a schedule, until killed."""
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
    """Be a scheduler among others, until killed, and say when a run goes on here."""
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
