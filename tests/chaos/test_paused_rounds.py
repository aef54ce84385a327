"""A tree that its owner pauses, on kernels that are killed: it stays paused, and ends as an unpaused one.

One is played again by `RAMET_CHAOS_SEED=7 pytest tests/chaos -k paused-12-`.
"""

from __future__ import annotations

import os
import pathlib
import signal

import pytest

from tests.chaos.checks import read_events
from tests.chaos.kernels import inheriting_orphans, start
from tests.chaos.limited_rounds import counting_provider
from tests.chaos.paused import SCRIPT, found
from tests.chaos.paused_rounds import MOMENTS, PausedRound, look, play
from tests.chaos.test_limited_rounds import SEED, USUAL, schema_of, server
from tests.support.postgres import Server
from tests.support.waiting import eventually

__all__ = ["server"]  # fixtures are used by their names

FIRST = 2 * len(MOMENTS)
ROUNDS = int(os.environ.get("RAMET_CHAOS_ROUNDS", "56"))


def _rounds() -> list[object]:
    made = list[object]()
    for number in range(ROUNDS):
        this = PausedRound(number, SEED)
        marks = [pytest.mark.slow, *([pytest.mark.chaos] if number >= FIRST or SEED != USUAL else [])]
        name = f"paused-{number}-{this.trip}{'-postgres' if this.on_server else ''}"
        made.append(pytest.param(number, id=name, marks=marks))
    return made


@pytest.mark.parametrize("number", _rounds())
async def test_a_pause_holds_over_kills(number: int, tmp_path: pathlib.Path, server: Server | None) -> None:
    """A tree is paused after a kill exactly if its record says so, and asks nothing before its pause ends."""
    this = PausedRound(number, SEED)
    if not this.on_server:
        return await play(this, tmp_path, ())
    with schema_of(server) as given:
        await play(this, tmp_path, given)


@pytest.mark.slow
async def test_a_kernel_that_takes_over_holds_the_pause(tmp_path: pathlib.Path, server: Server | None) -> None:
    """The owner of a paused tree is killed: the other kernel takes the tree over paused, and lets it go on."""
    PausedRound(0, SEED).prepare(tmp_path)
    with schema_of(server) as given:
        async with counting_provider(tmp_path, SCRIPT) as model:
            with inheriting_orphans() as orphans:
                other = await start("paused host taken over", tmp_path, None, (*given, "other"))
                orphans.expect(other.pid)
                try:
                    await eventually((tmp_path / "standing by").exists, within_s=60)
                    killed = await start("paused host", tmp_path, None, (*given, "killed"))
                    assert await killed.end() == -signal.SIGKILL, killed.words
                    assert await other.end() == 0, other.words
                finally:
                    other.kill()
                await orphans.wait_ended()
        trees = await read_events(tmp_path, given)
        assert found(tmp_path) == [False, True]
        look(tmp_path, trees, model)
