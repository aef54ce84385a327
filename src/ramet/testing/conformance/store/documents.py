"""Checks of documents, whose changes have one winner, and of blobs."""

from __future__ import annotations

import asyncio
import hashlib

from ramet.core.errors import Conflict, InvalidValue
from ramet.store.contract import Document
from ramet.testing.conformance.checks import checks_of, expect, raises
from ramet.testing.conformance.store.harness import Check, StoreFixture, cancel_and_wait, entry


async def document_versions_count_from_one(fixture: StoreFixture) -> None:
    """Check that versions count from 1, that the newest is read, and that other kinds and keys are separate."""
    async with fixture.open() as store:
        expect(await store.get("kind", "key") is None, "there is no document at first")
        for version, data in enumerate((b"one", b"", bytes(range(256))), 1):
            document = await store.put("kind", "key", data)
            expect(document == Document("kind", "key", version, data), "put returns the written document")
            expect(await store.get("kind", "key") == document, "the written document is read")
        await store.put("other", "key", b"other")
        await store.put("kind", "other", b"other")
        expect(await store.get("kind", "key") == document, "documents of other kinds and keys are separate")
        expect(await store.get("key", "kind") is None, "kind and key are not exchanged")


async def a_write_over_another_version_conflicts(fixture: StoreFixture) -> None:
    """Check that `expected` must be the version, 0 for none; otherwise Conflict names both, and nothing changes."""
    async with fixture.open() as store:
        conflict = await raises(Conflict, store.put("kind", "key", b"x", expected=1), "a version of a missing document")
        expect((conflict.expected, conflict.found) == (1, 0), "Conflict names the found version")
        await store.put("kind", "key", b"one", expected=0)
        conflict = await raises(Conflict, store.put("kind", "key", b"two", expected=0), "an existing document")
        expect((conflict.kind, conflict.key) == ("kind", "key"), "Conflict names the document")
        expect((conflict.expected, conflict.found) == (0, 1), "Conflict names both versions")
        two = await store.put("kind", "key", b"two", expected=1)
        await raises(Conflict, store.put("kind", "key", b"three", expected=1), "an old version")
        await raises(Conflict, store.delete("kind", "key", expected=1), "a deletion of an old version")
        await raises(
            Conflict, store.delete("kind", "key", expected=0), "a deletion of version 0 of an existing document"
        )
        await raises(
            Conflict, store.delete("kind", "none", expected=1), "a deletion of a version of a missing document"
        )
        expect(await store.get("kind", "key") == two, "a conflict changes nothing")


async def no_entry_precedes_a_document_whose_writing_began(fixture: StoreFixture) -> None:
    """Check that an entry is not durable before a document, if it was appended once the write had begun."""
    async with fixture.open() as store:
        for number in range(20):
            writing = asyncio.ensure_future(store.put("kind", str(number), b"first"))
            await asyncio.sleep(0)  # The call has begun.
            await store.durable(store.append(entry(number + 1)))
            expect(await store.get("kind", str(number)) is not None, "the document is durable with the entry")
            expect((await writing).version == 1, "put returns the written document")


async def one_claim_wins(fixture: StoreFixture) -> None:
    """Check that exactly one of many concurrent claims of a document wins, and the others learn its version."""
    async with fixture.open() as store:
        for version in range(6):
            claims = (store.put("task", "one", b"%d" % claimant, expected=version) for claimant in range(25))
            ended = await asyncio.gather(*claims, return_exceptions=True)
            winners = [each for each in ended if isinstance(each, Document)]
            losers = [each for each in ended if isinstance(each, Conflict)]
            expect(len(winners) == 1 and len(losers) == 24, f"exactly one claim wins, the others get Conflict: {ended}")
            expect(all(each.found == version + 1 for each in losers), "Conflict names the version of the winner")
            expect(await store.get("task", "one") == winners[0], "the document of the winner exists")


async def one_deletion_wins(fixture: StoreFixture) -> None:
    """Check that exactly one of many concurrent deletions reports that the document existed."""
    async with fixture.open() as store:
        await store.put("kind", "key", b"")
        removed = await asyncio.gather(*(store.delete("kind", "key") for _ in range(10)))
        expect(sorted(removed) == [False] * 9 + [True], "exactly one deletion removed the document")


async def a_deleted_document_starts_at_version_one(fixture: StoreFixture) -> None:
    """Check that a deletion leaves nothing: the next document of that key begins at version 1."""
    async with fixture.open() as store:
        await store.put("kind", "key", b"one")
        await store.put("kind", "key", b"two")
        expect(await store.delete("kind", "key", expected=2) is True, "delete reports an existing document")
        expect(await store.get("kind", "key") is None and not await store.list("kind"), "there is no such document")
        expect(await store.delete("kind", "key") is False, "delete reports a missing document")
        expect((await store.put("kind", "key", b"three", expected=0)).version == 1, "the new document has version 1")


