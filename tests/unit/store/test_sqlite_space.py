"""Tests of space: a journal shrinks after many removals while others write, and its log is empty when idle."""

# Small files of a test, looked at by a loop that has nothing else to do.
# ruff: noqa: ASYNC240

from __future__ import annotations

import asyncio
import signal
import sqlite3
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from ramet.core.errors import StoreInUse
from ramet.store.contract import Entry
from ramet.store.sqlite import schema
from ramet.store.sqlite.compaction import compact
from ramet.store.sqlite.store import SqliteStore
from tests.support.waiting import eventually

needs_root = pytest.mark.skipif("os.getuid() != 0", reason="only root can mount")
ROOT = Path(__file__).parents[3]
BODY = b'{"said":"' + b"x" * 3_000 + b'"}'
LARGE = 1_500  #: events of the tree that goes
KILLED_PROGRAM = """
import asyncio, sys
from pathlib import Path
from ramet.store.sqlite.compaction import compact
from ramet.store.sqlite.store import SqliteStore

async def shrink(path):
    store = await SqliteStore(path).open()
    print("begins", flush=True)
    await store.shrink()
    await store.close()

path = Path(sys.argv[2])
if sys.argv[1] == "compact":
    print("begins", flush=True)
    compact(path)
else:
    asyncio.run(shrink(path))
"""

