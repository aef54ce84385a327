"""Checks of waiting for the next event, in this process and in another."""

from __future__ import annotations

import asyncio

from ramet.core.errors import StoreFailed
from ramet.store.contract import Store, StoredEvent
from ramet.testing.conformance.checks import checks_of, expect, raises
from ramet.testing.conformance.store.harness import (
    Check,
    StoreFixture,
    append_durably,
    cancel_and_wait,
    entries_of,
    entry,
)


async def the_head_is_the_newest_cursor(fixture: StoreFixture) -> None:
    """Check that the head is 0 at first, then the cursor of the newest event."""
    async with fixture.open() as store:
        expect(await store.head() == 0, "the head is 0 without events")
        for number in range(1, 4):
            await append_durably(store, entry(number))
            expect(await store.head() == (await store.read())[-1].cursor, "the head is the newest cursor")


async def waiting_for_an_existing_event(fixture: StoreFixture) -> None:
    """Check that waiting for an existing event takes no time, and for a missing one as long as the time limit."""
    async with fixture.open() as store:
        expect(await store.wait(0, timeout_s=0) is False, "a wait for a missing event ends at its time limit")
        await append_durably(store, entry(1))
        expect(await store.wait(0) is True, "a wait for an existing event ends at once")
        expect(await store.wait(0, timeout_s=0) is True, "a wait for an existing event needs no time")
        head = await store.head()
        expect(
            await store.wait(head, timeout_s=0.01) is False, "a wait for an event after the head ends at its time limit"
        )


async def waiting_for_a_new_event(fixture: StoreFixture) -> None:
    """Check that a waiter continues when an event arrives, and finds it; a cancelled wait affects no other."""
    async with fixture.open() as store:
        waiting = [asyncio.ensure_future(_wait_and_read(store, 0)) for _ in range(20)]
        await asyncio.sleep(0)
        for each in waiting[::2]:
            await cancel_and_wait(each)
        await append_durably(store, entry(1))
        for events in await asyncio.gather(*waiting[1::2]):
            expect(entries_of(events) == [entry(1)], "a waiter finds the new event")


async def a_forgotten_event_ends_no_wait(fixture: StoreFixture) -> None:
    """Check that a wait ends only with an event that can be read."""
    async with fixture.open() as store:
        await append_durably(store, entry(1, tree="kept"), entry(1, tree="gone"))
        after = (await store.read())[0].cursor
        await store.forget("gone")
        expect(await store.wait(after, timeout_s=0.01) is False, "a forgotten event does not end a wait")
        waiting = asyncio.ensure_future(_wait_and_read(store, after))
        await asyncio.sleep(0)
        await append_durably(store, entry(2, tree="kept"))
        expect(entries_of(await waiting) == [entry(2, tree="kept")], "the next event ends the wait")


async def a_wait_ends_with_its_store(fixture: StoreFixture) -> None:
    """Check that `close` ends every wait."""
    async with fixture.open() as store:
        waiting = asyncio.ensure_future(store.wait(0))
        await asyncio.sleep(0)
        await store.close()
        await raises(StoreFailed, waiting, "a wait of a closed store")


async def following_during_appends(fixture: StoreFixture) -> None:
    """Check that a follower that reads and waits gets each event once, in order, during concurrent appends."""
    async with fixture.open() as store:
        following = asyncio.ensure_future(_follow(store, 1_000))
        entries = [entry(n, run=f"run-{n % 3}") for n in range(1, 1_001)]
        for at, each in enumerate(entries):
            ticket = store.append(each)
            if at % 100 == 0:
                await store.durable(ticket)
            if at % 7 == 0:
                await asyncio.sleep(0)
        expect(entries_of(await following) == entries, "each event once, in order")


async def a_concurrent_reader_sees_writes(fixture: StoreFixture) -> None:
    """Check that another reader sees durable events, documents and blobs immediately, and cannot write."""
    async with fixture.open() as store:
        await append_durably(store, entry(1))
        blob = await store.put_blob(b"bytes")
        document = await store.put("kind", "key", b"data")
        async with fixture.open_reader() as reader:
            expect(entries_of(await reader.read()) == [entry(1)], "the reader sees the events")
            expect(await reader.head() == await store.head(), "the reader sees the head")
            expect(await reader.get("kind", "key") == document, "the reader sees the documents")
            expect(await reader.list("kind") == [document], "the reader lists the documents")
            expect(
                await reader.get_blob(blob) == b"bytes" and [*await reader.list_blobs()] == [blob],
                "the reader sees the blobs",
            )
            await append_durably(store, entry(2, run="another"))
            expect(entries_of(await reader.read()) == [entry(1), entry(2, run="another")], "the reader sees new events")
            await store.forget("tree")
            expect(await reader.read() == [], "the reader does not see forgotten events")

            async def append() -> None:
                reader.append(entry(3))

            await raises(StoreFailed, append(), "appending through a reader")
            await raises(StoreFailed, reader.put("kind", "key", b""), "writing through a reader")
            await raises(StoreFailed, reader.forget("tree"), "forgetting through a reader")


async def a_concurrent_reader_is_woken(fixture: StoreFixture) -> None:
    """Check that another reader is woken by writes of this store, and follows them."""
    async with fixture.open() as store, fixture.open_reader() as reader:
        expect(await reader.wait(0, timeout_s=0.01) is False, "a wait for a missing event ends at its time limit")
        following = asyncio.ensure_future(_follow(reader, 300))
        entries = [entry(n, tree=f"tree-{n % 5}") for n in range(1, 301)]
        for at, each in enumerate(entries):
            ticket = store.append(each)
            if at % 30 == 0:
                await store.durable(ticket)
        expect(entries_of(await following) == entries, "the reader follows the events")


async def a_reader_outlives_its_writer(fixture: StoreFixture) -> None:
    """Check that another reader continues when the writer ends, and when the next one begins."""
    async with fixture.open() as store:
        await append_durably(store, entry(1))
    async with fixture.open_reader() as reader:
        expect(entries_of(await reader.read()) == [entry(1)], "the reader works without a writer")
        waiting = asyncio.ensure_future(_wait_and_read(reader, await reader.head()))
        async with fixture.open() as store:
            await append_durably(store, entry(2))
            expect(entries_of(await waiting) == [entry(2)], "the next writer wakes the reader")


async def _wait_and_read(store: Store, after: int) -> list[StoredEvent]:
    expect(await store.wait(after) is True, "a wait without a time limit ends with an event")
    return await store.read(after)


async def _follow(store: Store, count: int) -> list[StoredEvent]:
    events, after = list[StoredEvent](), 0
    while len(events) < count:
        await store.wait(after)
        page = await store.read(after, limit=64)
        expect(page, "an event that ended a wait can be read")
        events += page
        after = events[-1].cursor
    return events


CHECKS: tuple[Check, ...] = checks_of(__name__)
