"""Processes that are killed at each write of a tick: its run begins at most once, and nobody claims otherwise."""

from __future__ import annotations

import asyncio
import os
import pathlib
import signal
import sys
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta

import pytest

from ramet import AgentRuntime, AgentScheduler
from ramet.concurrency.clock import FakeClock
from ramet.host.journal import TREES
from ramet.store.postgres import PostgresStore
from tests.support.places import ROOT, killed, store_at
from tests.support.postgres import Server, postgres
from tests.support.postgres_stores import schema

__all__ = ["postgres", "schema"]  # fixtures are used by their names

SCRIPT = pathlib.Path(__file__).with_name("schedule_script.py")
SEVERAL = pathlib.Path(__file__).with_name("schedule_of_several.py")


#: When it is killed, at which write, how its tick ended, and how often its run took effect.
KILLS: list[tuple[str, int, str, set[int]]] = [
    ("after", 1, "completed", {1}),  # it is written down, and nothing else
    ("before", 2, "completed", {1}),
    ("after", 2, "completed", {1}),  # it is claimed: the run was not born, so it is born now
    ("before", 3, "completed", {1}),
    ("after", 3, "lost", {0}),  # it is started: a run may have been born, so none is born again
    ("before", 4, "lost", {0, 1}),
    ("after", 4, "lost", {0, 1}),  # the run is named
    ("before", 5, "lost", {1}),
    ("after", 5, "completed", {1}),  # its end is noted
]


@pytest.mark.parametrize(
    ("place", "when", "write", "status", "effects"),
    [("sqlite", *kill) for kill in KILLS] + [("postgres", *kill) for kill in KILLS[::2]],
    indirect=["place"],
)
async def test_a_process_killed_at_any_write_begins_a_tick_at_most_once(
    place: str, tmp_path: pathlib.Path, when: str, write: int, status: str, effects: set[int]
) -> None:
    """AC-S0-9, NEG-15: the next process, with another `__main__`, finds the function and does what is left to do."""
    done = tmp_path / "effects"
    await killed(SCRIPT, place, when, write, done)

    store = await store_at(place).open()
    try:
        async with AgentRuntime() as runtime, AgentScheduler(runtime, store=store) as scheduler:
            (view,) = await scheduler.list()
            async with asyncio.timeout(60):
                while not (results := await scheduler.results(view.id)) or results[0].ended is None:  # noqa: ASYNC110
                    await asyncio.sleep(0.005)
            await scheduler.cancel(view.id)
    finally:
        await store.close()

    assert [result.status for result in results] == [status]
    assert (len(done.read_text().splitlines()) if done.exists() else 0) in effects


@pytest.mark.parametrize(
    ("write", "status", "runs"),
    [
        (1, "completed", 1),  # it is written down, and nothing else
        (2, "completed", 1),  # it is claimed
        (3, "lost", 0),  # it is started: a run may have been born
        (4, "completed", 1),  # the run is named: it goes on
    ],
)
async def test_of_several_kernels_one_goes_on_with_the_tick_of_another_that_was_killed(
    postgres: Server, schema: str, tmp_path: pathlib.Path, write: int, status: str, runs: int
) -> None:
    """After that write. Both that are left live already, and their clocks strike at once: there is one run at most."""
    done = tmp_path / "effects"
    clocks = [FakeClock(datetime.now(UTC) - timedelta(hours=1)) for _ in range(2)]
    async with AsyncExitStack() as open_ones:
        schedulers = list[AgentScheduler]()
        for name, clock in zip(("two", "three"), clocks, strict=True):
            store = PostgresStore(postgres.dsn, schema=schema, kernel=name)
            runtime = await open_ones.enter_async_context(AgentRuntime(store=store, clock=clock))
            await runtime.adopt()
            schedulers.append(await open_ones.enter_async_context(AgentScheduler(runtime)))
        program = [sys.executable, str(SEVERAL), postgres.dsn, schema, str(write), str(done)]
        child = await asyncio.create_subprocess_exec(*program, env={**os.environ, "PYTHONPATH": str(ROOT)})
        assert await child.wait() == -signal.SIGKILL
        await asyncio.gather(*(clock.advance(7200) for clock in clocks))
        async with asyncio.timeout(60):
            for each in schedulers:
                while [result.status for result in await each.results("job")] != [status]:  # noqa: ASYNC110
                    await asyncio.sleep(0.005)
        seen = [(result.id, result.run) for each in schedulers for result in await each.results("job")]
        assert seen[:1] == seen[1:]
        assert (seen[0][1] is not None) == bool(runs)
        assert len(await store.list(TREES)) == runs
        assert done.exists() == bool(runs)
