"""Checks of appending events, and of reading them."""

from __future__ import annotations

import asyncio
import contextlib
import itertools

from ramet.core.errors import InvalidValue
from ramet.store.contract import Entry, Rewritable, StoredEvent
from ramet.testing.conformance.checks import NotHere, checks_of, expect, raises, raises_now
from ramet.testing.conformance.store.harness import (
    Check,
    StoreFixture,
    append_durably,
    cancel_and_wait,
    entries_of,
    entry,
)

_MANY = 2_500  #: more than one page, and more than a store may write in one batch


async def tickets_count_from_one(fixture: StoreFixture) -> None:
    """Check that appends return 1, 2, 3, …, starting again each time the store is opened."""
    async with fixture.open() as store:
        expect(store.committed == 0, "nothing is committed at first")
        expect([store.append(entry(n)) for n in (1, 2, 3)] == [1, 2, 3], "tickets are 1, 2, 3")
    async with fixture.open() as store:
        expect(store.committed == 0, "nothing is committed since the store was opened again")
        expect(store.append(entry(4)) == 1, "tickets begin at 1 each time the store is opened")


async def durable_entries_are_read(fixture: StoreFixture) -> None:
    """Check that `durable` returns once the entry and all before it are committed; reads return them unchanged."""
    async with fixture.open() as store:
        entries = [entry(n) for n in range(1, 8)]
        for each in entries:
            last = store.append(each)
        await store.durable(last)
        expect(store.committed >= last, "a durable ticket is committed")
        events = await store.read()
        expect(entries_of(events) == entries, "entries are read as they were appended")
        expect(all(isinstance(each, StoredEvent) for each in events), "events are read as StoredEvent")
        await store.durable(1)
        await asyncio.gather(*(store.durable(ticket) for ticket in range(last, 0, -1)))


async def events_are_read_in_append_order(fixture: StoreFixture) -> None:
    """Check that events are read in the order of appending, whatever their tree and run."""
    async with fixture.open() as store:
        entries = [entry(n, tree=f"tree-{n % 7}", run=f"run-{n % 13}") for n in range(1, _MANY)]
        await append_durably(store, *entries)
        events = await store.read(limit=_MANY)
        expect(entries_of(events) == entries, "events are in append order")
        cursors = [each.cursor for each in events]
        expect(all(a < b for a, b in itertools.pairwise(cursors)) and cursors[0] > 0, "cursors are above 0 and grow")


async def an_entry_is_committed_without_a_waiter(fixture: StoreFixture) -> None:
    """Check that an entry is committed even if no task awaits it."""
    async with fixture.open() as store:
        committed = asyncio.Event()
        store.on_commit(lambda _: committed.set())
        store.append(entry(1))
        await committed.wait()
        expect(store.committed == 1, "the entry is committed without a waiter")


async def twenty_producers(fixture: StoreFixture) -> None:
    """Check that each producer gets its tickets, and that each entry exists once, in its producer's order."""
    async with fixture.open() as store:
        tickets = list[int]()

        async def produce(producer: int) -> None:
            for number in range(1, 51):
                ticket = store.append(entry(number, run=f"run-{producer}"))
                tickets.append(ticket)
                await store.durable(ticket)
                expect(store.committed >= ticket, "a durable ticket is committed")

        await asyncio.gather(*map(produce, range(20)))
        expect(sorted(tickets) == [*range(1, 1001)], "no ticket is returned twice")
        for producer in range(20):
            events = await store.read(run=f"run-{producer}")
            expect(
                [each.seq for each in events] == [*range(1, 51)],
                "the entries of each producer exist once, in its order",
            )


async def listeners_are_called_before_waiters(fixture: StoreFixture) -> None:
    """Check that `on_commit` calls listeners on the loop with growing tickets, before `durable` returns.

    A listener that was removed is not called any more.
    """
    async with fixture.open() as store:
        tickets, removed_tickets = list[int](), list[int]()
        loop = asyncio.get_running_loop()

        def listen(ticket: int) -> None:
            expect(asyncio.get_running_loop() is loop, "listeners are called on the event loop")
            expect(store.committed >= ticket, "a reported ticket is committed")
            tickets.append(ticket)

        store.on_commit(listen)
        remove = store.on_commit(removed_tickets.append)
        for number in range(1, 20):
            ticket = store.append(entry(number))
            await store.durable(ticket)
            expect(tickets and tickets[-1] >= ticket, "listeners are called before waiters continue")
        expect(
            all(a < b for a, b in itertools.pairwise(tickets)), "each batch is reported once, with its newest ticket"
        )
        before = list(removed_tickets)
        remove()
        remove()
        await append_durably(store, entry(20))
        expect(before and removed_tickets == before, "a removed listener is not called any more")


async def a_failing_listener_affects_no_other(fixture: StoreFixture) -> None:
    """Check that a failing listener affects neither other listeners nor waiters."""

    def fail(_: int) -> None:
        raise ValueError("a listener that fails")

    async with fixture.open() as store:
        tickets = list[int]()
        store.on_commit(fail)
        store.on_commit(tickets.append)
        await append_durably(store, entry(1))
        expect(tickets == [1], "the other listener is called")
        await append_durably(store, entry(2))
        expect(tickets[-1] == 2, "the other listener is called again")


