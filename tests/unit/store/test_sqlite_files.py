"""Tests of files on disk: other versions, files of other programs, and damaged files."""

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
from tests.unit.store.test_sqlite import open_store

#: A journal as version 1 wrote it, as text. It stays as it is: every later version must read it.
VERSION_1 = Path(__file__).with_name("journal_v1.sql")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "journal.db"


async def write_journal(path: Path, count: int = 100) -> None:
    store = await SqliteStore(path).open()
    for number in range(1, count + 1):
        store.append(entry(number, 500))
    await store.close()


def schema_of(path: Path) -> list[tuple[str, str]]:
    connection = sqlite3.connect(path)
    try:
        return sorted(connection.execute("SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL").fetchall())
    finally:
        connection.close()


async def check_refusal(path: Path, reason: str) -> None:
    """Check that opening for writing and for reading raises Damaged and changes no byte."""
    before = path.read_bytes()
    with pytest.raises(Damaged, match=reason):
        await SqliteStore(path).open()
    assert path.read_bytes() == before
    with pytest.raises(Damaged):
        await SqliteStore(path, read_only=True).open()
    assert path.read_bytes() == before


async def test_a_journal_of_version_1_is_read_and_continued(path: Path) -> None:
    """A later version reads the events of version 1, and migrates its schema to that of a new journal."""
    connection = sqlite3.connect(path)
    connection.executescript(VERSION_1.read_text())
    connection.close()
    await write_journal(path.with_name("new.db"))

    store = await SqliteStore(path).open()
    try:
        entries = await store.read()
        assert [each.cursor for each in entries] == [1, 2, 5]
        assert [Entry(*each[1:]) for each in entries] == [
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
    assert schema_of(path) == schema_of(path.with_name("new.db"))


async def test_a_journal_of_version_1_is_read_without_a_migration(path: Path) -> None:
    """Reading changes nothing, and the reader continues after a kernel has migrated the journal."""
    connection = sqlite3.connect(path)
    connection.executescript(VERSION_1.read_text())
    connection.close()
    before = path.read_bytes()

    async with open_store(path, read_only=True) as reader:
        assert [each.cursor for each in await reader.read()] == [1, 2, 5]
        assert [each.cursor for each in await reader.read(tree="tree-ä")] == [1, 2]
        assert [each.cursor for each in await reader.read(run="run-1")] == [1, 5]
        assert await reader.get("schedule", "daily") == Document("schedule", "daily", 3, b'{"every":86400}')
        assert path.read_bytes() == before
        async with open_store(path) as store:
            await store.durable(store.append(entry(1)))
        assert len(await reader.read()) == 4


async def test_a_schema_with_undecodable_names_is_damaged(path: Path) -> None:
    """SQLite quotes such a name in its error."""
    await write_journal(path)
    path.write_bytes(path.read_bytes().replace(b"events_of_trees", b"event\x9f_of_trees", 1))

    await check_refusal(path, "it is damaged .malformed database schema")


async def test_an_older_journal_is_migrated_whole_or_not_at_all(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One transaction holds every migration; a failed one leaves the old version, which is still readable."""
    await write_journal(path)
    before = schema_of(path)
    first = schema.migrations()
    monkeypatch.setattr(schema, "migrations", lambda: (*first, "CREATE TABLE more (x);", "CREATE TABLE more (x);"))

    with pytest.raises(StoreFailed, match="more"):
        await SqliteStore(path).open()

    assert schema_of(path) == before
    monkeypatch.setattr(schema, "migrations", lambda: (*first, "CREATE TABLE more (x);"))
    async with open_store(path, read_only=True) as reader:
        assert len(await reader.read()) == 100
    store = await SqliteStore(path).open()
    assert len(await store.read()) == 100
    await store.close()
    assert schema_of(path) == sorted([*before, ("more", "CREATE TABLE more (x)")])
    monkeypatch.undo()
    await check_refusal(path, "newer, of version 3")


async def test_a_newer_journal_is_refused_unchanged(path: Path) -> None:
    """The refusal writes nothing to the file, and leaves only the lock and the mark next to it."""
    await write_journal(path)
    connection = sqlite3.connect(path)
    connection.execute(f"PRAGMA user_version = {len(schema.migrations()) + 1}")
    connection.close()

    with pytest.raises(Damaged, match=r"newer.*this ramet knows versions up to \d+; nothing was changed"):
        await SqliteStore(path).open()

    assert sorted(each.name for each in path.parent.iterdir()) == ["journal.db", "journal.db.lock", "journal.db.mark"]
    await check_refusal(path, "newer")


async def test_a_newer_journal_whose_kernel_was_killed_keeps_its_log(path: Path) -> None:
    """Events that are only in the write-ahead log stay there."""
    await write_journal(path)
    other = sqlite3.connect(path, isolation_level=None)
    other.execute(f"PRAGMA user_version = {len(schema.migrations()) + 1}")
    log = path.with_name("journal.db-wal")
    copy_folder = path.with_name("copied")
    copy_folder.mkdir()
    for each in (path, log):
        (copy_folder / each.name).write_bytes(each.read_bytes())
    other.close()
    log = copy_folder / log.name
    before = log.read_bytes()
    assert before, "a control: there is something in the log"

    await check_refusal(copy_folder / path.name, "newer")

    assert log.read_bytes() == before


async def test_another_programs_database_is_refused(path: Path) -> None:
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE events (x)")
    connection.close()

    await check_refusal(path, "another program")


async def test_a_file_that_is_no_database_is_refused(path: Path) -> None:
    path.write_bytes(b"this is not a database, and never was\n" * 1_000)

    await check_refusal(path, "it is not a database")


async def test_a_journal_that_is_cut_short_is_refused(path: Path) -> None:
    """Cuts by pages, inside the last page, and inside the first page are refused."""
    await write_journal(path)
    content = path.read_bytes()
    for size in (len(content) - 8192, len(content) - 100, 4096, 2000):
        path.write_bytes(content[:size])
        await check_refusal(path, "truncated|malformed|damaged|not a database")
        for each in path.parent.iterdir():
            each.unlink()


async def test_a_torn_page_raises_damaged(path: Path) -> None:
    """Opening or reading a file with a zeroed page fails as damaged."""
    await write_journal(path, 1_000)
    content = bytearray(path.read_bytes())
    middle = len(content) // 4096 // 2 * 4096
    content[middle : middle + 4096] = bytes(4096)
    path.write_bytes(content)

    with pytest.raises((Damaged, StoreFailed), match="damaged"):
        await _read_all(path)


def change_event(path: Path, change: str, cursor: int) -> None:
    """Change a column of an event directly in the database."""
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
async def test_a_changed_event_damages_only_its_tree(path: Path, change: str) -> None:
    """A change is found even if the event is still valid; its tree can be forgotten, and other trees be read."""
    await write_journal(path)
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


async def test_rewritten_events_and_events_of_version_1_are_valid(path: Path) -> None:
    """A rewritten event has a new checksum, and an event of version 1 has none."""
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


async def test_an_unreadable_page_damages_the_trees_on_it(path: Path) -> None:
    """Trees on intact pages are read, and the error names the damaged tree."""
    store = await SqliteStore(path).open()
    for tree in ("first", "second"):
        for number in range(1, 201):
            store.append(Entry(tree, tree, number, "notice", b"x" * 500))
    await store.close()
    content = bytearray(path.read_bytes())
    damaged = content.index(b"x" * 500, len(content) * 3 // 4) // 4096 * 4096
    content[damaged : damaged + 4096] = bytes([255]) * 4096
    path.write_bytes(content)

    reader = await SqliteStore(path, read_only=True).open()
    try:
        assert len(await reader.read(tree="first")) == 200
        with pytest.raises(DamagedTree) as refusal:
            await reader.read(tree="second")
        assert refusal.value.tree == "second"
    finally:
        await reader.close()


async def test_an_empty_file_is_a_new_journal(path: Path) -> None:
    """A kernel may be killed between the creation of the file and its first write."""
    path.touch()
    await write_journal(path)

    store = await SqliteStore(path, read_only=True).open()
    assert len(await store.read()) == 100
    await store.close()


async def test_a_reader_of_an_empty_file_gets_an_error(path: Path) -> None:
    path.touch()

    with pytest.raises(StoreFailed, match="no journal in it yet; open it once for writing"):
        await SqliteStore(path, read_only=True).open()


async def test_a_reader_of_an_unfinished_journal_gets_an_error(path: Path) -> None:
    """The first kernel was killed at its first page: a reader rolls nothing back, and a writer starts anew."""
    path.write_bytes(bytes(PAGE))
    path.with_name(f"{path.name}-journal").write_bytes(header(0))

    with pytest.raises(StoreFailed, match="no journal in it yet; open it once for writing"):
        await SqliteStore(path, read_only=True).open()
    await write_journal(path)


def test_the_package_contains_every_file_of_the_schema() -> None:
    """Named statements have distinct names, and migrations are numbered without gaps."""
    assert schema.migrations()
    assert {"head", "page", "page tree", "page run", "page runs", "put_document"} <= schema.queries().keys()
    text = (Path(schema.__file__).parents[1] / "sql" / "sqlite" / "queries.sql").read_text()
    assert text.count("-- name: ") == len(schema.queries()) - 3


async def _read_all(path: Path) -> None:
    """Read the journal in every way that exists."""
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
