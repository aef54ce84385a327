"""What is found on disk: other versions, other programs' files, and what is not whole."""

# Small files of a test, looked at by a loop that has nothing else to do.
# ruff: noqa: ASYNC240

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from ramet.core.errors import Damaged, DamagedTree, StoreFailed
from ramet.store.contract import Document, Entry
from ramet.store.sqlite import schema
from ramet.store.sqlite.store import SqliteStore
from tests.security.planted_journals import PAGE, header
from tests.unit.store.kernel import entry
from tests.unit.store.test_sqlite import opened

#: A journal as version 1 wrote it, as text. It stays as it is: every later version must read it.
VERSION_1 = Path(__file__).with_name("journal_v1.sql")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "journal.db"


async def a_journal(path: Path, count: int = 100) -> None:
    store = await SqliteStore(path).open()
    for number in range(1, count + 1):
        store.append(entry(number, 500))
    await store.close()


def as_text(path: Path) -> list[tuple[str, str]]:
    connection = sqlite3.connect(path)
    try:
        return sorted(connection.execute("SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL").fetchall())
    finally:
        connection.close()


async def is_refused(path: Path, why: str) -> None:
    """As damaged, for writing and for reading, with its bytes as they were."""
    before = path.read_bytes()
    with pytest.raises(Damaged, match=why):
        await SqliteStore(path).open()
    assert path.read_bytes() == before
    with pytest.raises(Damaged):
        await SqliteStore(path, read_only=True).open()
    assert path.read_bytes() == before


async def test_a_journal_of_version_1_is_read_and_gone_on_with(path: Path) -> None:
    """Whatever later versions change, what was written is there, and its schema is that of a new one."""
    connection = sqlite3.connect(path)
    connection.executescript(VERSION_1.read_text())
    connection.close()
    await a_journal(path.with_name("new.db"))

    store = await SqliteStore(path).open()
    try:
        found = await store.read()
        assert [each.cursor for each in found] == [1, 2, 5]
        assert [Entry(*each[1:]) for each in found] == [
            Entry("tree-ä", "run-1", 1, "run_spawned", b'{"type":"run_spawned"}'),
            Entry("tree-ä", "run-2", 2, "notice", bytes(range(256))),
            Entry("tree-2", "run-1", 1, "notice", b""),
        ]
        assert await store.get("schedule", "daily") == Document("schedule", "daily", 3, b'{"every":86400}')
        (blob,) = await store.list_blobs()
        assert await store.get_blob(blob) == b"bytes"
        await store.forget("tree-2")
        await store.durable(store.append(entry(1)))
        assert await store.head() == 10, "9 was forgotten: it is never used again"
    finally:
        await store.close()
    assert as_text(path) == as_text(path.with_name("new.db"))


async def test_a_journal_of_version_1_is_looked_at_before_it_is_gone_on_with(path: Path) -> None:
    """Nothing is changed by that, and who reads goes on with it when a kernel brings it up to date."""
    connection = sqlite3.connect(path)
    connection.executescript(VERSION_1.read_text())
    connection.close()
    before = path.read_bytes()

    async with opened(path, read_only=True) as reader:
        assert [each.cursor for each in await reader.read()] == [1, 2, 5]
        assert [each.cursor for each in await reader.read(tree="tree-ä")] == [1, 2]
        assert [each.cursor for each in await reader.read(run="run-1")] == [1, 5]
        assert await reader.get("schedule", "daily") == Document("schedule", "daily", 3, b'{"every":86400}')
        assert path.read_bytes() == before
        async with opened(path) as store:
            await store.durable(store.append(entry(1)))
        assert len(await reader.read()) == 4


async def test_a_schema_whose_names_are_no_text_is_damaged(path: Path) -> None:
    """SQLite quotes such a name when it says what is wrong."""
    await a_journal(path)
    path.write_bytes(path.read_bytes().replace(b"events_of_trees", b"event\x9f_of_trees", 1))

    await is_refused(path, "it is damaged .malformed database schema")