async def a_listener_may_append(fixture: StoreFixture) -> None:
    """Check that an entry that a listener appends is reported, too, and later."""
    async with fixture.open() as store:
        tickets = list[int]()

        def echo(ticket: int) -> None:
            if ticket < 3:
                store.append(entry(ticket + 1))

        store.on_commit(echo)
        store.on_commit(tickets.append)
        all_called = asyncio.Event()
        store.on_commit(lambda ticket: all_called.set() if ticket == 3 else None)
        store.append(entry(1))
        await all_called.wait()
        expect(tickets == [1, 2, 3], "each listener gets the tickets in order")


async def a_cancelled_wait_undoes_nothing(fixture: StoreFixture) -> None:
    """Check that after a cancelled wait the appended entries are written, and later waits work."""
    async with fixture.open() as store:
        for number in range(1, 30):
            ticket = store.append(entry(number))
            waiting = asyncio.ensure_future(store.durable(ticket))
            for _ in range(number % 4):
                await asyncio.sleep(0)
            await cancel_and_wait(waiting)
        await append_durably(store, entry(30))
        expect([each.seq for each in await store.read()] == [*range(1, 31)], "every entry exists once, in order")


async def an_unknown_ticket_is_refused(fixture: StoreFixture) -> None:
    """Check that waiting for an unknown ticket is an error, not an endless wait."""
    async with fixture.open() as store:
        await append_durably(store, entry(1))
        await raises(InvalidValue, store.durable(2), "an unknown ticket")


async def reading_by_tree_and_run(fixture: StoreFixture) -> None:
    """Check that a read returns only the requested events, in order; none for unknown names."""
    async with fixture.open() as store:
        entries = [entry(n, tree=f"tree-{n % 2}", run=f"run-{n % 3}") for n in range(1, 61)]
        await append_durably(store, *entries)
        for tree, run in itertools.product((None, "tree-0", "tree-1", "none"), (None, "run-0", "run-2", "none")):
            expected = [each for each in entries if tree in (None, each.tree) and run in (None, each.run)]
            expect(
                entries_of(await store.read(tree=tree, run=run)) == expected,
                f"tree={tree} run={run} returns only the requested events",
            )


async def reading_in_pages(fixture: StoreFixture) -> None:
    """Check that `after` and `limit` cut pages that together are the whole; no event follows the head."""
    async with fixture.open() as store:
        entries = [entry(n, tree=f"tree-{n % 2}", run=f"run-{n % 4}") for n in range(1, 401)]
        await append_durably(store, *entries)
        for tree, run in ((None, None), ("tree-1", None), (None, "run-2"), ("tree-1", "run-1")):
            whole = await store.read(tree=tree, run=run)
            for limit in (1, 7, 99, 400, 5_000):
                events, after = list[StoredEvent](), 0
                while page := await store.read(after, limit=limit, tree=tree, run=run):
                    expect(len(page) <= limit, "a page has at most the requested number of events")
                    expect(
                        len(page) == min(limit, len(whole) - len(events)),
                        "a page has the requested number of events while there are more",
                    )
                    events, after = events + page, page[-1].cursor
                    if limit == 1 and len(events) == 5:
                        break
                expect(
                    events == whole[: len(events)] and (limit == 1 or events == whole),
                    "all pages together are the whole",
                )
        expect(await store.read(limit=0) == [], "a limit of 0 returns no events")
        expect(await store.read(whole[-1].cursor + 1_000_000) == [], "there are no events after the head")
        expect(len(await store.read(-5)) == 400, "all events are after any number below 1")


async def many_large_events(fixture: StoreFixture) -> None:
    """Check that thousands of events between two waits, and events of a megabyte, are returned unchanged."""
    async with fixture.open() as store:
        entries = [entry(n) for n in range(1, 8_001)]
        entries[3_000] = entry(3_001, data=b"[" + b"x" * (1 << 20) + b"]")
        entries[3_002] = entry(3_003, data=b"[" + b"y" * 70_000 + b"]")
        await append_durably(store, *entries)
        expect(entries_of(await store.read(limit=10_000)) == entries, "all events are read unchanged")


async def any_bytes(fixture: StoreFixture) -> None:
    """Check that data may be any bytes: NUL, invalid UTF-8, and empty data, too."""
    every = bytes(range(256))
    async with fixture.open() as store:
        entries = [entry(n, data=data) for n, data in enumerate((b"", every, b"\0", b"\0" * 9, every[::-1], b","), 1)]
        await append_durably(store, *entries)
        expect(entries_of(await store.read()) == entries, "data are read unchanged")