FULL_DISK_PROGRAM = """
import asyncio, shutil, sys
from pathlib import Path
from ramet.core.errors import StoreFailed
from ramet.store.sqlite.compaction import compact
from tests.unit.store.test_sqlite_space import check_content, fill, create_older_journal

folder = Path(sys.argv[1])
path = folder / "journal.db"
create_older_journal(path)
size = asyncio.run(fill(path))
(folder / "filler").write_bytes(bytes(shutil.disk_usage(folder).free - 500_000))
try:
    compact(path)
except StoreFailed as problem:
    print(problem)
assert path.stat().st_size == size
asyncio.run(check_content(path))
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "journal.db"


@asynccontextmanager
async def open_store(path: Path, *, read_only: bool = False) -> AsyncIterator[SqliteStore]:
    store = SqliteStore(path, read_only=read_only)
    try:
        yield await store.open()
    finally:
        await store.close()


async def fill(path: Path) -> int:
    """Write a tree that partly stays and a large one that is forgotten; return the size of the file before that."""
    async with open_store(path) as store:
        for number in range(LARGE):
            ticket = store.append(Entry("goes", "goes", number + 1, "notice", BODY))
            if number % 10 == 0:
                ticket = store.append(Entry("stays", "stays", number // 10 + 1, "notice", BODY))
        await store.durable(ticket)
    size = path.stat().st_size
    async with open_store(path) as store:
        assert await store.forget("goes") == LARGE
        await store.put("kind", "key", b"kept")
    return size


def create_older_journal(path: Path) -> None:
    """Create a journal as older versions did, which never returns its free pages."""
    path.touch(0o600)
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA journal_mode = WAL")
    schema.migrate(connection, 0)
    assert connection.execute("PRAGMA auto_vacuum").fetchone() == (0,)
    connection.close()


async def check_content(path: Path) -> None:
    """Check that the kept events and documents are there, and that the file is valid."""
    async with open_store(path, read_only=True) as store:
        entries = await store.read(tree="stays", limit=10_000)
        assert [each.seq for each in entries] == [*range(1, LARGE // 10 + 1)]
        assert {each.data for each in entries} == {BODY}
        assert await store.read(tree="goes") == []
        document = await store.get("kind", "key")
        assert document is not None
        assert document.data == b"kept"
    connection = sqlite3.connect(path)
    assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    connection.close()


async def test_a_journal_shrinks_while_others_write(path: Path) -> None:
    """Readers and writers continue, and the kept events are unchanged."""
    size = await fill(path)
    async with open_store(path) as store, open_store(path, read_only=True) as reader:
        shrinking = asyncio.ensure_future(store.shrink())
        tickets = [store.append(Entry("new", "new", number + 1, "notice", b"{}")) for number in range(100)]
        await store.durable(tickets[-1])
        assert len(await reader.read(tree="stays", limit=10_000)) == LARGE // 10
        space = await shrinking
        assert space.surplus == 0
        await eventually(lambda: path.stat().st_size < size / 3)
        assert len(await reader.read(tree="new", limit=1_000)) == 100
    await check_content(path)


async def test_the_log_of_an_idle_journal_is_empty(path: Path) -> None:
    """A running kernel without writes leaves no bytes in the log."""
    log = path.with_name("journal.db-wal")
    async with open_store(path) as store:
        for number in range(LARGE):
            ticket = store.append(Entry("tree", "run", number + 1, "notice", BODY))
        await store.durable(ticket)
        assert log.stat().st_size > 0
        await eventually(lambda: log.stat().st_size == 0)
        await store.durable(store.append(Entry("tree", "run", LARGE + 1, "notice", BODY)))
        assert await store.head() == LARGE + 1


async def test_a_reader_sees_no_damage_while_the_file_shrinks(path: Path) -> None:
    """Readers open the journal at every moment, also when its kernel closes it and cuts the log."""
    size = await fill(path)
    is_over = asyncio.Event()

    async def read() -> int:
        count = 0
        while not is_over.is_set() or not count:
            async with open_store(path, read_only=True) as reader:
                assert len(await reader.read(tree="stays", limit=10_000)) == LARGE // 10
                count += 1
        return count

    reading = asyncio.ensure_future(read())
    async with open_store(path) as store:
        await store.shrink()
    is_over.set()
    assert await reading > 0
    async with open_store(path):
        pass  # A reader may have been the last to let go of it.
    assert path.stat().st_size < size / 3


async def test_an_older_journal_shrinks_only_after_a_rewrite(path: Path) -> None:
    """An older journal works and reports that it returns no space; after `compact` it does."""
    create_older_journal(path)
    size = await fill(path)
    async with open_store(path) as store:
        space = await store.shrink()
        assert not space.can_release
        assert space.surplus > 0
        with pytest.raises(StoreInUse):
            await asyncio.to_thread(compact, path)
    assert path.stat().st_size == size

    assert await asyncio.to_thread(compact, path) > size / 2

    await check_content(path)
    assert await asyncio.to_thread(compact, path) == 0
    async with open_store(path) as store:
        assert (await store.shrink()).can_release


@needs_root
async def test_a_journal_is_not_rewritten_without_enough_disk_space(tmp_path: Path) -> None:
    """The journal on a nearly full disk is unchanged."""
    script = 'mount -t tmpfs -o size=32m none "$0" && exec "$@"'
    command = (
        "unshare",
        "--mount",
        "sh",
        "-c",
        script,
        str(tmp_path),
        sys.executable,
        "-c",
        FULL_DISK_PROGRAM,
        str(tmp_path),
    )
    process = await asyncio.create_subprocess_exec(*command, cwd=ROOT, stdout=asyncio.subprocess.PIPE)

    output, _ = await process.communicate()

    assert process.returncode == 0
    assert b"bytes to make it smaller, and the disk has" in output


@pytest.mark.parametrize("deed", ["compact", "shrink"])
async def test_a_kill_during_compact_or_shrink_loses_nothing(path: Path, deed: str) -> None:
    """Kills happen at later and later moments, and the next call finishes the work."""
    if deed == "compact":
        create_older_journal(path)
    size = await fill(path)
    for pause_ms in (0, 3, 10, 30, 60):
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", KILLED_PROGRAM, deed, str(path), cwd=ROOT, stdout=asyncio.subprocess.PIPE
        )
        assert process.stdout is not None
        await process.stdout.readline()
        await asyncio.wait([asyncio.ensure_future(process.wait())], timeout=pause_ms / 1000)
        if process.returncode is None:
            process.send_signal(signal.SIGKILL)
        await process.communicate()
        await check_content(path)

    if deed == "compact":
        await asyncio.to_thread(compact, path)
    else:
        async with open_store(path) as store:
            await store.shrink()
    assert path.stat().st_size < size / 3
    await check_content(path)
