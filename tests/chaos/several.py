"""Kernel among several on a database: `python -m tests.chaos.several NAME FOLDER DSN SCHEMA TREES SKEW_H FATE KILL`.

The program begins TREES trees, takes over the trees of dead kernels, and lives until its stdin ends. It reports each
act as a line of JSON. Its clock is SKEW_H hours ahead. At the moment KILL (`tests.chaos.deadly.Kill`) it meets its
FATE: `kill`, or `stop`, which is SIGSTOP: after SIGCONT it continues with the write that it was about to make.
"""

from __future__ import annotations

import asyncio
import json
import pathlib
import signal
import sys
import threading
from datetime import datetime, timedelta

from ramet import Agent, AgentRuntime, Policy
from ramet.concurrency.clock import SystemClock
from ramet.host.trees.project import Project
from ramet.spawn.handle import Handle
from ramet.store.postgres import PostgresStore
from tests.chaos import deadly, functions
from tests.chaos.deadly import Kill, make_deadly
from tests.chaos.planned import Planned, tools
from tests.chaos.program import LIMITS


class SkewedClock(SystemClock):
    """System clock that is wrong by so many hours."""

    def __init__(self, hours: float) -> None:
        self._by = timedelta(hours=hours)

    def now(self) -> datetime:
        """Return the wrong time."""
        return super().now() + self._by


def say(**fields: object) -> None:
    """Print one line of JSON at once."""
    print(json.dumps(fields), flush=True)  # noqa: T201 - it is what this program is for


async def main(
    name: str, folder: pathlib.Path, dsn: str, schema: str, trees: int, skew_h: float, fate: str, kill: Kill | None
) -> None:
    """Run the kernel until stdin ends."""
    store = PostgresStore(dsn, schema=schema, kernel=name)
    if fate == "stop":
        deadly.die = _stop  # type: ignore[assignment]  # it is not the end
    model = Planned(folder=str(folder))
    watching: set[asyncio.Task[None]] = set()

    def follow(handle: Handle) -> None:
        task = asyncio.create_task(_tell_end(handle))
        watching.add(task)
        task.add_done_callback(watching.discard)

    def adopted(handle: Handle) -> None:
        say(adopted=handle.id)
        follow(handle)

    async with AgentRuntime(store=store, grace_s=1.0, backend="local", clock=SkewedClock(skew_h)) as runtime:
        for handle in await runtime.adopt(adopted, llm=model, tools=tools(folder)):
            adopted(handle)
        make_deadly(store, kill, folder / "deaths")
        say(ready=name)
        for number in range(trees):
            if number % 3 == 2:
                policy = Policy(allow_sub_agents=True, memory_mb=1024, cpu_cores=4, timeout_seconds=60)
                handle = await runtime.spawn(functions.survey, policy=policy, limits=LIMITS)
            else:
                lead = Agent(name="lead", model=model)
                agents = Project.open(None, user_dir=None)
                handle = await runtime.spawn(lead, "lead", tools=tools(folder), agents=agents, limits=LIMITS)
            say(began=handle.id)
            follow(handle)
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
        for task in list(watching):
            task.cancel()


async def _tell_end(handle: Handle) -> None:
    result = await handle.result()
    say(ended=handle.id, status=str(result.status), error=str(result.error))


def _stop() -> None:
    signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)  # this very thread, before its next line


if __name__ == "__main__":
    name, folder, dsn, schema, trees, skew_h, fate, kill = sys.argv[1:]
    asyncio.run(main(name, pathlib.Path(folder), dsn, schema, int(trees), float(skew_h), fate, Kill.parse(kill)))
