"""The retention job goes on after any error: what it would remove fills up the disk otherwise."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta

import msgspec
import pytest

from ramet.concurrency.clock import FakeClock
from ramet.host.journal.journal import TREES
from ramet.host.retention import janitor
from ramet.host.retention.janitor import RetentionJob
from ramet.host.retention.sweep import EXPIRED
from ramet.store.memory import MemoryStore

BEGAN = datetime(2026, 1, 1, tzinfo=UTC)


@asynccontextmanager
async def serving(job: RetentionJob) -> AsyncIterator[None]:
    await job.start()
    try:
        yield
    finally:
        await job.stop()


async def expired_tree(store: MemoryStore) -> None:
    facts = {"began": BEGAN, "over": True, "ended": BEGAN, "keep_s": 1.0}
    await store.put(TREES, "tree", msgspec.json.encode(facts))


async def wait_removed(store: MemoryStore) -> None:
    async with asyncio.timeout(60):
        while await store.get(TREES, "tree") is not None:  # noqa: ASYNC110 - the store tells nobody of a removal
            await asyncio.sleep(0.001)


async def test_a_note_that_cannot_be_read_is_passed_over(caplog: pytest.LogCaptureFixture) -> None:
    """Another version of ramet may have written it."""
    store, clock = await MemoryStore().open(), FakeClock(BEGAN + timedelta(hours=1))
    await expired_tree(store)
    await store.put(EXPIRED, "other", b"{}")

    async with serving(RetentionJob(store, (), clock, None, None)):
        await wait_removed(store)

    assert "the note of the removed tree other cannot be read" in caplog.text
    assert await store.get(EXPIRED, "tree") is not None


@pytest.mark.parametrize("error", [PermissionError("no"), ZeroDivisionError("a defect")])
async def test_the_next_look_follows_a_failed_one(
    error: Exception, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The error is logged."""
    monkeypatch.setattr(janitor, "LOOK_S", 0.001)
    store, clock = await MemoryStore().open(), FakeClock(BEGAN + timedelta(hours=1))
    await expired_tree(store)
    errors = [error]

    async def find_needed_roots() -> Collection[str]:
        if errors:
            raise errors.pop()
        return ()

    job = RetentionJob(store, (), clock, None, None)
    job.find_needed_roots = find_needed_roots
    async with serving(job):
        await wait_removed(store)

    assert "expired trees could not be removed" in caplog.text
