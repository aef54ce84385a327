"""Processes killed at each write of a tick: its run starts at most once, and its result says what is known."""

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
from ramet.host.journal.journal import TREES
from ramet.store.postgres import PostgresStore
from tests.support.postgres import Server, postgres
from tests.support.postgres_stores import schema
from tests.support.store_addresses import ROOT, run_program_until_killed, store_at

__all__ = ["postgres", "schema"]  # fixtures are used by their names
SCRIPT = pathlib.Path(__file__).parents[1] / "programs" / "own_schedule.py"
SEVERAL = pathlib.Path(__file__).parents[1] / "programs" / "shared_schedule.py"


#: When it is killed, and at which write, or in the middle of its function; how its tick ended, how often it was called.
KILLS: list[tuple[str, int, str, int]] = [
    ("after", 1, "completed", 1),  # it is written down, and nothing else
    ("before", 2, "completed", 1),
    ("after", 2, "completed", 1),  # it is claimed
    ("before", 3, "completed", 1),
    ("after", 3, "completed", 1),  # its run has an id, and may have been born or not
    ("once", 0, "lost", 1),  # it works: nobody knows how far it was
    ("repeatable", 0, "completed", 2),
    ("before", 4, "completed", 1),  # it has ended
    ("after", 4, "completed", 1),  # that is noted
]


@pytest.mark.parametrize(
    ("store_address", "kill_point", "write", "status", "effects"),
    [("sqlite", *kill) for kill in KILLS] + [("postgres", *kill) for kill in KILLS[::2]],
    indirect=["store_address"],
)
async def test_a_tick_has_one_run_whenever_its_process_is_killed(
    store_address: str, tmp_path: pathlib.Path, kill_point: str, write: int, status: str, effects: int
) -> None:
    """AC-S0-9, NEG-15: the next process, with another `__main__`, finds the function and does what is left to do."""
    effects_file = tmp_path / "effects"
    await run_program_until_killed(SCRIPT, store_address, kill_point, write, effects_file)

    async with AgentRuntime(store=store_at(store_address)) as runtime, AgentScheduler(runtime) as scheduler:
        async with asyncio.timeout(180):
            while not (results := await scheduler.results("job")) or results[0].ended is None:  # noqa: ASYNC110
                await asyncio.sleep(0.005)
        (view,) = await scheduler.list()
        assert runtime.journal is not None
        trees = await runtime.journal.store.list(TREES)

    assert [(result.status, result.run) for result in results] == [(status, trees[0].key)]
    assert (view.running, len(trees), len(effects_file.read_text().splitlines())) == (0, 1, effects)
    assert (results[0].error is not None and "not to be called again" in results[0].error.message) == (status == "lost")


@pytest.mark.parametrize(
    ("write", "adopts"),
    [
        (1, False),  # it is written down, and nothing else
        (2, False),  # it is claimed
        (3, False),  # its run has an id, and may have been born or not
        (3, True),
        (4, False),  # it has ended, and that is noted
    ],
)
async def test_one_of_two_kernels_continues_the_tick_of_a_killed_kernel(
    postgres: Server, schema: str, tmp_path: pathlib.Path, write: int, adopts: bool
) -> None:
    """The kernel is killed after that write.

    The clocks of both others reach the tick together, and there is one run.
    """
    effects = tmp_path / "effects"
    clocks = [FakeClock(datetime.now(UTC) - timedelta(hours=1)) for _ in range(2)]
    async with AsyncExitStack() as open_ones:
        schedulers = list[AgentScheduler]()
        for name, clock in zip(("two", "three"), clocks, strict=True):
            store = PostgresStore(postgres.dsn, schema=schema, kernel=name)
            runtime = await open_ones.enter_async_context(AgentRuntime(store=store, clock=clock))
            if adopts:
                await runtime.adopt()
            schedulers.append(await open_ones.enter_async_context(AgentScheduler(runtime)))
        program = [sys.executable, str(SEVERAL), postgres.dsn, schema, str(write), str(effects)]
        child = await asyncio.create_subprocess_exec(*program, env={**os.environ, "PYTHONPATH": str(ROOT)})
        assert await child.wait() == -signal.SIGKILL
        await asyncio.gather(*(clock.advance(7200) for clock in clocks))
        async with asyncio.timeout(180):
            for each in schedulers:
                while [result.status for result in await each.results("job")] != ["completed"]:
                    await asyncio.gather(*(clock.advance(1) for clock in clocks))
        one, other = [[(result.id, result.run) for result in await each.results("job")] for each in schedulers]
        assert one == other
        assert [each.key for each in await store.list(TREES)] == [run for _, run in one]
        assert effects.read_text() == "done\n"
