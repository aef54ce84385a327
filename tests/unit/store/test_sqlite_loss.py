"""Tests of a journal that lost committed events: it is refused until the loss is accepted."""

# Small files of a test, looked at by a loop that has nothing else to do.
# ruff: noqa: ASYNC240

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from ramet.core.errors import Damaged, StoreInUse
from ramet.store.sqlite.accept_loss import accept_loss
from ramet.store.sqlite.compaction import compact
from ramet.store.sqlite.high_water import NOTHING, Mark, mark_of
from ramet.store.sqlite.store import SqliteStore
from tests.unit.store.kernel import entry
from tests.unit.store.test_sqlite import open_store, read_line, run_kernel

EVENTS = 40


@pytest.fixture
async def path(tmp_path: Path) -> Path:
    """Return the journal of a killed kernel, with later commits only in its log."""
    path = tmp_path / "left" / "journal.db"
    path.parent.mkdir()
    async with open_store(tmp_path / "journal.db") as store:
        await store.durable(store.append(entry(1)))
    shutil.copy(tmp_path / "journal.db", tmp_path / "older.db")
    async with open_store(tmp_path / "journal.db") as store:
        for number in range(2, EVENTS + 1):
            await store.durable(store.append(entry(number)))
        await store.put("kind", "key", b"value")
        for suffix in ("", "-wal", ".mark"):
            shutil.copy(tmp_path / f"journal.db{suffix}", path.parent)
    return path


def log_of(path: Path) -> Path:
    return path.with_name("journal.db-wal")


def shorten_log(path: Path) -> None:
    with log_of(path).open("r+b") as log:
        log.truncate(log_of(path).stat().st_size // 2)


def cut_last_commit(path: Path) -> None:
    with log_of(path).open("r+b") as log:
        log.truncate(log_of(path).stat().st_size - 4096)


def remove_log(path: Path) -> None:
    log_of(path).unlink()


def empty_log(path: Path) -> None:
    log_of(path).write_bytes(b"")


def empty(path: Path) -> None:
    path.write_bytes(b"")


def remove(path: Path) -> None:
    path.unlink()


def remove_all_of_sqlite(path: Path) -> None:
    path.unlink()
    log_of(path).unlink()


def put_older_in_place(path: Path) -> None:
    log_of(path).unlink()
    shutil.copy(path.parent.parent / "older.db", path)


DAMAGES = [
    shorten_log,
    cut_last_commit,
    remove_log,
    empty_log,
    empty,
    remove,
    remove_all_of_sqlite,
    put_older_in_place,
]


async def test_the_journal_of_a_killed_kernel_is_complete(path: Path) -> None:
    """Control: every event and document is there."""
    async with open_store(path) as store:
        assert len(await store.read()) == EVENTS
        assert await store.get("kind", "key") is not None


@pytest.mark.parametrize("damage", DAMAGES)
async def test_a_journal_with_a_loss_is_refused_until_it_is_accepted(
    path: Path, damage: Callable[[Path], None]
) -> None:
    """The error names the last commit and the repair, and changes nothing; lost cursors are not used again."""
    damage(path)
    before = {each.name: each.read_bytes() for each in path.parent.iterdir()}

    with pytest.raises(Damaged, match=rf"(?s)event {EVENTS} and change 1 were committed.*ramet repair --accept-loss"):
        await SqliteStore(path).open()
    if path.exists():
        with pytest.raises(Damaged):
            compact(path)

    after = {each.name: each.read_bytes() for each in path.parent.iterdir() if each.suffix not in (".lock", ".db-shm")}
    assert after == before

    accepted_loss = accept_loss(path)

    assert accepted_loss.is_loss
    assert accepted_loss.committed_mark == Mark(EVENTS, 1)
    async with open_store(path) as store:
        count = len(await store.read())
        assert count < EVENTS or accepted_loss.actual_mark == Mark(EVENTS, 0)
        await store.durable(store.append(entry(count + 1)))
        assert await store.head() == EVENTS + 1
    assert not accept_loss(path).is_loss


async def test_a_reader_of_a_journal_with_a_loss_is_warned_and_not_refused(path: Path) -> None:
    """A person can read the remaining events before the decision."""
    shorten_log(path)

    async with open_store(path, read_only=True) as store:
        assert 0 < len(await store.read()) < EVENTS
        assert store.loss is not None
        assert "--accept-loss" in str(store.loss)
    async with open_store(path.parent.parent / "journal.db", read_only=True) as store:
        assert store.loss is None


async def test_a_loss_is_not_accepted_while_a_kernel_runs(path: Path) -> None:
    async with run_kernel("hold", path) as first:
        await read_line(first)

        with pytest.raises(StoreInUse):
            accept_loss(path)


@pytest.mark.parametrize(
    "content",
    [
        None,
        b"",
        b"x" * 64,
        b"y" * 100_000,
        Mark(2, 0).line[:-1] + b"?",
        b"ramet 1",
        pytest.param(Mark(2**62 + 1, 0).line, id="more events than there can be"),
        pytest.param(Mark(0, 10**16 - 1).line, id="more changes than there can be"),
    ],
)
async def test_an_unreadable_mark_is_ignored(path: Path, content: bytes | None) -> None:
    """A journal of an older version has no mark; a power cut may leave any bytes in a file that is not synced."""
    mark = path.with_name("journal.db.mark")
    mark.unlink()
    if content is not None:
        mark.write_bytes(content)
    remove_log(path)

    assert mark_of(path) == NOTHING
    async with open_store(path) as store:
        await store.durable(store.append(entry(2)))
    assert mark_of(path) == Mark(2, 0)


async def test_an_unwritable_mark_is_logged_once(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The journal is written all the same."""
    async with open_store(path) as store:
        mark = path.with_name("journal.db.mark")
        mark.unlink()
        mark.mkdir()
        for number in range(2):
            await store.durable(store.append(entry(EVENTS + 1 + number)))

    assert [each.getMessage().split(":")[0] for each in caplog.records] == [f"{mark} cannot be written"]


async def test_an_outdated_mark_does_not_prevent_opening(path: Path) -> None:
    """A power cut may leave an outdated mark, because marks are not synced."""
    path.with_name("journal.db.mark").write_bytes(Mark(3, 0).line)

    async with open_store(path) as store:
        assert len(await store.read()) == EVENTS


async def test_forgotten_events_and_deleted_documents_are_no_loss(path: Path) -> None:
    """The newest events may be forgotten, and documents deleted."""
    async with open_store(path) as store:
        for tree in range(3):
            await store.forget(f"tree-{tree}")
        await store.delete("kind", "key")
        await store.shrink()

    async with open_store(path) as store:
        assert await store.head() == 0
    assert mark_of(path).cursor == EVENTS


async def test_no_kill_leaves_a_journal_behind_its_mark(tmp_path: Path) -> None:
    """The mark is written after the commit, so no moment of a kill matters."""
    path = tmp_path / "journal.db"
    for turn in range(1, 5):
        async with run_kernel("append", path) as process:
            for _ in range(3 * turn):
                output_line = await read_line(process)
            process.kill()
            await process.wait()
        async with open_store(path, read_only=True) as store:
            assert await store.head() >= mark_of(path).cursor >= int(output_line)


async def test_two_concurrent_opens_of_a_journal_with_a_loss_are_both_refused(path: Path) -> None:
    """The first of them leaves neither a lock nor a new file."""
    remove_all_of_sqlite(path)

    for outcome in await asyncio.gather(*(SqliteStore(path).open() for _ in range(2)), return_exceptions=True):
        assert isinstance(outcome, Damaged | StoreInUse)

    assert not path.exists()
