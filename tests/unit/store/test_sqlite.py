"""Tests of promises that only a file makes: one kernel, crashes, full disks, versions, and removed bytes."""

# Small files of a test, looked at by a loop that has nothing else to do.
# ruff: noqa: ASYNC240

from __future__ import annotations

import asyncio
import fcntl
import os
import sqlite3
import stat
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from ramet.core.errors import InvalidValue, StoreFailed, StoreInUse
from ramet.store.contract import Entry
from ramet.store.sqlite import checkpoint, commit_queue, lock, reader, tables
from ramet.store.sqlite.store import SqliteStore
from tests.unit.store.kernel import entry

ROOT = Path(__file__).parents[3]
needs_root = pytest.mark.skipif("os.getuid() != 0", reason="only root can mount")


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


@asynccontextmanager
async def run_kernel(deed: str, path: Path) -> AsyncIterator[asyncio.subprocess.Process]:
    """Start another process, and kill it at the end if it still runs."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.unit.store.kernel", deed, str(path)),
        cwd=ROOT,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def read_line(process: asyncio.subprocess.Process) -> str:
    assert process.stdout is not None
    return (await process.stdout.readline()).decode().strip()


def output_of(*command: str) -> list[str]:
    """Return the output lines of a process that must end successfully."""
    process_result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=180, check=False)
    assert process_result.returncode == 0, process_result.stdout + process_result.stderr
    return process_result.stdout.splitlines()


# ---- one kernel


async def test_a_second_kernel_is_refused_with_the_pid_of_the_first(path: Path) -> None:
    """The refused kernel changes no file."""
    async with run_kernel("hold", path) as first:
        word, pid = (await read_line(first)).split()
        before = {each.name: each.read_bytes() for each in path.parent.iterdir()}

        with pytest.raises(StoreInUse) as refusal:
            await SqliteStore(path).open()

        assert (word, pid) == ("open", str(first.pid))
        assert refusal.value.holder == f"pid {first.pid}"
        assert {each.name: each.read_bytes() for each in path.parent.iterdir()} == before


async def test_a_killed_kernel_does_not_block_the_next_one(path: Path) -> None:
    async with run_kernel("hold", path) as first:
        await read_line(first)
        first.kill()
        await first.wait()

        async with open_store(path) as store:
            assert await store.head() == 0


async def test_a_process_that_inspects_the_lock_blocks_no_kernel(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The lock is held by an inspecting process until the second try, with the pid of an ended kernel in its file."""
    file = path.with_name(path.name + ".lock")
    file.write_text(f"{2**22 + 1}\n")  # no process has it: it is above the highest pid
    with file.open() as looking:
        fcntl.flock(looking, fcntl.LOCK_SH)
        monkeypatch.setattr("ramet.store.sqlite.lock.time.sleep", lambda _: fcntl.flock(looking, fcntl.LOCK_UN))

        async with open_store(path) as store:
            assert await store.head() == 0


async def test_a_symbolic_link_to_the_file_is_the_same_store(path: Path) -> None:
    async with open_store(path):
        (path.parent / "link.db").symlink_to(path)

        with pytest.raises(StoreInUse, match=f"pid {os.getpid()}"):
            await SqliteStore(path.parent / "link.db").open()


async def test_children_do_not_inherit_the_lock(path: Path) -> None:
    """A child process that outlives the store does not hold the lock, even if it inherited every descriptor."""
    async with open_store(path):
        child = subprocess.Popen(["sleep", "60"], close_fds=False)  # noqa: ASYNC220 - it takes no time
    try:
        async with open_store(path) as store:
            assert store.committed == 0
    finally:
        child.kill()
        child.wait()


async def test_files_are_private(path: Path) -> None:
    """The user alone can read a journal, whatever the umask."""
    before = os.umask(0)
    try:
        async with open_store(path) as store:
            await store.durable(store.append(entry(1)))
            modes = {each.name: stat.S_IMODE(each.stat().st_mode) for each in path.parent.iterdir()}
    finally:
        os.umask(before)

    assert modes == dict.fromkeys(
        ("journal.db", "journal.db-wal", "journal.db-shm", "journal.db.lock", "journal.db.mark"), 0o600
    )


