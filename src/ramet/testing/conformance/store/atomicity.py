"""Checks of blobs and documents that are written atomically, and of reading many blobs in one call."""

from __future__ import annotations

import asyncio
import hashlib

from ramet.core.errors import Conflict, InvalidValue
from ramet.store.contract import Document, DocumentWrite
from ramet.testing.conformance.checks import checks_of, expect, raises
from ramet.testing.conformance.store.harness import Check, StoreFixture, cancel_and_wait, entry


async def an_atomic_write_stores_everything(fixture: StoreFixture) -> None:
    """Check that all blobs and documents of one write exist, and that earlier appended events are durable."""
    async with fixture.open() as store:
        await store.put("kind", "old", b"one")
        ticket = store.append(entry(1))
        documents = [
            DocumentWrite("kind", "new", b"1", 0),
            DocumentWrite("kind", "old", b"two", 1),
            DocumentWrite("kind", "any", b"\0\xff"),
        ]
        blobs = [b"", b"one", bytes(range(256)), b"one", b"x" * (1 << 20)]
        written = await store.put_together(blobs, documents)
        expected = [
            Document("kind", "new", 1, b"1"),
            Document("kind", "old", 2, b"two"),
            Document("kind", "any", 1, b"\0\xff"),
        ]
        expect([*written] == expected, "the written documents are returned")
        expect(store.committed >= ticket, "earlier events are durable")
        for document in expected:
            expect(await store.get("kind", document.key) == document, "the documents exist")
        for data in blobs:
            expect(await store.get_blob(_name(data)) == data, "the blobs exist")
        expect(len(await store.list_blobs()) == 4, "equal bytes are one blob")
        expect([*await store.put_together([], [])] == [], "an empty write is allowed")
        expect([*await store.put_together([b"alone"], [])] == [], "blobs need no documents")
        expect(await store.get_blob(_name(b"alone")) == b"alone", "blobs without documents exist")
    async with fixture.open() as store:
        expect(await store.get("kind", "old") == expected[1], "documents exist after the store is opened again")
        expect(await store.get_blob(_name(b"alone")) == b"alone", "blobs exist after the store is opened again")


async def all_or_nothing(fixture: StoreFixture) -> None:
    """Check that one document of another version prevents the whole write, and that Conflict names it."""
    async with fixture.open() as store:
        await store.put("kind", "b", b"here")
        for wrong in (0, 2):
            documents = [
                DocumentWrite("kind", "a", b"1", 0),
                DocumentWrite("kind", "b", b"2", wrong),
                DocumentWrite("kind", "c", b"3"),
            ]
            conflict = await raises(Conflict, store.put_together([b"blob"], documents), "a document of another version")
            expect((conflict.kind, conflict.key) == ("kind", "b"), "Conflict names the document")
            expect((conflict.expected, conflict.found) == (wrong, 1), "Conflict names both versions")
            keys = [each.key for each in await store.list("kind")]
            expect(keys == ["b"], f"no document was written: {keys}")
            expect(await store.get("kind", "b") == Document("kind", "b", 1, b"here"), "no document was changed")
            expect(await store.get_blob(_name(b"blob")) is None, "no blob was written")
        for expected_data in (b"her", b"", b"here "):
            documents_again = [DocumentWrite("kind", "b", b"2", 1, expected_data), DocumentWrite("kind", "c", b"3")]
            await raises(Conflict, store.put_together([b"blob"], documents_again), "a document with other data")
        await raises(
            Conflict,
            store.put_together([b"blob"], [DocumentWrite("kind", "a", b"1", 0, b"")]),
            "expected data of a missing document",
        )
        expect([each.key for each in await store.list("kind")] == ["b"], "nothing was written")
        await store.delete("kind", "b")
        await store.put("kind", "b", b"anew")
        await raises(
            Conflict,
            store.put_together([], [DocumentWrite("kind", "b", b"2", 1, b"here")]),
            "a document that was deleted and created again",
        )
        (document,) = await store.put_together([], [DocumentWrite("kind", "b", b"2", 1, b"anew")])
        expect(document == Document("kind", "b", 2, b"2"), "a document of the expected version and data is replaced")
        twice = [DocumentWrite("kind", "d", b"1"), DocumentWrite("kind", "d", b"2")]
        await raises(InvalidValue, store.put_together([b"blob"], twice), "a document that is named twice")
        await raises(InvalidValue, store.put_together([], [DocumentWrite("kind", "\0", b"")]), "a name with NUL")
        expect(await store.get_blob(_name(b"blob")) is None, "a refused write stores nothing")
        expect(
            (await store.put_together([], [DocumentWrite("kind", "d", b"1", 0)]))[0].version == 1,
            "the store continues to work",
        )


