"""Kernels killed at every kind of recorded step, and at any moment, in each trip: the promises hold at the end.

`make test` plays the first rounds of one seed, `make chaos` others. One is played again by
`RAMET_CHAOS_SEED=7 pytest tests/chaos -k round-12-`.
"""

from __future__ import annotations

import pathlib
import time

import psycopg
import pytest

from tests.chaos.deadly import Kill
from tests.chaos.rounds import WRITES, Round, kind_of, play
from tests.chaos.seeds import SEED, round_count, round_marks
from tests.support.postgres import Server, fresh_schema, reason_absent, shared

#: Rounds that are a part of `make test`.
FIRST = 20
ROUNDS = round_count(200)
#: After this long no further round begins, however slow the machine: those that are left are told as skipped.
MOST_S = 13 * 60
BEGAN = time.monotonic()


@pytest.fixture(scope="session")
def server(pytestconfig: pytest.Config) -> Server | None:
    """Return one PostgreSQL server for all rounds, or None where there can be none."""
    return None if reason_absent() else shared(pytestconfig)


def _rounds() -> list[object]:
    return [
        pytest.param(number, id=f"round-{number}-{_name(number)}", marks=round_marks(number, FIRST))
        for number in range(ROUNDS)
    ]


def _name(number: int) -> str:
    this = Round(number, SEED)
    return f"{this.trip}-postgres" if this.on_server and this.trip != "postgres" else this.trip


@pytest.mark.parametrize("number", _rounds())
async def test_a_tree_outlives_its_kernels(number: int, tmp_path: pathlib.Path, server: Server | None) -> None:
    """NEG-15: no recorded step runs again, nothing is lost, reserved or left alive, and the tree's status is true."""
    if number >= FIRST and time.monotonic() - BEGAN > MOST_S:
        pytest.skip(f"{MOST_S} s are over; play it alone with -k round-{number}-")
    this = Round(number, SEED)
    if not this.on_server:
        return await play(this, tmp_path, ())
    if server is None:
        pytest.skip(reason_absent())
    schema = fresh_schema()
    try:
        await play(this, tmp_path, (server.dsn, schema))
    finally:
        with psycopg.connect(server.dsn, autocommit=True) as connection:
            connection.execute(f'DROP SCHEMA IF EXISTS "{schema}" CASCADE')


def test_the_rounds_kill_around_every_kind_of_write() -> None:
    """The first 200 rounds kill before and after each kind of write of each trip."""
    struck: dict[str, set[tuple[str, str]]] = {trip: set() for trip in WRITES}
    for number in range(200):
        this = Round(number, SEED)
        for moment in this.moments():
            if isinstance(moment, Kill) and moment.kind != "*":
                struck[kind_of(this.trip)].add((moment.kind, moment.phase))

    for trip, writes in WRITES.items():
        assert struck[trip] == {(kind, phase) for kind in writes for phase in ("before", "after")}, trip