async def test_a_network_file_system_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel names the file system of a folder; here the tmpfs of `/dev/shm` stands for a network file system."""
    monkeypatch.setitem(lock.NETWORK, 0x0102_1994, "tmpfs")

    with pytest.raises(InvalidValue, match=r"path: .*this is tmpfs.*postgres"):
        await SqliteStore("/dev/shm/ramet-none.db").open()

    assert not [*Path("/dev/shm").glob("ramet-none*")]


@pytest.mark.parametrize("magic", [0x6B41_4653, 0x786F_4256, 0xBACB_ACBC, 0x7C7C_6673])
async def test_a_folder_shared_with_other_machines_is_refused(
    path: Path, monkeypatch: pytest.MonkeyPatch, magic: int
) -> None:
    """kAFS and shared folders of virtual machines are refused."""
    monkeypatch.setattr(lock, "_file_system", lambda _: magic)

    with pytest.raises(InvalidValue, match="a path on a disk of this machine"):
        await SqliteStore(path).open()
    assert not path.exists()


async def test_fuse_is_refused_until_it_is_allowed(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names both ways to allow FUSE: in code or in the environment."""
    monkeypatch.setattr(lock, "_file_system", lambda _: 0x6573_5546)

    for value in ("", "0"):
        monkeypatch.setenv(lock.ALLOW_FUSE, value)
        with pytest.raises(InvalidValue, match=r"FUSE.*allow_fuse=True.*RAMET_STORE_ALLOW_FUSE=1"):
            await SqliteStore(path).open()
    assert not path.exists()
    await (await SqliteStore(path, allow_fuse=True).open()).close()
    monkeypatch.setenv(lock.ALLOW_FUSE, "1")
    await (await SqliteStore(path).open()).close()


# ---- crashes


@pytest.mark.parametrize("acks", [1, 7, 60])
async def test_acknowledged_events_survive_kill_9(path: Path, acks: int) -> None:
    """Two kills of one file leave every acknowledged event, and a prefix of the others."""
    last = 0
    for _ in range(2):
        async with run_kernel("append", path) as writing:
            for _ in range(acks):
                last = int(await read_line(writing))
            writing.kill()
            await writing.wait()
            while line_read := await read_line(writing):  # what it had said before it was killed
                last = int(line_read)

        async with open_store(path) as store:
            entries = await store.read(limit=1_000_000)
            assert [Entry(*each[1:]) for each in entries] == [entry(each) for each in range(1, len(entries) + 1)]
            assert len(entries) >= last


async def test_a_reader_follows_a_kernel_that_dies_and_the_next_one(path: Path) -> None:
    """The reader sees durable events during the kernel's life, all of them after it, and those of the next kernel."""
    async with run_kernel("append", path) as writing:
        last = int(await read_line(writing))
        async with open_store(path, read_only=True) as reading:
            assert await reading.wait(0) is True
            assert len(await reading.read(limit=1_000_000)) >= last
            writing.kill()
            await writing.wait()
            entries = await reading.read(limit=1_000_000)
            async with open_store(path) as store:
                waiting = asyncio.ensure_future(reading.wait(entries[-1].cursor))
                await store.durable(store.append(entry(len(entries) + 1)))
                assert await waiting is True
                assert [each.seq for each in await reading.read(entries[-1].cursor)] == [len(entries) + 1]


def test_a_program_that_does_not_close_its_store_ends(path: Path) -> None:
    """The durable event of the program is in the file."""
    assert output_of(sys.executable, "-m", "tests.unit.store.kernel", "forgetful", str(path)) == ["done"]

    with sqlite3.connect(path) as connection:
        assert connection.execute("SELECT count(*) FROM events").fetchone() == (1,)
    connection.close()


