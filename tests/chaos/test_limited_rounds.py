"""A tree that pauses at a limit, on kernels that are killed: a limit of 5, raised by 3, gives exactly 8 requests.

`make test` plays the first rounds of one seed, `make chaos` others. One is played again by
`RAMET_CHAOS_SEED=7 pytest tests/chaos -k limited-12-`.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import pathlib
import re
import signal
import sys
import time
from collections.abc import Iterator

import psycopg
import pytest

from ramet.core import events
from tests.chaos.checks import read_events, the_tree
from tests.chaos.deadly import Kill
from tests.chaos.kernels import ROOT, inheriting_orphans, start, taken_over
from tests.chaos.limited import GIVEN, RAISE
from tests.chaos.limited_rounds import (
    INTERESTING,
    PHASES,
    LimitedRound,
    calls_at_raises,
    check_bounds,
    counting_provider,
    look,
    play,
)
from tests.chaos.seeds import SEED, USUAL, round_count, round_marks
from tests.support.postgres import Server, fresh_schema, reason_absent, shared

#: Rounds that are a part of `make test`.
FIRST = 30
ROUNDS = round_count(200)
#: After this long no further round begins, however slow the machine: those that are left are told as skipped.
MOST_S = 10 * 60
BEGAN = time.monotonic()


@pytest.fixture(scope="session")
def server(pytestconfig: pytest.Config) -> Server | None:
    """Return one PostgreSQL server for all rounds, or None where there can be none."""
    return None if reason_absent() else shared(pytestconfig)


@contextlib.contextmanager
def schema_of(server: Server | None) -> Iterator[tuple[str, str]]:
    """Yield the address and a new schema of the server. Skips the test where there is no server."""
    if server is None:
        pytest.skip(reason_absent())
    schema = fresh_schema()
    try:
        yield server.dsn, schema
    finally:
        with psycopg.connect(server.dsn, autocommit=True) as connection:
            connection.execute(f'DROP SCHEMA IF EXISTS "{schema}" CASCADE')


def _rounds() -> list[object]:
    found = list[object]()
    for number in range(ROUNDS):
        this = LimitedRound(number, SEED)
        marks = round_marks(number, FIRST)
        name = f"limited-{number}-{this.trip}{'-postgres' if this.on_server else ''}"
        found.append(pytest.param(number, id=name, marks=marks))
    return found


@pytest.mark.parametrize("number", _rounds())
async def test_a_limit_holds_over_kills(number: int, tmp_path: pathlib.Path, server: Server | None) -> None:
    """Each limit is used in full and never exceeded, and each raise counts once, whenever kernels are killed."""
    if number >= FIRST and time.monotonic() - BEGAN > MOST_S:
        pytest.skip(f"{MOST_S} s are over; play it alone with -k limited-{number}-")
    this = LimitedRound(number, SEED)
    if not this.on_server:
        return await play(this, tmp_path, ())
    with schema_of(server) as given:
        await play(this, tmp_path, given)


@pytest.mark.slow
@pytest.mark.parametrize("trip", ["one", "nested", "hundred", "talk"])
async def test_a_limit_of_five_raised_by_three_sends_exactly_eight_requests(trip: str, tmp_path: pathlib.Path) -> None:
    """Without kills no request is lost: the server sees 5, then 8, and in the end one for each reply."""
    async with counting_provider(tmp_path) as model:
        with inheriting_orphans() as orphans:
            kernel = await start(f"limited {trip}", tmp_path)
            assert await kernel.end() == 0, kernel.words
            await orphans.wait_ended()
    above = 1 if trip == "nested" else 0
    assert model.marks == {"first": GIVEN + above, "last": GIVEN + RAISE + above}
    story = look(trip, tmp_path, await read_events(tmp_path), model)
    assert model.count == sum(each["type"] == "ai" for run in story.runs.values() for each in run.messages)


@pytest.mark.skipif(os.getuid() != 0, reason="only root can be another machine")
@pytest.mark.slow
async def test_a_conversation_that_was_given_up_at_a_limit_is_no_crash(tmp_path: pathlib.Path) -> None:
    """The kernel ends the process at the limit and is killed at once. The next one goes on from the record."""
    (tmp_path / "dies after a kill").touch()
    async with counting_provider(tmp_path) as model:
        with inheriting_orphans() as orphans:
            killed = await start("limited outliving", tmp_path)
            assert await killed.end() == -signal.SIGKILL, killed.words
            kernel = await start("limited outliving", tmp_path)
            assert await kernel.end() == 0, kernel.words
            await orphans.wait_ended()
    look("talk", tmp_path, await read_events(tmp_path), model)


MOMENTS = [
    ("one", Kill("before", "limit_paused", 1)),
    ("nested", Kill("acked", "limit_paused", 2)),
    ("hundred", Kill("before", "limits_raised", 1)),
    ("nested", Kill("acked", "limits_raised", 1)),
    ("one", Kill("after", "limits_raised", 1)),
    ("hundred", Kill("before", "model_asked", 6)),
    ("one", Kill("acked", "model_asked", 8)),
]


@pytest.mark.slow
@pytest.mark.parametrize(("trip", "kill"), MOMENTS, ids=str)
async def test_a_kernel_that_takes_over_is_asked_to_raise(
    trip: str, kill: Kill, tmp_path: pathlib.Path, server: Server | None
) -> None:
    """One of two kernels is killed. The other one takes the tree over, and a repeated raise counts once."""
    with schema_of(server) as given:
        async with counting_provider(tmp_path) as model:
            async with taken_over(f"limited {trip}", tmp_path, kill, given):
                check_bounds(await read_events(tmp_path, given), model)
        look(trip, tmp_path, await read_events(tmp_path, given), model)


@pytest.mark.slow
@pytest.mark.parametrize("phase", PHASES)
async def test_a_command_that_is_repeated_after_a_kill_raises_once(phase: str, tmp_path: pathlib.Path) -> None:
    """The kernel dies around the record of a raise that `ramet raise` asked for. The same command works later."""
    (tmp_path / "alone").touch()
    async with counting_provider(tmp_path) as model:
        with inheriting_orphans() as orphans:
            kernel = await start("limited one", tmp_path, Kill(phase, "limits_raised", 1))
            orphans.expect(kernel.pid)
            await _paused(tmp_path, GIVEN)
            run = (tmp_path / "begun").read_text()
            code, words = await _raise(run, tmp_path)
            assert await kernel.end() == -signal.SIGKILL, kernel.words
            assert code != 0 or phase == "after", "the answer came before the record"
            assert "Traceback" not in words
            again = await start("limited one", tmp_path)
            orphans.expect(again.pid)
            await _paused(tmp_path, GIVEN + (0 if phase == "before" else RAISE), again=True)
            for _ in range(3):
                code, words = await _raise(run, tmp_path)
                assert code == 0, words
                assert re.search(r"\b8\b", words), words
            await _paused(tmp_path, GIVEN + RAISE)
            again.kill()
            await again.end()
            await orphans.wait_ended()
    calls = calls_at_raises(the_tree(await read_events(tmp_path / ".ramet")))[""]
    assert (calls.limit, calls.asked) == (GIVEN + RAISE, GIVEN + RAISE)
    assert calls.replied <= model.count <= calls.asked, "a call that the kill cut off counts, sent or not"


async def _paused(folder: pathlib.Path, limit: int, *, again: bool = False) -> None:
    """Wait until a pause at so many calls is on record, and the kernel listens; `again`, after its tree is resumed."""
    async with asyncio.timeout(180):
        while not (await _is_paused(folder, limit) and (not again or await _answers(folder))):  # noqa: ASYNC110 - of
            await asyncio.sleep(0.02)  # another process


async def _is_paused(folder: pathlib.Path, limit: int) -> bool:
    recorded = [each for tree_events in (await read_events(folder / ".ramet")).values() for each in tree_events]
    asked = sum(isinstance(each, events.ModelAsked) for each in recorded)
    moving = (events.LimitPaused, events.LimitsRaised, events.ModelAsked)
    last = next((each for each in reversed(recorded) if isinstance(each, moving)), None)
    return asked == limit and isinstance(last, events.LimitPaused) and (folder / "begun").exists()


async def _answers(folder: pathlib.Path) -> bool:
    """Return whether the kernel of a folder shows its run as paused."""
    code, words = await _command("ps", "--dir", str(folder))
    return code == 0 and "paused" in words


async def _raise(run: str, folder: pathlib.Path) -> tuple[int, str]:
    return await _command("raise", run, "--calls", str(RAISE), "--key", "once", "--dir", str(folder))


async def _command(*words: str) -> tuple[int, str]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "ramet", *words),
        cwd=ROOT,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    out, _ = await process.communicate()
    return process.returncode or 0, out.decode()


def test_the_rounds_kill_around_each_interesting_write() -> None:
    """The first rounds kill before, at and after each kind of write that a limit is about, on both stores."""
    struck = set[tuple[str, str]]()
    trips = set[tuple[str, bool]]()
    for number in range(FIRST):
        this = LimitedRound(number, USUAL)
        trips.add((this.trip, this.on_server))
        struck |= {(each.kind, each.phase) for each in this.moments() if isinstance(each, Kill)}

    assert {(kind, phase) for kind in INTERESTING for phase in PHASES} <= struck
    assert trips == {(trip, on_server) for trip in ("one", "nested", "hundred", "talk") for on_server in (False, True)}