async def any_names(fixture: StoreFixture) -> None:
    """Check that names of trees, runs and types may be any text that UTF-8 can hold, except NUL."""
    names = ("ä", "e\u0301", "é", "𝔗", "run,1", "'", '"', "%", "_", "\\", " ", "a b", "\n", "RUN", "run", "\U0010ffff")
    async with fixture.open() as store:
        entries = [Entry(name, name, n, name, b"{}") for n, name in enumerate(names, 1)]
        await append_durably(store, *entries)
        expect(entries_of(await store.read()) == entries, "names are read unchanged")
        for each in entries:
            expect(
                entries_of(await store.read(tree=each.tree)) == [each], f"a tree has only its own events: {each.tree!r}"
            )
            expect(entries_of(await store.read(run=each.run)) == [each], f"a run has only its own events: {each.run!r}")


async def an_invalid_entry_is_refused_at_once(fixture: StoreFixture) -> None:
    """Check that `append` refuses an invalid entry with InvalidValue, and that the store continues unaffected."""
    good = entry(1)
    async with fixture.open() as store:
        for bad in (
            good._replace(tree="a\0b"),
            good._replace(run="\ud800"),
            good._replace(type="\udfff"),
            good._replace(seq=2**63),
            good._replace(seq=-1),
        ):

            def append(bad: Entry = bad) -> int:
                return store.append(bad)

            raises_now(InvalidValue, append, f"an invalid entry: {bad}")
        expect(await append_durably(store, good) == 1, "a refused entry has no ticket")
        expect(entries_of(await store.read()) == [good], "a refused entry is not stored")


async def forgetting(fixture: StoreFixture) -> None:
    """Check that `forget` removes the events of one tree only, and returns their number; the name can be used again."""
    async with fixture.open() as store:
        remaining = [entry(n, tree="kept") for n in range(1, 6)]
        await append_durably(store, *itertools.chain(*((each, entry(each.seq, tree="gone")) for each in remaining)))
        store.append(entry(6, tree="gone"))
        expect(
            await store.forget("gone") == 6,
            "forget returns the number of events, including those that were not durable",
        )
        expect(await store.forget("gone") == 0 and await store.forget("none") == 0, "a second forget removes nothing")
        expect(entries_of(await store.read()) == remaining, "events of other trees stay")
        expect(await store.read(tree="gone") == [], "the forgotten tree has no events")
        new_entry = entry(1, tree="gone", run="another")
        await append_durably(store, new_entry)
        expect(
            entries_of(await store.read(tree="gone")) == [new_entry], "the name of a forgotten tree can be used again"
        )


async def cursors_are_never_used_twice(fixture: StoreFixture) -> None:
    """Check that a reader at a cursor misses no event, even if the newest events were forgotten meanwhile."""
    async with fixture.open() as store:
        await append_durably(store, entry(1, tree="kept"), entry(1, tree="gone"), entry(2, tree="gone"))
        after = await store.head()
        expect(after == (await store.read())[-1].cursor, "the head is the newest cursor")
        await store.forget("gone")
        first = await store.read()
        expect(await store.head() == first[-1].cursor, "the head is the newest remaining cursor")
    async with fixture.open() as store:
        await append_durably(store, entry(2, tree="kept"))
        expect(
            [each.seq for each in await store.read(after)] == [2], "new events have cursors above the forgotten ones"
        )
        await store.forget("kept")
        expect(await store.head() == 0, "the head is 0 without events")


async def forget_removes_only_earlier_entries(fixture: StoreFixture) -> None:
    """Check that `forget` removes entries appended before it, and not those after it, without a wait in between."""
    async with fixture.open() as store:
        store.append(entry(1))
        removal = asyncio.ensure_future(store.forget("tree"))
        await asyncio.sleep(0)
        store.append(entry(2))
        with contextlib.suppress(asyncio.CancelledError):
            expect(await removal == 1, "the earlier entry is forgotten")
        await append_durably(store, entry(3))
        expect([each.seq for each in await store.read()] == [2, 3], "later entries exist")


async def rewriting(fixture: StoreFixture) -> None:
    """Check that a replaced event keeps its place; others stay unchanged, also after the store is opened again."""
    async with fixture.open() as store:
        if not isinstance(store, Rewritable):
            raise NotHere("its events cannot be replaced")
        await append_durably(store, *(entry(n) for n in (1, 2, 3)))
        before = await store.read()
        await store.rewrite(before[1].cursor, b"\x00another")
        await store.rewrite(before[2].cursor + 1_000, b"of no event")
        expected = [before[0], before[1]._replace(data=b"\x00another"), before[2]]
        expect(await store.read() == expected, "the event is replaced, with the same cursor")
        text = store.rewrite(before[0].cursor, "text")  # type: ignore[arg-type]  # what is refused
        await raises(InvalidValue, text, "a replacement that is not bytes")
        await append_durably(store, entry(4))
    async with fixture.open() as store:
        expect([each.seq for each in await store.read()] == [1, 2, 3, 4], "events are in append order")
        expect((await store.read())[:3] == expected, "the replacement exists after the store is opened again")


CHECKS: tuple[Check, ...] = checks_of(__name__)