@pytest.mark.parametrize("turns", range(1, 6))
def test_a_loop_that_ends_during_close_loses_nothing(path: Path, turns: int) -> None:
    """A cancelled `close` keeps every appended event, and releases the file."""

    async def begin_to_close() -> None:
        store = await SqliteStore(path).open()
        for number in range(1, 5_001):
            store.append(entry(number))
        closing = asyncio.ensure_future(store.close())
        for _ in range(turns):
            await asyncio.sleep(0)
        closing.cancel()

    async def look() -> int:
        async with open_store(path) as store:
            return len(await store.read(limit=10_000))

    asyncio.run(begin_to_close())

    assert asyncio.run(look()) == 5_000


# ---- a disk that does not take it


async def test_a_limit_on_file_size_fails_the_store_and_loses_nothing(path: Path) -> None:
    """Every caller gets the reason; acknowledged events are there when the store is opened without the limit."""
    *acked, end = output_of(sys.executable, "-m", "tests.unit.store.kernel", "limited", str(path))

    assert end.startswith("failed: ")
    async with open_store(path) as store:
        assert len(await store.read(limit=100_000)) >= int(acked[-1])


@needs_root
def test_a_full_disk_ends_the_store_with_a_plain_reason(tmp_path: Path) -> None:
    *acked, end = output_of(*_mount_command(tmp_path, "size=600k", "fill"))

    assert int(acked[-1]) > 10
    assert end.startswith("failed: there is no space left on its disk")


@needs_root
def test_a_read_only_folder_is_refused_with_a_plain_reason(tmp_path: Path) -> None:
    (output_line,) = output_of(*_mount_command(tmp_path, "ro", "refused"))

    assert output_line.startswith("StoreFailed")
    assert "Read-only file system" in output_line


async def test_a_folder_that_is_not_there_is_refused(tmp_path: Path) -> None:
    for read_only in (False, True):
        with pytest.raises(StoreFailed, match=r"(?i)no such file"):
            await SqliteStore(tmp_path / "none" / "journal.db", read_only=read_only).open()


async def test_a_failed_write_fails_every_waiter(path: Path) -> None:
    """Earlier events are durable, later calls raise the reason, and the store can be opened again."""
    async with open_store(path) as store:
        await store.durable(store.append(entry(1)))

    store = await SqliteStore(path).open()
    with sqlite3.connect(path) as connection:  # Now: a journal that has one is not opened.
        refuses = "CREATE TRIGGER no BEFORE INSERT ON events WHEN new.seq = 3 BEGIN SELECT RAISE(ABORT, 'not 3'); END"
        connection.execute(refuses)
    await store.durable(store.append(entry(2)))
    waiting = [asyncio.ensure_future(store.durable(store.append(entry(number)))) for number in (3, 4, 5)]
    putting = asyncio.ensure_future(store.put("kind", "key", b""))
    following = asyncio.ensure_future(store.wait(1_000))
    outcomes = await asyncio.gather(*waiting, putting, following, return_exceptions=True)

    assert [type(each) for each in outcomes] == [StoreFailed] * 5
    assert "not 3" in str(outcomes[0])
    assert store.committed == 1
    with pytest.raises(StoreFailed, match="not 3"):
        store.append(entry(6))
    with pytest.raises(StoreFailed, match="not 3"):
        await store.close()
    await store.close()
    connection.execute("DROP TRIGGER no")
    connection.close()
    async with open_store(path) as store:
        assert [each.seq for each in await store.read()] == [1, 2]


# ---- what is kept, and what is not


async def test_forgotten_events_are_overwritten(path: Path) -> None:
    """No file holds the forgotten bytes after the store is closed."""
    async with open_store(path) as store:
        for number in range(50):
            store.append(Entry("gone", "run", number, "notice", b"SECRET-%d" % number * 100))
            store.append(Entry("kept", "run", number, "notice", b"PUBLIC"))
        assert await store.forget("gone") == 50

    data = b"".join(each.read_bytes() for each in path.parent.iterdir())
    assert b"SECRET" not in data
    assert b"PUBLIC" in data


async def test_the_file_is_at_most_twice_as_large_as_its_events(path: Path) -> None:
    """Names of trees and runs are stored once."""
    size = 0
    async with open_store(path) as store:
        for number in range(20_000):
            data = b'{"type":"notice","run":"run-%016x","text":"%s"}' % (number % 100, b"x" * 100)
            size += len(data)
            store.append(Entry("tree-0123456789abcdef", f"run-{number % 100:016x}", number, "notice", data))

    assert path.stat().st_size <= 2 * size