async def one_atomic_write_wins(fixture: StoreFixture) -> None:
    """Check that exactly one of many atomic writes over the same document wins, and only its other documents exist."""
    async with fixture.open() as store:
        for version in range(4):
            claims = (
                store.put_together(
                    [b"%d %d" % (version, writer)],
                    [
                        DocumentWrite("own", f"{version}-{writer}", b""),
                        DocumentWrite("head", "one", b"%d" % writer, version),
                    ],
                )
                for writer in range(15)
            )
            ended = await asyncio.gather(*claims, return_exceptions=True)
            winners = [writer for writer, each in enumerate(ended) if not isinstance(each, BaseException)]
            expect(len(winners) == 1, f"exactly one write wins: {ended}")
            expect(
                all(isinstance(each, Conflict) for n, each in enumerate(ended) if n not in winners),
                "the other writes get Conflict",
            )
            own = [each.key for each in await store.list("own", prefix=f"{version}-")]
            expect(own == [f"{version}-{winners[0]}"], "documents of the other writes do not exist")
            existing = [
                writer for writer in range(15) if await store.get_blob(_name(b"%d %d" % (version, writer))) is not None
            ]
            expect(existing == winners, "blobs of the other writes do not exist")


async def a_cancelled_atomic_write_is_whole_or_nothing(fixture: StoreFixture) -> None:
    """Check that a cancelled atomic write leaves all of it or nothing."""
    async with fixture.open() as store:
        for turns in range(8):
            blob, documents = (
                b"blob %d" % turns,
                [DocumentWrite("a", str(turns), b""), DocumentWrite("b", str(turns), b"")],
            )
            writing = asyncio.ensure_future(store.put_together([blob], documents))
            for _ in range(turns % 5):
                await asyncio.sleep(0)
            await cancel_and_wait(writing)
            await store.put("kind", "another", b"")  # Every pending write has ended by now.
            presence = {
                await store.get("a", str(turns)) is not None,
                await store.get("b", str(turns)) is not None,
                await store.get_blob(_name(blob)) is not None,
            }
            expect(len(presence) == 1, "all of the write exists, or nothing")


async def many_blobs_are_read_at_once(fixture: StoreFixture) -> None:
    """Check that many blobs are read in one call, awaited or not, and that unknown names are left out."""
    async with fixture.open() as store:
        stored = {_name(data): data for data in (b"%d" % n * 50 for n in range(300))}
        await store.put_together([*stored.values()], [])
        names = [*stored, *("0" * 64, "", "no blob", "ä" * 64), next(iter(stored))]
        expect(dict(await store.get_blobs(names)) == stored, "existing blobs are returned by their names")
        expect(dict(store.get_blobs_now(names)) == stored, "the call without await returns the same blobs")
        blobs = await asyncio.to_thread(store.get_blobs_now, names)
        expect(dict(blobs) == stored, "a call from another thread returns the same blobs")
        expect(dict(await store.get_blobs([])) == {} == dict(store.get_blobs_now([])), "an empty request is allowed")
        name = next(iter(stored))
        await store.delete_blob(name)
        expect(dict(store.get_blobs_now([name])) == {}, "a removed blob is not returned")


def _name(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


CHECKS: tuple[Check, ...] = checks_of(__name__)
