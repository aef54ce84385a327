"""A tree that its owner pauses, on kernels that are killed: it stays paused, and ends as an unpaused one.

One is played again by `RAMET_CHAOS_SEED=7 pytest tests/chaos -k paused-12-`.
"""

from __future__ import annotations

import os
import pathlib

import pytest

from tests.chaos.checks import read_events
from tests.chaos.deadly import Kill
from tests.chaos.kernels import taken_over
from tests.chaos.limited_rounds import counting_provider
from tests.chaos.paused import found, script
from tests.chaos.paused_rounds import MOMENTS, PHASES, PROCESS_KILLED, TRIPS, PausedRound, look, play
from tests.chaos.seeds import SEED, USUAL, round_count, round_marks
from tests.chaos.test_limited_rounds import schema_of, server
from tests.support.postgres import Server

__all__ = ["server"]  # fixtures are used by their names

FIRST = 2 * len(MOMENTS)
ROUNDS = round_count(56)
_only_root = pytest.mark.skipif(os.getuid() != 0, reason="only root can be another machine")


def _rounds() -> list[object]:
    made = list[object]()
    for number in range(ROUNDS):
        this = PausedRound.draw(number, SEED)
        marks = round_marks(number, FIRST)
        marks += [_only_root] if this.trip == "outliving" else []
        name = f"paused-{number}-{this.trip}{'-postgres' if this.on_server else ''}"
        made.append(pytest.param(number, id=name, marks=marks))
    return made


@pytest.mark.parametrize("number", _rounds())
async def test_a_pause_holds_over_kills(number: int, tmp_path: pathlib.Path, server: Server | None) -> None:
    """A tree is paused after a kill exactly if its record says so, and asks nothing before its pause ends."""
    this = PausedRound.draw(number, SEED)
    if not this.on_server:
        return await play(this, tmp_path, ())
    with schema_of(server) as given:
        await play(this, tmp_path, given)


@_only_root
@pytest.mark.slow
@pytest.mark.parametrize("kill", [PROCESS_KILLED, *(Kill(phase, "sandbox_given_up", 1) for phase in PHASES)], ids=str)
async def test_a_conversation_whose_process_was_given_up_goes_on(kill: Kill, tmp_path: pathlib.Path) -> None:
    """A kernel that ended processes at a pause is killed: the next one goes on from the record, and sees no crash."""
    this = PausedRound(name="given up", trip="outliving", kill=kill, cuts=True, after=3)

    await play(this, tmp_path, ())


@pytest.mark.slow
async def test_a_kernel_that_takes_over_holds_the_pause(tmp_path: pathlib.Path, server: Server | None) -> None:
    """The owner of a paused tree is killed: the other kernel takes the tree over paused, and lets it go on."""
    this = PausedRound(name="taken over", trip="host", kill=None, after=5)
    this.prepare(tmp_path)
    with schema_of(server) as given:
        async with counting_provider(tmp_path, script("host")) as model:
            async with taken_over("paused host", tmp_path, None, given):
                pass
        trees = await read_events(tmp_path, given)
        assert found(tmp_path) == [False, True]
        look(this, tmp_path, trees, model)


def test_the_rounds_play_each_trip_and_each_moment_on_both_stores() -> None:
    """The first rounds kill at each moment, and play each trip on both stores, and with work that the pause cuts."""
    rounds = [PausedRound.draw(number, USUAL) for number in range(FIRST)]

    assert {each.kill for each in rounds} == set(MOMENTS)
    assert {(each.trip, each.on_server) for each in rounds} == {
        (trip, on_server) for trip in TRIPS for on_server in (False, True)
    }
    assert {each.cuts for each in rounds} == {False, True}
