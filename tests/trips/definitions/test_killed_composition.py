"""Compositions are durable between steps: killed at any event, another process goes on, and no ended step again."""

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
from tests.support.postgres import Server, fresh_schema, postgres
from tests.support.warm import Forked, Warm, warm

__all__ = ["postgres", "warm"]  # fixtures are used by their names

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


class Ended(NamedTuple):
    """How the program ended."""

    code: int
    said: dict[str, Any]


async def worked(
    folder: pathlib.Path, shape: str, events: int, dsn: tuple[str, ...] = (), warm: Warm | None = None
) -> Ended:
    """One process on what is there, killed by itself behind so many events, or at its end."""
    backend = "local" if shape == "sandboxed" else "none"
    arguments = (str(folder), shape, str(events), backend, *dsn)
    child: asyncio.subprocess.Process | Forked
    if warm is None:
        child = await asyncio.create_subprocess_exec(sys.executable, PROGRAM, *arguments, stdout=PIPE)
    else:
        child = await warm.start(PROGRAM, *arguments, stdout=PIPE)
    assert child.stdout is not None
    said = await child.stdout.read()
    return Ended(await child.wait(), msgspec.json.decode(said) if said else {})


async def on_record(store: Store) -> list[Event]:
    """All that a store has, once a server knows that who had it is dead."""
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
    """What the steps have left."""
    file = folder / "effects"
    return Counter(file.read_text().splitlines()) if file.exists() else Counter()


async def killed_and_gone_on(
    folder: pathlib.Path, store: Store, shape: str, at: list[int], *dsn: str, warm: Warm | None = None
) -> None:
    """Kill it behind so many events, one process after the other; then see that it ends as if nothing had been."""
    for events in at:
        assert (await worked(folder, shape, events, dsn, warm)).code == -signal.SIGKILL
    ended = {event.path for event in await on_record(store) if isinstance(event, RunEnded)}
    before = effects(folder)

    last = await worked(folder, shape, 0, dsn, warm)

    expected = [7, "it is written"] if shape == "mixed" else [1, 1, 2, 3]
    assert (last.code, last.said["status"], last.said["value"]) == (0, "completed", expected)
    born = Counter(event.path for event in await on_record(store) if isinstance(event, RunSpawned))
    assert set(born.values()) == {1}
    if shape == "mixed":
        assert set(born) == PATHS
        again = {path for path, word in WORDS.items() if effects(folder)[f"end {word}"] > before[f"end {word}"]}
        assert again == set(WORDS) - ended
    assert last.said["agents"] == len(born) - 1


@pytest.mark.parametrize("at", [[1], [9], [25], [40, 12]], ids=str)
async def test_killed_between_and_inside_steps_a_composition_goes_on(tmp_path: pathlib.Path, at: list[int]) -> None:
    """Before its first step, inside branches, in the graph, and twice: what had ended is not done again."""
    await killed_and_gone_on(tmp_path, SqliteStore(tmp_path / "journal.db"), "mixed", at)


@pytest.mark.parametrize("at", [[-1], [-3], [-9]], ids=str)
async def test_killed_where_a_step_has_returned_and_nothing_says_what(tmp_path: pathlib.Path, at: list[int]) -> None:
    """Its turn has ended on record and it has not: it is called again, rather than taken to have left nothing."""
    await killed_and_gone_on(tmp_path, SqliteStore(tmp_path / "journal.db"), "mixed", at)


@pytest.mark.parametrize("at", [[6], [13]], ids=str)
async def test_steps_in_sandboxes_go_on(tmp_path: pathlib.Path, at: list[int]) -> None:
    """The same with every step in a process of its own, under the policy of the chain."""
    await killed_and_gone_on(tmp_path, SqliteStore(tmp_path / "journal.db"), "sandboxed", at)


@pytest.mark.parametrize("at", [[14], [33]], ids=str)
async def test_on_postgresql_too(tmp_path: pathlib.Path, postgres: Server, at: list[int]) -> None:
    """Another process, and a journal on a server."""
    schema = fresh_schema()
    store = PostgresStore(postgres.dsn, schema=schema)

    await killed_and_gone_on(tmp_path, store, "mixed", at, postgres.dsn, schema)


@pytest.mark.slow
@pytest.mark.parametrize("at", range(2, EVENTS))
async def test_killed_at_every_event(tmp_path: pathlib.Path, warm: Warm, at: int) -> None:
    """Behind each event of its life."""
    await killed_and_gone_on(tmp_path, SqliteStore(tmp_path / "journal.db"), "mixed", [at], warm=warm)
