"""Stores that break one promise each, so that the suite is seen to notice it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ramet.core.errors import Conflict, StoreFailed, StoreInUse
from ramet.store.contract import Document, DocumentWrite, Entry, StoredEvent
from ramet.store.memory import MemoryStore
from ramet.store.sqlite.store import SqliteStore


class Whole(MemoryStore):
    """Store that breaks nothing."""


class Recounting(MemoryStore):
    """Store that gives the same ticket twice."""

    def append(self, entry: Entry) -> int:
        return max(super().append(entry) - 1, 1)


class Forgetful(MemoryStore):
    """Store that loses every hundredth event."""

    def append(self, entry: Entry) -> int:
        ticket = super().append(entry)
        if ticket % 100 == 0:
            self._tables.all_events.pop()
        return ticket


class Narrow(MemoryStore):
    """Store that confuses names which differ only in case."""

    async def read(self, after: int = 0, *, tree: str | None = None, run: str | None = None, limit: int = 1_000) -> Any:
        found = await super().read(after, limit=1_000_000)
        wanted = [each for each in found if run is None or each.run.lower() == run.lower()]
        return [each for each in wanted if tree is None or each.tree.lower() == tree.lower()][:limit]


class Unbounded(MemoryStore):
    """Store that ignores the limit of a read."""

    async def read(self, after: int = 0, *, tree: str | None = None, run: str | None = None, limit: int = 1_000) -> Any:
        return await super().read(after, tree=tree, run=run, limit=1_000_000)


class Reusing(MemoryStore):
    """Store that reuses the cursors of forgotten events."""

    async def forget(self, tree: str) -> int:
        gone = await super().forget(tree)
        self._cursor = self._tables.head()
        return gone


class Impatient(SqliteStore):
    """Store that reports events as durable before they are."""

    async def durable(self, ticket: int) -> None:
        return


class Undecided(MemoryStore):
    """Store that lets several claims win."""

    async def put(
        self, kind: str, key: str, data: bytes, *, expected: int | None = None, tree: str | None = None
    ) -> Document:
        try:
            return await super().put(kind, key, data, expected=expected)
        except Conflict:
            return await super().put(kind, key, data)


class Dawdling(MemoryStore):
    """Store that begins to write a document some turns of the event loop after the call."""

    async def put(
        self, kind: str, key: str, data: bytes, *, expected: int | None = None, tree: str | None = None
    ) -> Document:
        for _ in range(5):
            await asyncio.sleep(0)
        return await super().put(kind, key, data, expected=expected, tree=tree)


class Wild(MemoryStore):
    """Store that ignores wildcard characters at the end of a prefix."""

    async def list(self, kind: str, *, prefix: str = "") -> list[Document]:
        return await super().list(kind, prefix=prefix.rstrip("%_"))


class Piecemeal(MemoryStore):
    """Store that writes documents one after another until one is refused."""

    async def put_together(self, blobs: Sequence[bytes], documents: Sequence[DocumentWrite]) -> Sequence[Document]:
        written = [await self.put(*each[:3], expected=each.expected) for each in documents]
        await super().put_together(blobs, [])
        return written


class Scattered(MemoryStore):
    """Store that keeps blobs although their documents are refused."""

    async def put_together(self, blobs: Sequence[bytes], documents: Sequence[DocumentWrite]) -> Sequence[Document]:
        await super().put_together(blobs, [])
        return await super().put_together([], documents)


class Hurried(MemoryStore):
    """Store that leaves out the last document of an atomic write."""

    async def put_together(self, blobs: Sequence[bytes], documents: Sequence[DocumentWrite]) -> Sequence[Document]:
        return await super().put_together(blobs, documents[:-1])


class Trusting(MemoryStore):
    """Store that checks versions of documents and ignores `over`, the data that they must have."""

    async def put_together(self, blobs: Sequence[bytes], documents: Sequence[DocumentWrite]) -> Sequence[Document]:
        return await super().put_together(blobs, [each._replace(over=None) for each in documents])


class Padded(MemoryStore):
    """Store that returns empty bytes for missing blobs."""

    def get_blobs_now(self, names: Sequence[str]) -> Mapping[str, bytes]:
        return {**dict.fromkeys(names, b""), **super().get_blobs_now(names)}


class Textual(MemoryStore):
    """Store that keeps text only."""

    async def read(self, after: int = 0, *, tree: str | None = None, run: str | None = None, limit: int = 1_000) -> Any:
        found = await super().read(after, tree=tree, run=run, limit=limit)
        return [StoredEvent(*each[:-1], each.data.decode(errors="replace").encode()) for each in found]


class Deaf(MemoryStore):
    """Store that calls no listeners."""

    def on_commit(self, listener: Callable[[int], None]) -> Callable[[], None]:
        return super().on_commit(lambda _: None)


class Endless(MemoryStore):
    """Store that lets waiters wait after it is closed."""

    async def close(self) -> None:
        if self._why is None:
            self._why = "it is closed"


class Immortal(MemoryStore):
    """Store that may be used after it is closed."""

    def _check(self) -> None:
        return


class Shared(SqliteStore):
    """Store that lets a second kernel in, as a reader that claims it may write."""

    async def open(self) -> Any:
        try:
            return await super().open()
        except StoreInUse:
            return self


class Sleepy(SqliteStore):
    """Store that never wakes a waiter of another process."""

    async def wait(self, after: int, *, timeout_s: float | None = None) -> bool:
        if self.read_only and timeout_s is None:
            raise StoreFailed(self.path, "asleep")
        return await super().wait(after, timeout_s=timeout_s)


class Clinging(MemoryStore):
    """Store that never releases a tree."""

    async def release(self, tree: str) -> None:
        return


class Mute(MemoryStore):
    """Store that announces no kernel."""

    async def announce(self, address: str) -> None:
        return