async def test_an_older_journal_is_migrated_whole_or_not_at_all(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All steps in one transaction: one that fails leaves the version that was there, which is still read."""
    await a_journal(path)
    before = as_text(path)
    first = schema.migrations()
    monkeypatch.setattr(schema, "migrations", lambda: (*first, "CREATE TABLE more (x);", "CREATE TABLE more (x);"))

    with pytest.raises(StoreFailed, match="more"):
        await SqliteStore(path).open()

    assert as_text(path) == before
    monkeypatch.setattr(schema, "migrations", lambda: (*first, "CREATE TABLE more (x);"))
    async with opened(path, read_only=True) as reader:
        assert len(await reader.read()) == 100
    store = await SqliteStore(path).open()
    assert len(await store.read()) == 100
    await store.close()
    assert as_text(path) == sorted([*before, ("more", "CREATE TABLE more (x)")])
    monkeypatch.undo()
    await is_refused(path, "newer, of version 3")


async def test_a_newer_journal_is_refused_untouched(path: Path) -> None:
    """Nothing is written to it, and nothing is left beside it but the lock."""
    await a_journal(path)
    connection = sqlite3.connect(path)
    connection.execute(f"PRAGMA user_version = {len(schema.migrations()) + 1}")
    connection.close()

    with pytest.raises(Damaged, match=r"newer.*this ramet knows versions up to \d+; nothing was changed"):
        await SqliteStore(path).open()

    assert sorted(each.name for each in path.parent.iterdir()) == ["journal.db", "journal.db.lock", "journal.db.mark"]
    await is_refused(path, "newer")


async def test_a_newer_journal_whose_kernel_was_killed_keeps_its_log(path: Path) -> None:
    """What is only in the write-ahead log stays there."""
    await a_journal(path)
    other = sqlite3.connect(path, isolation_level=None)
    other.execute(f"PRAGMA user_version = {len(schema.migrations()) + 1}")
    log = path.with_name("journal.db-wal")
    copied = path.with_name("copied")
    copied.mkdir()
    for each in (path, log):
        (copied / each.name).write_bytes(each.read_bytes())
    other.close()
    log = copied / log.name
    before = log.read_bytes()
    assert before, "a control: there is something in the log"

    await is_refused(copied / path.name, "newer")

    assert log.read_bytes() == before


async def test_another_programs_database_is_refused(path: Path) -> None:
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE events (x)")
    connection.close()

    await is_refused(path, "another program")


async def test_what_is_no_database_is_refused(path: Path) -> None:
    path.write_bytes(b"this is not a database, and never was\n" * 1_000)

    await is_refused(path, "it is not a database")


async def test_a_journal_that_is_cut_short_is_refused(path: Path) -> None:
    """By pages, in the middle of the last page, and to its first page."""
    await a_journal(path)
    whole = path.read_bytes()
    for size in (len(whole) - 8192, len(whole) - 100, 4096, 2000):
        path.write_bytes(whole[:size])
        await is_refused(path, "truncated|malformed|damaged|not a database")
        for each in path.parent.iterdir():
            each.unlink()


async def test_a_page_that_is_torn_is_an_error_and_not_an_answer(path: Path) -> None:
    """Zeros in the middle of the file: opening or reading fails, and says that it is damaged."""
    await a_journal(path, 1_000)
    whole = bytearray(path.read_bytes())
    middle = len(whole) // 4096 // 2 * 4096
    whole[middle : middle + 4096] = bytes(4096)
    path.write_bytes(whole)

    with pytest.raises((Damaged, StoreFailed), match="damaged"):
        await _read_all(path)


def change_event(path: Path, change: str, cursor: int) -> None:
    """Change an event by hand."""
    connection = sqlite3.connect(path, isolation_level=None)
    try:
        assert connection.execute(f"UPDATE events SET {change} WHERE cursor = ?", (cursor,)).rowcount == 1
    finally:
        connection.close()


@pytest.mark.parametrize(
    "change",
    [
        "data = CAST(replace(CAST(data AS TEXT), '10 ', '11 ') AS BLOB)",
        "data = substr(data, 1, 100)",
        "data = (SELECT data FROM events WHERE cursor = 13)",
        "data = CAST(data AS TEXT)",
        "seq = seq + 1",
        "run = (SELECT run FROM events WHERE cursor = 13)",
        "type = type + 1",
        "checksum = checksum + 1",
    ],
)
async def test_an_event_that_is_not_as_it_was_written_damages_its_tree_alone(path: Path, change: str) -> None:
    """However well it reads: it is JSON still, or another event's. It can be forgotten, and all others be read."""
    await a_journal(path)
    change_event(path, change, 10)

    store = await SqliteStore(path).open()
    try:
        with pytest.raises(DamagedTree) as refusal:
            await store.read(tree="tree-1")
        assert (refusal.value.tree, refusal.value.cursor, refusal.value.where) == ("tree-1", 10, str(path))
        assert len(await store.read(tree="tree-0")) + len(await store.read(tree="tree-2")) == 66
        assert len(await store.read()) == 100, "whoever reads all trees is not held up by one"
        assert await store.forget("tree-1") == 34
        assert len(await store.read()) == 66
    finally:
        await store.close()


async def test_events_that_are_rewritten_and_events_of_version_1_are_as_they_should_be(path: Path) -> None:
    """The first have a new checksum, the others have none."""
    connection = sqlite3.connect(path)
    connection.executescript(VERSION_1.read_text())
    connection.close()

    store = await SqliteStore(path).open()
    await store.durable(store.append(Entry("tree-ä", "run-1", 3, "notice", b"new")))
    for cursor in (1, 10):
        await store.rewrite(cursor, b"other")
    assert [each.data for each in await store.read(tree="tree-ä")] == [b"other", bytes(range(256)), b"other"]
    await store.close()
    change_event(path, "data = x'00'", 1)
    store = await SqliteStore(path, read_only=True).open()
    with pytest.raises(DamagedTree):
        await store.read(tree="tree-ä")
    await store.close()


async def test_a_page_that_sqlite_cannot_read_damages_the_trees_that_are_on_it(path: Path) -> None:
    """The others are read, where their pages are whole; the error is one that names a tree."""
    store = await SqliteStore(path).open()
    for tree in ("first", "second"):
        for number in range(1, 201):
            store.append(Entry(tree, tree, number, "notice", b"x" * 500))
    await store.close()
    whole = bytearray(path.read_bytes())
    damaged = whole.index(b"x" * 500, len(whole) * 3 // 4) // 4096 * 4096
    whole[damaged : damaged + 4096] = bytes([255]) * 4096
    path.write_bytes(whole)

    reader = await SqliteStore(path, read_only=True).open()
    try:
        assert len(await reader.read(tree="first")) == 200
        with pytest.raises(DamagedTree) as refusal:
            await reader.read(tree="second")
        assert refusal.value.tree == "second"
    finally:
        await reader.close()


async def test_an_empty_file_is_a_new_journal(path: Path) -> None:
    """A kernel may have been killed between making it and writing to it."""
    path.touch()
    await a_journal(path)

    store = await SqliteStore(path, read_only=True).open()
    assert len(await store.read()) == 100
    await store.close()


async def test_a_reader_of_a_file_without_a_journal_is_told_so(path: Path) -> None:
    path.touch()

    with pytest.raises(StoreFailed, match="no journal in it yet; open it once for writing"):
        await SqliteStore(path, read_only=True).open()


async def test_a_reader_of_a_journal_whose_making_was_cut_off_is_told_the_same(path: Path) -> None:
    """The first kernel was killed over its first page: a reader takes nothing back, and whoever writes begins anew."""
    path.write_bytes(bytes(PAGE))
    path.with_name(f"{path.name}-journal").write_bytes(header(0))

    with pytest.raises(StoreFailed, match="no journal in it yet; open it once for writing"):
        await SqliteStore(path, read_only=True).open()
    await a_journal(path)


def test_every_file_of_the_schema_ends_up_in_the_package() -> None:
    """Named statements have names of their own, and migrations are numbered without gaps."""
    assert schema.migrations()
    assert {"head", "page", "page tree", "page run", "page runs", "put_document"} <= schema.queries().keys()
    text = (Path(schema.__file__).parents[1] / "sql" / "sqlite" / "queries.sql").read_text()
    assert text.count("-- name: ") == len(schema.queries()) - 3


async def _read_all(path: Path) -> None:
    """In every way that there is."""
    store = SqliteStore(path)
    try:
        await store.open()
        await store.read(limit=10_000)
        for run in range(7):
            await store.read(run=f"run-{run}", limit=10_000)
        for tree in range(3):
            await store.read(tree=f"tree-{tree}", limit=10_000)
    finally:
        await store.close()
