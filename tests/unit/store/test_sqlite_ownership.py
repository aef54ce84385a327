"""Tests of ownership: one kernel per database, whatever happens to its lock file and names; a followed kernel stops."""

# Small files of a test, looked at by a loop that has nothing else to do.

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from ramet.core.errors import StoreFailed, StoreInUse
from ramet.host.control.run_queries import kernel_of
from ramet.store.sqlite import files
from ramet.store.sqlite.compaction import compact
from ramet.store.sqlite.database_lock import is_locked
from ramet.store.sqlite.store import SqliteStore
from tests.unit.store.kernel import entry
from tests.unit.store.test_sqlite import open_store, read_line, run_kernel

#: Whether SQLite's own lock on a database is held, by some other process: that on its shared bytes.
PROBE = """
import fcntl, sys
with open(sys.argv[1], "r+b") as file:
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 510, 0x40000002)
        print("free")
    except BlockingIOError:
        print("held")
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "journal.db"


def make_hard_link(path: Path) -> Path:
    """Create a second name of a database in another folder."""
    other = path.parent / "elsewhere" / "other.db"
    other.parent.mkdir()
    other.hardlink_to(path)
    return other


def lock_of_sqlite(path: Path) -> str:
    """Return the state of SQLite's lock as another process finds it."""
    process_result = subprocess.run(
        [sys.executable, "-c", PROBE, str(path)], capture_output=True, text=True, check=True
    )
    return process_result.stdout.strip()


async def test_a_removed_lock_file_does_not_admit_a_second_kernel(path: Path) -> None:
    """The second kernel changes nothing, the first continues, and an inspection finds a kernel."""
    async with run_kernel("hold", path) as first:
        await read_line(first)
        path.with_name("journal.db.lock").unlink()

        with pytest.raises(StoreInUse, match="its lock file was removed"):
            await SqliteStore(path).open()
        with pytest.raises(StoreInUse):
            compact(path)

        holder = kernel_of(path)
        assert holder is not None
        assert holder == "unknown"
        first.kill()
        await first.wait()
        assert kernel_of(path) is None
        async with open_store(path) as store:
            await store.durable(store.append(entry(1)))


async def test_a_hard_link_in_another_folder_is_the_same_database(path: Path) -> None:
    """A hard link would have a lock file and a log of its own, without the kernel's events."""
    async with run_kernel("hold", path) as first:
        await read_line(first)
        other = make_hard_link(path)

        with pytest.raises(StoreInUse, match="another name"):
            await SqliteStore(other).open()

        assert is_locked(other)
        assert not other.with_name("other.db-wal").exists()


async def test_a_hard_link_in_the_same_process_is_refused_and_no_lock_is_lost(path: Path) -> None:
    """Closing another descriptor of the file would release the locks of SQLite."""
    async with open_store(path) as store:
        await store.durable(store.append(entry(1)))
        assert lock_of_sqlite(path) == "held", "a control"

        with pytest.raises(StoreInUse, match=f"pid {os.getpid()}"):
            await SqliteStore(make_hard_link(path)).open()
        assert kernel_of(path) is not None
        assert is_locked(path)

        assert lock_of_sqlite(path) == "held"


async def test_inspecting_a_database_that_this_process_reads_keeps_its_lock(path: Path) -> None:
    """A kernel that closes during a read keeps its descriptor until the reader has closed."""
    async with open_store(path) as store:
        await store.durable(store.append(entry(1)))
        reader = await SqliteStore(path, read_only=True).open()
    assert lock_of_sqlite(path) == "held"

    assert not is_locked(path)
    async with run_kernel("hold", path) as other:
        await read_line(other)
        assert is_locked(path)
        with pytest.raises(StoreInUse):
            await SqliteStore(path).open()

    assert lock_of_sqlite(path) == "held"
    assert [each.seq for each in await reader.read()] == [1]
    await reader.close()
    assert lock_of_sqlite(path) == "free"
    assert descriptors_of(path) == 0


def descriptors_of(path: Path) -> int:
    """Return the number of descriptors of the file in this process."""
    file_stat = path.stat()
    count = 0
    for each in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            count += os.path.samestat(each.stat(), file_stat)
    return count


def replace_file(path: Path) -> None:
    """Replace the file with a copy, as a restored backup does."""
    shutil.copy(path, path.with_name("copy"))
    path.with_name("copy").replace(path)


def rename(path: Path) -> None:
    path.rename(path.with_name("away.db"))


def remove(path: Path) -> None:
    path.unlink()


def remove_log(path: Path) -> None:
    path.with_name("journal.db-wal").unlink()


@pytest.mark.parametrize("damage", [replace_file, rename, remove, remove_log])
async def test_a_kernel_stops_at_its_next_commit_when_its_file_is_moved(
    path: Path, damage: Callable[[Path], None]
) -> None:
    """Waiters get StoreFailed, and `on_loss` listeners are called once, before them."""
    store = await SqliteStore(path).open()
    messages = list[str]()
    await store.durable(store.append(entry(1)))
    store.on_loss(lambda loss: messages.append(str(loss)))
    damage(path)

    with pytest.raises(StoreFailed, match=r"took its place|removed or re"):
        await store.durable(store.append(entry(2)))

    assert len(messages) == 1
    with pytest.raises(StoreFailed):
        store.append(entry(3))
    with pytest.raises(StoreFailed):
        await store.close()


async def test_a_kernel_with_a_successor_writes_nothing(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a working lock the database names its newest kernel from that kernel's first commit on."""
    first = await SqliteStore(path).open()
    losses = list[StoreFailed]()
    first.on_loss(losses.append)
    await first.durable(first.append(entry(1)))
    for name in ("KernelLock", "DatabaseLock"):
        monkeypatch.setattr(files, name, NoLock)
    second = await SqliteStore(path).open()
    third = await SqliteStore(path).open()
    await first.durable(first.append(entry(4)))  # A kernel that has written nothing has taken nothing over.

    with pytest.raises(StoreFailed, match="another kernel writes to it"):
        await second.durable(second.append(entry(2)))  # What came meanwhile is not what it began with.
    fourth = await SqliteStore(path).open()
    await fourth.durable(fourth.append(entry(5)))
    for store in (first, third):
        with pytest.raises(StoreFailed, match="another kernel writes to it"):
            await store.durable(store.append(entry(6)))

    assert len(losses) == 1
    assert [each.seq for each in await fourth.read()] == [1, 4, 5]
    await fourth.close()
    for each in (first, second, third):
        with pytest.raises(StoreFailed):
            await each.close()


class NoLock:
    """Lock that excludes no other kernel."""

    def __init__(self, path: Path) -> None:
        stat = path.stat() if path.exists() else None
        self.identity = None if stat is None else (stat.st_dev, stat.st_ino)

    def release(self) -> None:
        """Do nothing, because no lock is held."""
