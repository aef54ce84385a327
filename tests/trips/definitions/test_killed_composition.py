"""Compositions are durable between steps: after a kill, another process continues and repeats no ended step."""

from __future__ import annotations

import asyncio
import pathlib
import signal
import sys
from asyncio.subprocess import PIPE
from collections import Counter
from typing import Any, NamedTuple

import msgspec
import pytest

from ramet.core.errors import StoreInUse
from ramet.core.events import Event, RunEnded, RunSpawned, decode
from ramet.store.contract import Store
from ramet.store.postgres import PostgresStore
from ramet.store.sqlite.store import SqliteStore
from tests.support.halved import halved
from tests.support.postgres import Server, fresh_schema, postgres

__all__ = ["postgres"]  # fixtures are used by their names

PROGRAM = pathlib.Path(__file__).parents[1] / "programs" / "composition.py"
#: Path of a step → the words that it leaves.
WORDS = {
    "main/first": "first",
    "main/parallel/left": "left",
    "main/parallel/right": "right",
    "main/together": "together",
    "main/graph/more": "more 5",
    "main/graph/more-2": "more 6",
    "main/last": "last",
}
PATHS = {*WORDS, "main", "main/parallel", "main/graph", "main/graph/write"}
#: Behind so many events of an undisturbed life, which has 65 or so, it is killed in any case.
EVENTS = 58


class Outcome(NamedTuple):
    """The exit code of the program, and what it printed."""

    code: int
    output: dict[str, Any]


async def run_program(folder: pathlib.Path, shape: str, events: int, dsn: tuple[str, ...] = ()) -> Outcome:
    """Run one process on the folder until it kills itself after some events, or ends."""
    backend = "local" if shape == "sandboxed" else "none"
    arguments = (str(folder), shape, str(events), backend, *dsn)
    child = await asyncio.create_subprocess_exec(sys.executable, PROGRAM, *arguments, stdout=PIPE)
    assert child.stdout is not None
    output = await child.stdout.read()
    return Outcome(await child.wait(), msgspec.json.decode(output) if output else {})


async def recorded_events(store: Store) -> list[Event]:
    """Return each event of a store, once the server knows that its former owner is dead."""
    while True:
        try:
            await store.open()
            break
        except StoreInUse:
            await asyncio.sleep(0.01)
    try:
        return [decode(each.data) for each in await store.read(limit=10_000)]
    finally:
        await store.close()


def effects(folder: pathlib.Path) -> Counter[str]:
    """Return how often each step wrote each line."""
    file = folder / "effects"
    return Counter(file.read_text().splitlines()) if file.exists() else Counter()


async def kill_and_resume(folder: pathlib.Path, store: Store, shape: str, at: list[int], *dsn: str) -> None:
    """Kill one process after another after some events.

    Then check that the last completes as if nothing had happened.
    """
    for events in at:
        assert (await run_program(folder, shape, events, dsn)).code == -signal.SIGKILL
    ended_paths = {event.path for event in await recorded_events(store) if isinstance(event, RunEnded)}
    before = effects(folder)

    last = await run_program(folder, shape, 0, dsn)

    expected = [7, "it is written"] if shape == "mixed" else [1, 1, 2, 3]
    assert (last.code, last.output["status"], last.output["value"]) == (0, "completed", expected)
    spawn_counts = Counter(event.path for event in await recorded_events(store) if isinstance(event, RunSpawned))
    assert set(spawn_counts.values()) == {1}
    if shape == "mixed":
        assert set(spawn_counts) == PATHS
        repeated_paths = {
            path for path, word in WORDS.items() if effects(folder)[f"end {word}"] > before[f"end {word}"]
        }
        assert repeated_paths == set(WORDS) - ended_paths
    assert last.output["agents"] == len(spawn_counts) - 1


@pytest.mark.parametrize("at", [[1], [9], [25], [40, 12]], ids=str)
async def test_a_composition_resumes_after_kills_between_and_inside_steps(
    tmp_path: pathlib.Path, at: list[int]
) -> None:
    """The kill is before the first step, inside branches, in the graph, or twice: no ended step runs again."""
    await kill_and_resume(tmp_path, SqliteStore(tmp_path / "journal.db"), "mixed", at)


@pytest.mark.parametrize("at", [[-1], [-3], [-9]], ids=str)
async def test_a_step_without_a_recorded_result_runs_again(tmp_path: pathlib.Path, at: list[int]) -> None:
    """The step's turn has ended and its result is not recorded: the step is called again."""
    await kill_and_resume(tmp_path, SqliteStore(tmp_path / "journal.db"), "mixed", at)


@pytest.mark.parametrize("at", [[6], [13]], ids=str)
async def test_a_composition_of_sandboxed_steps_resumes(tmp_path: pathlib.Path, at: list[int]) -> None:
    """Each step is in a process of its own, under the policy of the chain."""
    await kill_and_resume(tmp_path, SqliteStore(tmp_path / "journal.db"), "sandboxed", at)


@pytest.mark.parametrize("at", [[14], [33]], ids=str)
async def test_a_composition_resumes_from_postgresql(tmp_path: pathlib.Path, postgres: Server, at: list[int]) -> None:
    """Another process continues from a journal on a server."""
    schema = fresh_schema()
    store = PostgresStore(postgres.dsn, schema=schema)

    await kill_and_resume(tmp_path, store, "mixed", at, postgres.dsn, schema)


@pytest.mark.slow
@pytest.mark.parametrize("at", halved(range(2, EVENTS)))
async def test_a_composition_resumes_after_a_kill_at_any_event(tmp_path: pathlib.Path, at: int) -> None:
    """The process is killed after each event of its run."""
    await kill_and_resume(tmp_path, SqliteStore(tmp_path / "journal.db"), "mixed", [at])