async def test_the_log_does_not_grow_forever(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The log is moved into the file during writes and reads, and is removed at the end."""
    monkeypatch.setattr(checkpoint, "_LARGE", 400_000)
    largest = 0
    async with open_store(path) as store, open_store(path, read_only=True) as reading:
        for number in range(1, 1_500):
            await store.durable(store.append(entry(number, 4_000)))
            if number % 50 == 0:
                assert (await reading.read(number - 1))[0].seq == number
            largest = max(largest, path.with_name("journal.db-wal").stat().st_size)

    assert largest < 6_000_000  # of some 25 MB that went through it
    assert not path.with_name("journal.db-wal").exists()


async def test_an_idle_store_moves_its_log_into_the_file(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint, "QUIET_S", 0.01)
    async with open_store(path) as store:
        await store.durable(store.append(entry(1, 50_000)))
        async with asyncio.timeout(180):
            while path.stat().st_size < 50_000:  # noqa: ASYNC110 - nobody tells
                await asyncio.sleep(0.005)


async def test_names_dropped_from_the_cache_are_looked_up(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Writer and reader find names again that their caches dropped."""
    monkeypatch.setattr(
        commit_queue, "LINGER_S", 3_600.0
    )  # What nobody waits for is not there, however busy the machine is.
    monkeypatch.setattr(tables, "_REMEMBERED", 3)
    monkeypatch.setattr(reader, "_REMEMBERED", 3)
    entries = [Entry(f"tree-{n % 5}", f"run-{n % 11}", n, f"type-{n % 4}", b"") for n in range(1, 300)]
    async with open_store(path) as store:
        for at, each in enumerate(entries):
            ticket = store.append(each)
            if at % 17 == 0:
                await store.durable(ticket)
            if at % 60 == 0:
                assert len(await store.read()) == at + 1 - at % 17
        await store.durable(ticket)

        assert [Entry(*each[1:]) for each in await store.read()] == entries
        for run in range(11):
            stored = await store.read(run=f"run-{run}")
            assert [Entry(*each[1:]) for each in stored] == [each for each in entries if each.run == f"run-{run}"]


async def test_appends_without_a_waiter_are_committed_together(path: Path) -> None:
    """Events that arrive within a moment are one batch."""
    async with open_store(path) as store:
        cursors: list[int] = []
        store.on_commit(cursors.append)
        for number in range(1, 1_001):
            ticket = store.append(entry(number))
        await store.durable(ticket)

        assert cursors[-1] == 1_000
        assert len(cursors) < 50


async def test_durable_put_and_close_commit_lingering_events_at_once(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lingering events are written as one batch, whatever time they may linger."""
    monkeypatch.setattr(commit_queue, "LINGER_S", 3_600.0)
    cursors: list[int] = []
    async with open_store(path) as store:
        store.on_commit(cursors.append)
        for number in (1, 2, 3):
            ticket = store.append(entry(number))
            assert await store.read() == []  # a while later nothing is written
        await store.durable(ticket)
        assert cursors == [3]

        store.append(entry(4))
        await store.put("kind", "key", b"")
        assert cursors == [3, 4]

        store.append(entry(5))
    async with open_store(path) as store:
        assert len(await store.read()) == 5


async def test_a_file_name_with_special_uri_characters_works(tmp_path: Path) -> None:
    path = tmp_path / "a?b#c%20 ä'\".db"
    async with open_store(path) as store:
        await store.durable(store.append(entry(1)))
    async with open_store(path, read_only=True) as reading:
        assert len(await reading.read()) == 1
    assert path.exists()


def _mount_command(tmp_path: Path, options: str, deed: str) -> tuple[str, ...]:
    """Return a command that runs on a small file system of its own."""
    script = f'mount -t tmpfs -o {options} none "$0" && exec "$@"'
    run = (sys.executable, "-m", "tests.unit.store.kernel", deed, str(tmp_path / "journal.db"))
    return "unshare", "--mount", "sh", "-c", script, str(tmp_path), *run
