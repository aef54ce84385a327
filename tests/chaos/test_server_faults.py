"""PostgreSQL fails under a tree: its sessions end, it crashes, it is stopped, and kernels die meanwhile.

Each moment is a question to the model, drawn by a seed: `RAMET_CHAOS_SEED=7 pytest tests/chaos/test_server_faults.py`.
`make test` plays one of each kind, `make chaos` others.
"""

from __future__ import annotations

import asyncio
import pathlib
import random
import signal
from collections.abc import Awaitable, Callable, Iterator, Sequence

import psycopg
import pytest

from tests.chaos.checks import Death, check, check_notices, death_of, effects, lines, read_events
from tests.chaos.kernels import Kernel, inheriting_orphans, start
from tests.chaos.planned import NOTES
from tests.chaos.seeds import SEED, USUAL, round_count
from tests.support.postgres import Server, fresh_schema, own_postgres, postgres
from tests.support.waiting import eventually

__all__ = ["own_postgres", "postgres"]

pytestmark = pytest.mark.slow

QUESTIONS = 14  #: that the trip asks its model, each of them on record before the next step
SEEDS = [
    pytest.param(SEED, marks=[pytest.mark.chaos] if SEED != USUAL else []),
    *(pytest.param(SEED * 1_000 + n, marks=pytest.mark.chaos) for n in range(min(9, round_count(9)))),
]


@pytest.fixture
def schema(postgres: Server) -> Iterator[str]:
    """Schema of this test's own, on the shared server."""
    schema = fresh_schema()
    yield schema
    with psycopg.connect(postgres.dsn, autocommit=True) as connection:
        connection.execute(f'DROP SCHEMA IF EXISTS "{schema}" CASCADE')


async def run_with_faults(
    folder: pathlib.Path, server: Sequence[str], moments: Sequence[int], fault: Callable[[Kernel], Awaitable[object]]
) -> Kernel:
    """Run a kernel to its end, with a fault whenever it has asked so many questions."""
    kernel = await start("models", folder, None, server)
    for moment in moments:
        await eventually(lambda n=moment: _count_questions(folder) >= n or kernel.process.returncode is not None)  # type: ignore[misc]
        if kernel.process.returncode is None:
            await fault(kernel)
    await kernel.end()
    return kernel


async def check_outcome(folder: pathlib.Path, server: Sequence[str], deaths: Sequence[Death] = ()) -> None:
    """Check that every effect happened once, and that each question was asked once if no kernel died."""
    story = check(folder, await read_events(folder, server), deaths)
    check_notices(story)
    assert story.root.result is not None
    assert (str(story.root.result.status), story.root.result.value) == ("completed", "the lead has heard of c")
    assert sorted(effects(folder)) == NOTES
    asked = lines(folder / "asked")
    assert sorted(set(asked)) == sorted(asked) or deaths
    assert len(set(asked)) == QUESTIONS


@pytest.mark.parametrize("seed", SEEDS)
async def test_a_kernel_continues_after_its_database_sessions_end(
    seed: int, tmp_path: pathlib.Path, postgres: Server, schema: str
) -> None:
    """A kernel finishes its tree although the server ends its session, the reader's session, or both, at any moment."""
    dice = random.Random(seed)  # noqa: S311, RUF100 - dice, no secrets
    whose = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE %s"
    ended = 0

    async def end_sessions(_: Kernel) -> None:
        nonlocal ended
        with psycopg.connect(postgres.dsn, autocommit=True) as connection:
            found = connection.execute(whose, [dice.choice(("ramet kernel%", "ramet reader%", "ramet %"))]).fetchall()
        ended += len(found)

    server = (postgres.dsn, schema)
    with inheriting_orphans() as orphans:
        kernel = await run_with_faults(tmp_path, server, sorted(dice.sample(range(1, QUESTIONS), 5)), end_sessions)
        await orphans.wait_ended()

    assert kernel.process.returncode == 0, kernel.words
    assert ended
    await check_outcome(tmp_path, server)


@pytest.mark.parametrize("seed", SEEDS)
async def test_a_kernel_waits_for_a_crashed_server(seed: int, tmp_path: pathlib.Path, own_postgres: Server) -> None:
    """A kernel continues its tree after the server crashed and started again."""
    dice = random.Random(seed)  # noqa: S311, RUF100 - dice, no secrets

    server = (own_postgres.dsn, "crashed")
    with inheriting_orphans() as orphans:

        async def crash(_: Kernel) -> None:
            own_postgres.crash()
            own_postgres.begin()
            orphans.expect(own_postgres.pid)
            await eventually(own_postgres.is_ready)

        kernel = await run_with_faults(tmp_path, server, sorted(dice.sample(range(1, QUESTIONS), 2)), crash)
        await orphans.wait_ended()

    assert kernel.process.returncode == 0, kernel.words
    await check_outcome(tmp_path, server)


@pytest.mark.parametrize("seed", SEEDS)
async def test_a_tree_survives_a_kernel_that_dies_with_its_server(
    seed: int, tmp_path: pathlib.Path, own_postgres: Server
) -> None:
    """A kernel started while the server is down ends with StoreFailed and does nothing.

    The next kernel finishes the tree.
    """
    dice = random.Random(seed)  # noqa: S311, RUF100 - dice, no secrets
    server = (own_postgres.dsn, "both")

    async def both_die(kernel: Kernel) -> None:
        own_postgres.crash()
        kernel.kill()
        await kernel.end()

    with inheriting_orphans() as orphans:
        await run_with_faults(tmp_path, server, [dice.randrange(1, QUESTIONS)], both_die)
        await orphans.wait_ended()
        asked = _count_questions(tmp_path)
        meanwhile = await start("models", tmp_path, None, server)
        assert await meanwhile.end() == 1
        assert "StoreFailed" in meanwhile.words
        assert _count_questions(tmp_path) == asked

        own_postgres.start()
        orphans.expect(own_postgres.pid)
        deaths = [death_of(tmp_path, await read_events(tmp_path, server))]
        kernel = await start("models", tmp_path, None, server)
        assert await kernel.end() == 0, kernel.words
        await orphans.wait_ended()
    await check_outcome(tmp_path, server, deaths)


@pytest.mark.parametrize("seconds", [0.5, pytest.param(5, marks=pytest.mark.chaos)])
async def test_a_kernel_waits_for_a_stopped_server(
    seconds: float, tmp_path: pathlib.Path, own_postgres: Server
) -> None:
    """A kernel takes no step while PostgreSQL is stopped by SIGSTOP, and continues after SIGCONT."""

    async def stop(kernel: Kernel) -> None:
        own_postgres.signal_all(signal.SIGSTOP)
        try:
            with pytest.raises(TimeoutError):  # It cannot end: its next step cannot be on record.
                await asyncio.wait_for(kernel.process.wait(), seconds)
        finally:
            own_postgres.signal_all(signal.SIGCONT)

    server = (own_postgres.dsn, "stopped")
    with inheriting_orphans() as orphans:
        kernel = await run_with_faults(tmp_path, server, [3], stop)
        await orphans.wait_ended()

    assert kernel.process.returncode == 0, kernel.words
    await check_outcome(tmp_path, server)


def _count_questions(folder: pathlib.Path) -> int:
    return len(lines(folder / "asked"))