async def documents_are_listed(fixture: StoreFixture) -> None:
    """Check that a list has the documents of one kind and key prefix, in Unicode order; no character is a wildcard."""
    keys = (
        "a",
        "a/1",
        "a/10",
        "a/2",
        "aa",
        "A",
        "a%",
        "a_b",
        "b",
        "",
        "ä",
        "a\U0010ffff",
        "a\U0010ffffb",
        "a\ud7ff",
        "𝔞",
    )
    async with fixture.open() as store:
        for key in keys:
            await store.put("kind", key, key.encode())
        await store.put("kind2", "a/3", b"")
        for prefix in ("", "a", "a/", "a/1", "a%", "a_", "A", "ä", "a\U0010ffff", "a\ud7ff", "none", "𝔞"):
            expected = sorted(key for key in keys if key.startswith(prefix))
            documents = await store.list("kind", prefix=prefix)
            expect([each.key for each in documents] == expected, f"keys that begin with {prefix!r}, in order")
            expect(
                all(each == Document("kind", each.key, 1, each.key.encode()) for each in documents),
                "documents are listed with their data",
            )
        expect(await store.list("none") == [], "an unknown kind has no documents")


async def a_document_makes_events_durable(fixture: StoreFixture) -> None:
    """Check that a write of a document or blob commits all earlier appended events."""
    async with fixture.open() as store:
        ticket = store.append(entry(1))
        await store.put("kind", "key", b"")
        expect(store.committed >= ticket, "put makes earlier events durable")
        ticket = store.append(entry(2))
        await store.put_blob(b"bytes")
        expect(store.committed >= ticket, "put_blob makes earlier events durable")
        expect(len(await store.read()) == 2, "both events exist")


async def a_cancelled_write_is_whole_or_nothing(fixture: StoreFixture) -> None:
    """Check that a cancelled write leaves a document of the old version or of the new one."""
    async with fixture.open() as store:
        for turns in range(12):
            before = await store.get("kind", "key")
            writing = asyncio.ensure_future(store.put("kind", "key", b"%d" % turns))
            for _ in range(turns % 5):
                await asyncio.sleep(0)
            await cancel_and_wait(writing)
            await store.put("kind", "another", b"")  # Every pending write has ended by now.
            after = await store.get("kind", "key")
            version = (before.version if before else 0) + 1
            expect(
                after in (before, Document("kind", "key", version, b"%d" % turns)),
                "the document is the old one or the new one",
            )


async def an_invalid_name_is_refused(fixture: StoreFixture) -> None:
    """Check that a name with NUL, or without a UTF-8 form, raises InvalidValue; the store continues to work."""
    async with fixture.open() as store:
        for kind, key in (("a\0", "key"), ("kind", "a\0b"), ("\ud800", "key"), ("kind", "\udfff")):
            await raises(InvalidValue, store.put(kind, key, b""), f"a document {kind!r} {key!r}")
        expect((await store.put("kind", "key", b"")).version == 1, "the store continues to work")


async def blobs(fixture: StoreFixture) -> None:
    """Check that blobs are stored by their hash: the same bytes are the same blob."""
    async with fixture.open() as store:
        expect([*await store.list_blobs()] == [], "there are no blobs at first")
        stored = {}
        for data in (b"", b"\0", bytes(range(256)), b"x" * (1 << 20), b"one"):
            stored[await store.put_blob(data)] = data
        for name, data in stored.items():
            expect(name == hashlib.sha256(data).hexdigest(), "the name of a blob is its SHA-256")
            expect(await store.get_blob(name) == data, "a blob is read unchanged")
        expect(await store.put_blob(b"one") == hashlib.sha256(b"one").hexdigest(), "the same bytes can be stored twice")
        expect(sorted(await store.list_blobs()) == sorted(stored), "each blob is listed once")
        name = next(iter(stored))
        expect(
            await store.delete_blob(name) is True and await store.delete_blob(name) is False, "a blob is removed once"
        )
        expect(await store.get_blob(name) is None, "there is no such blob")
        for none in ("0" * 64, "", "no blob", "../etc", "A" * 64, "ä" * 64):
            expect(await store.get_blob(none) is None, f"there is no blob with the name {none!r}")
            expect(await store.delete_blob(none) is False, f"there is no blob with the name {none!r}")


CHECKS: tuple[Check, ...] = checks_of(__name__)
