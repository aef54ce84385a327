"""Checks of opening, closing, and opening again."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from ramet.core.errors import StoreFailed, StoreInUse
from ramet.store.contract import Store
from ramet.testing.conformance.checks import NotHere, checks_of, expect, raises, raises_now
from ramet.testing.conformance.store.harness import (
    Check,
    StoreFixture,
    append_durably,
    cancel_and_wait,
    entries_of,
    entry,
)


async def a_store_describes_itself(fixture: StoreFixture) -> None:
    """Check that the store has a name, and says whether another process may see it."""
    store = fixture.make()
    expect(store.name and isinstance(store.name, str), "a store has a name")
    expect(isinstance(store.durable_across_processes, bool), "a store says whether it outlives its process")
    expect(
        store.durable_across_processes == (fixture.make_reader is not None),
        "a store that outlives its process can be read by another process",
    )


async def opening_and_closing_twice(fixture: StoreFixture) -> None:
    """Check that both are repeatable, also concurrently, and that `open` returns the store."""
    store = fixture.make()
    await store.close()
    expect(await store.open() is store, "open returns the store")
    expect(await store.open() is store, "a second open returns the store, too")
    await append_durably(store, entry(1))
    expect(await store.open() is store and store.committed == 1, "opening an open store changes nothing")
    await asyncio.gather(store.close(), store.close())
    await store.close()
    await asyncio.gather(store.open(), store.open())
    expect(entries_of(await store.read()) == [entry(1)], "a closed store can be opened again")
    await store.close()


async def data_survives_reopening(fixture: StoreFixture) -> None:
    """Check that events with cursors, documents with versions, and blobs exist after the store is opened again."""
    entries = [entry(n, tree=f"tree-{n % 3}", run=f"run-{n % 5}") for n in range(1, 101)]
    async with fixture.open() as store:
        await append_durably(store, *entries)
        events = await store.read()
        document = await store.put("kind", "key", b"two", expected=(await store.put("kind", "key", b"one")).version)
        blob = await store.put_blob(b"bytes")
    for number in range(101, 104):
        async with fixture.open() as store:
            expect((await store.read())[:100] == events, "events exist, with the same cursors")
            expect(await store.head() == (await store.read())[-1].cursor, "the head is unchanged")
            expect(await store.get("kind", "key") == document, "documents exist")
            expect(await store.get_blob(blob) == b"bytes", "blobs exist")
            await append_durably(store, entry(number))
            expect((await store.read())[-1].seq == number, "new events come after the earlier ones")


async def closing_commits_appended_events(fixture: StoreFixture) -> None:
    """Check that appended events exist after `close`, even without a waiter, and that waiters get a result."""
    store = await fixture.make().open()
    for number in range(1, 501):
        ticket = store.append(entry(number))
    waiting = asyncio.ensure_future(store.durable(ticket))
    await asyncio.sleep(0)
    await store.close()
    await waiting
    async with fixture.open() as store:
        expect([each.seq for each in await store.read()] == [*range(1, 501)], "all appended events exist")


async def a_cancelled_close_closes(fixture: StoreFixture) -> None:
    """Check that a cancelled close ends the store, which can be opened again, with all appended events."""
    for turns in range(6):
        store = await fixture.make().open()
        store.append(entry(turns + 1))
        closing = asyncio.ensure_future(store.close())
        for _ in range(turns):
            await asyncio.sleep(0)
        await cancel_and_wait(closing)
        await store.close()
        async with fixture.open() as store:
            expect(len(await store.read()) == turns + 1, "all appended events exist")


async def a_cancelled_open_opens_nothing(fixture: StoreFixture) -> None:
    """Check that a cancelled open leaves nothing that prevents the next one."""
    for turns in range(6):
        store = fixture.make()
        opening = asyncio.ensure_future(store.open())
        for _ in range(turns):
            await asyncio.sleep(0)
        await cancel_and_wait(opening)
        await store.close()
        for _ in range(2_000):
            try:
                async with fixture.open() as store:
                    await append_durably(store, entry(turns + 1))
            except StoreInUse:
                await asyncio.sleep(0.005)
            else:
                break
        else:
            expect(False, "the store can be opened after a cancelled open")


async def a_closed_store_refuses_every_use(fixture: StoreFixture) -> None:
    """Check that before `open` and after `close` every use raises StoreFailed, and none blocks."""
    store = fixture.make()
    await _refuses(store)
    await store.open()
    await append_durably(store, entry(1))
    await store.close()
    await _refuses(store)


async def two_kernels(fixture: StoreFixture) -> None:
    """Check that a second kernel is refused while one is open, also in the same process, with the holder's name."""
    if fixture.make_reader is None:
        raise NotHere("no other process can open this store")
    async with fixture.open() as store:
        await append_durably(store, entry(1))
        for _ in range(3):
            second = fixture.make()
            refusal = await raises(StoreInUse, second.open(), "a second kernel")
            expect(refusal.holder, "StoreInUse names the holder")
            await second.close()
        await append_durably(store, entry(2))
    async with fixture.open() as store:
        expect(len(await store.read()) == 2, "the first kernel was not disturbed, and the next one can open the store")


async def _refuses(store: Store) -> None:
    calls: dict[str, Callable[[], Awaitable[object]]] = {
        "durable": lambda: store.durable(1_000),
        "read": store.read,
        "head": store.head,
        "wait": lambda: store.wait(0),
        "forget": lambda: store.forget("tree"),
        "get": lambda: store.get("kind", "key"),
        "list": lambda: store.list("kind"),
        "put": lambda: store.put("kind", "key", b""),
        "delete": lambda: store.delete("kind", "key"),
        "put_blob": lambda: store.put_blob(b""),
        "get_blob": lambda: store.get_blob("0" * 64),
        "get_blobs": lambda: store.get_blobs(["0" * 64]),
        "put_together": lambda: store.put_together([b""], []),
        "list_blobs": store.list_blobs,
        "delete_blob": lambda: store.delete_blob("0" * 64),
        "kernels": store.kernels,
        "announce": lambda: store.announce(""),
        "owner_of": lambda: store.owner_of("tree"),
        "claim": lambda: store.claim(["tree"]),
        "claim_fallen": store.claim_orphaned,
        "let_go": lambda: store.release("tree"),
    }
    for name, call in calls.items():
        await raises(StoreFailed, call(), f"{name} of a store that is not open")
    raises_now(StoreFailed, lambda: store.append(entry(1)), "append of a store that is not open")
    raises_now(StoreFailed, lambda: store.get_blobs_now(["0" * 64]), "get_blobs_now of a store that is not open")
    raises_now(StoreFailed, lambda: store.on_commit(print), "on_commit of a store that is not open")
    raises_now(StoreFailed, lambda: store.on_loss(print), "on_loss of a store that is not open")
    raises_now(StoreFailed, lambda: store.on_tree_loss(print), "on_tree_loss of a store that is not open")
    raises_now(StoreFailed, lambda: store.on_kernels(print), "on_kernels of a store that is not open")


CHECKS: tuple[Check, ...] = checks_of(__name__)
