"""host/journal/journal.py: A tree is registered with its first events, and marked as over, by any number of callers."""

from __future__ import annotations

import asyncio
import pathlib
from datetime import UTC, datetime

import pytest

from ramet import AgentRuntime
from ramet.core.errors import InvalidValue, RametError
from ramet.core.events import Event, RunSpawned, encode
from ramet.host.journal.journal import TREES, Journal, TreeJournal
from ramet.store.contract import Document, Entry
from ramet.store.sqlite.store import SqliteStore

SPAWN = RunSpawned(root="run-1", run="run-1", path="main", agent="a", name="main", seq=1)
NOW = datetime(2026, 11, 22, tzinfo=UTC)


class CountingStore(SqliteStore):
    """A store that counts the documents that are read."""

    reads = 0

    async def get(self, kind: str, key: str) -> Document | None:
        self.reads += 1
        return await super().get(kind, key)


class RefusingStore(SqliteStore):
    """A store that takes no documents."""

    async def put(
        self, kind: str, key: str, data: bytes, *, expected: int | None = None, tree: str | None = None
    ) -> Document:
        raise InvalidValue("data", data, "nothing")


async def open_journal(store: SqliteStore) -> tuple[Journal, TreeJournal, list[Event]]:
    """Return an open journal, a tree's part of it, and the list of its published events."""
    journal, published = Journal(store), list[Event]()
    await journal.open()
    return journal, TreeJournal(journal, lambda event, _: published.append(event), lambda: {"cwd": None}), published


async def test_a_tree_is_closed_without_a_read_of_what_this_kernel_wrote(tmp_path: pathlib.Path) -> None:
    """A document that somebody changed since is read, and keeps the change."""
    store = CountingStore(tmp_path / "journal.db")
    journal, page, published = await open_journal(store)
    page.append(SPAWN, encode(SPAWN))
    await page.durable()
    assert (published, store.reads) == ([SPAWN], 0)

    await journal.close_tree("run-1", NOW)
    assert store.reads == 0
    assert (await journal.tree_facts("run-1"))["over"] is True

    journal, page, _ = await open_journal(store)
    other = RunSpawned(root="run-2", run="run-2", path="main", agent="a", name="main", seq=1)
    page.append(other, encode(other))
    await page.durable()
    await store.put(TREES, "run-2", b'{"cwd":null,"keep":true}')
    await journal.close_tree("run-2", NOW)
    facts = await journal.tree_facts("run-2")
    assert (facts["keep"], facts["over"]) == (True, True)
    await store.close()


async def test_no_event_is_stored_for_a_tree_whose_document_is_refused(tmp_path: pathlib.Path) -> None:
    """The caller gets the error, and nothing is published."""
    store = RefusingStore(tmp_path / "journal.db")
    _, page, published = await open_journal(store)
    failure: asyncio.Future[RametError | None] = asyncio.get_running_loop().create_future()
    page.append(SPAWN, encode(SPAWN))
    page.when_durable(failure.set_result)

    assert isinstance(await failure, InvalidValue)
    await store.durable(store.append(Entry("run-2", "run-2", 1, "notice", b"{}")))  # Whatever waits is written with it.
    assert ([each.tree for each in await store.read()], published) == (["run-2"], [])
    await store.close()


async def test_concurrent_closes_of_a_finished_tree_raise_no_conflict(tmp_path: pathlib.Path) -> None:
    """The end of the last run and a resume both mark the tree as over."""
    journal = Journal(SqliteStore(tmp_path / "journal.db"))
    await journal.open()
    await journal.store.put(TREES, "run-1", b'{"cwd":null}')

    await asyncio.gather(*(journal.close_tree("run-1", NOW) for _ in range(3)))

    about = await journal.tree_facts("run-1")
    assert (about["cwd"], about["over"], about["ended"]) == (None, True, NOW.isoformat().replace("+00:00", "Z"))
    await journal.close_tree("run-of-nobody", NOW)
    await journal.release(AgentRuntime()._trees)


@pytest.mark.parametrize("outcome", ["written", "refused"])
async def test_a_callback_that_fails_keeps_no_other_from_its_call(tmp_path: pathlib.Path, outcome: str) -> None:
    """The second caller gets the outcome, although the first one fails."""
    store = SqliteStore(tmp_path / "journal.db") if outcome == "written" else RefusingStore(tmp_path / "journal.db")
    _, page, _ = await open_journal(store)
    page.append(SPAWN, encode(SPAWN))
    outcomes: asyncio.Queue[RametError | None] = asyncio.Queue()

    def fail(error: RametError | None) -> None:
        raise ZeroDivisionError("a defect")

    page.when_durable(fail)
    page.when_durable(outcomes.put_nowait)

    async with asyncio.timeout(60):
        error = await outcomes.get()
    assert isinstance(error, InvalidValue if outcome == "refused" else type(None))
    await store.close()
