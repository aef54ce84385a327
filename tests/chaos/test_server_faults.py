"""PostgreSQL fails under a tree: its sessions are ended, it crashes, it is stopped, and kernels die meanwhile.

Each moment is a question to the model, drawn by a seed: `RAMET_CHAOS_SEED=7 pytest tests/chaos/test_server_faults.py`.
`make test` plays one of each kind, `make chaos` others.
"""

from __future__ import annotations

import asyncio
import os
import pathlib
import random
import signal
from collections.abc import Awaitable, Callable, Iterator, Sequence

import psycopg
import pytest

from tests.chaos.checks import Death, check, check_notices, death_of, effects, lines, read
from tests.chaos.kernels import Kernel, inheriting_orphans, start
from tests.chaos.planned import NOTES
from tests.support.postgres import Server, fresh_schema, own_postgres, postgres
from tests.support.waiting import eventually

__all__ = ["own_postgres", "postgres"]

pytestmark = pytest.mark.slow

USUAL = 1  #: the seed of `make test`
SEED = int(os.environ.get("RAMET_CHAOS_SEED", str(USUAL)))
QUESTIONS = 14  #: that the trip asks its model, each of them on record before the next step
SEEDS = [
    pytest.param(SEED, marks=[pytest.mark.chaos] if SEED != USUAL else []),
    *(pytest.param(SEED * 1_000 + n, marks=pytest.mark.chaos) for n in range(9)),
]


@pytest.fixture
def schema(postgres: Server) -> Iterator[str]:
    """A schema of this test's own, on the server of all."""
    schema = fresh_schema()
    yield schema
    with psycopg.connect(postgres.dsn, autocommit=True) as connection:
        connection.execute(f'DROP SCHEMA IF EXISTS "{schema}" CASCADE')


async def live(
    folder: pathlib.Path, place: Sequence[str], moments: Sequence[int], fault: Callable[[Kernel], Awaitable[object]]
) -> Kernel:
    """A kernel's life, with a fault whenever it has asked so many questions; whatever happens, it ends by itself."""
    kernel = await start("models", folder, None, place)
    for moment in moments:
        await eventually(lambda n=moment: _asked(folder) >= n or kernel.process.returncode is not None)  # type: ignore[misc]
        if kernel.process.returncode is None:
            await fault(kernel)
    await kernel.end()
    return kernel


async def look(folder: pathlib.Path, place: Sequence[str], deaths: Sequence[Death] = ()) -> None:
    """What holds in the end: all of it was done, once, and each question asked once unless a kernel died over it."""
    story = check(folder, await read(folder, place), deaths)
    check_notices(story)
    assert story.root.result is not None
    assert (str(story.root.result.status), story.root.result.value) == ("completed", "the lead has heard of c")
    assert sorted(effects(folder)) == NOTES
    asked = lines(folder / "asked")
    assert sorted(set(asked)) == sorted(asked) or deaths
    assert len(set(asked)) == QUESTIONS


@pytest.mark.parametrize("seed", SEEDS)
async def test_sessions_that_are_ended_are_taken_up_again(
    seed: int, tmp_path: pathlib.Path, postgres: Server, schema: str
) -> None:
    """At any moment the server ends the kernel's session, the one that reads, or both: the same kernel goes on."""
    dice = random.Random(seed)  # noqa: S311, RUF100 - dice, no secrets
    whose = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE %s"
    ended = 0

    async def end_sessions(_: Kernel) -> None:
        nonlocal ended
        with psycopg.connect(postgres.dsn, autocommit=True) as connection:
            found = connection.execute(whose, [dice.choice(("ramet kernel%", "ramet reader%", "ramet %"))]).fetchall()
        ended += len(found)

    place = (postgres.dsn, schema)
    with inheriting_orphans() as orphans:
        kernel = await live(tmp_path, place, sorted(dice.sample(range(1, QUESTIONS), 5)), end_sessions)
        await orphans.gone()

    assert kernel.process.returncode == 0, kernel.words
    assert ended
    await look(tmp_path, place)


@pytest.mark.parametrize("seed", SEEDS)
async def test_a_server_that_crashes_is_waited_for(seed: int, tmp_path: pathlib.Path, own_postgres: Server) -> None:
    """It stops at once and starts again, in the middle of a tree: the same kernel goes on where it was."""
    dice = random.Random(seed)  # noqa: S311, RUF100 - dice, no secrets

    place = (own_postgres.dsn, "crashed")
    with inheriting_orphans() as orphans:

        async def crash(_: Kernel) -> None:
            own_postgres.crash()
            own_postgres.begin()
            orphans.expect(own_postgres.pid)
            await eventually(own_postgres.is_ready)

        kernel = await live(tmp_path, place, sorted(dice.sample(range(1, QUESTIONS), 2)), crash)
        await orphans.gone()

    assert kernel.process.returncode == 0, kernel.words
    await look(tmp_path, place)


@pytest.mark.parametrize("seed", SEEDS)
async def test_a_kernel_that_dies_while_the_server_is_down_is_followed_by_another(
    seed: int, tmp_path: pathlib.Path, own_postgres: Server
) -> None:
    """One that is started meanwhile says StoreFailed and does nothing; the next goes on when the server is there."""
    dice = random.Random(seed)  # noqa: S311, RUF100 - dice, no secrets
    place = (own_postgres.dsn, "both")

    async def both_die(kernel: Kernel) -> None:
        own_postgres.crash()
        kernel.kill()
        await kernel.end()

    with inheriting_orphans() as orphans:
        await live(tmp_path, place, [dice.randrange(1, QUESTIONS)], both_die)
        await orphans.gone()
        asked = _asked(tmp_path)
        meanwhile = await start("models", tmp_path, None, place)
        assert await meanwhile.end() == 1
        assert "StoreFailed" in meanwhile.words
        assert _asked(tmp_path) == asked

        own_postgres.start()
        orphans.expect(own_postgres.pid)
        deaths = [death_of(tmp_path, await read(tmp_path, place))]
        kernel = await start("models", tmp_path, None, place)
        assert await kernel.end() == 0, kernel.words
        await orphans.gone()
    await look(tmp_path, place, deaths)


@pytest.mark.parametrize("seconds", [0.5, pytest.param(5, marks=pytest.mark.chaos)])
async def test_a_server_that_is_stopped_is_waited_for(
    seconds: float, tmp_path: pathlib.Path, own_postgres: Server
) -> None:
    """SIGSTOP of PostgreSQL in the middle of a tree: nobody acts meanwhile, and it goes on when the server does."""

    async def stop(kernel: Kernel) -> None:
        own_postgres.signal_all(signal.SIGSTOP)
        try:
            with pytest.raises(TimeoutError):  # It cannot end: its next step cannot be on record.
                await asyncio.wait_for(kernel.process.wait(), seconds)
        finally:
            own_postgres.signal_all(signal.SIGCONT)

    place = (own_postgres.dsn, "stopped")
    with inheriting_orphans() as orphans:
        kernel = await live(tmp_path, place, [3], stop)
        await orphans.gone()

    assert kernel.process.returncode == 0, kernel.words
    await look(tmp_path, place)


def _asked(folder: pathlib.Path) -> int:
    return len(lines(folder / "asked"))
