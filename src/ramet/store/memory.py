"""A store in the memory of a process: for use without persistence, and as a verified fake in tests."""

from __future__ import annotations

import bisect
import hashlib
from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from typing import Self

from ramet.core.errors import Conflict, InvalidValue, StoreFailed
from ramet.store.contract import Document, DocumentWrite, Entry, StoredEvent
from ramet.store.notifications import Notifier
from ramet.store.single_kernel import SoleKernel
from ramet.store.validation import EntryValidator, checked_data, checked_name, checked_number, checked_together

_WHERE = "in memory"
_CURSOR = attrgetter("cursor")


class MemoryStore(SoleKernel):
    """A store in memory: no thread, no task, no file. See `ramet.store.contract` for its methods.

    `append` commits and notifies listeners before it returns.
    """

    name = "memory"
    durable_across_processes = False

    def __init__(self) -> None:
        super().__init__()
        self._why: str | None = "it is not open"
        self._ticket = 0
        self._cursor = 0  #: never decreases, even after `forget`
        self._events: list[StoredEvent] = []
        self._documents: dict[tuple[str, str], Document] = {}
        self._blobs: dict[str, bytes] = {}
        self._intake, self._notifier = EntryValidator(), Notifier()

    async def open(self) -> Self:
        """Open the store; contents from before `close` are kept. Idempotent."""
        if self._why is not None:
            self._why, self._ticket = None, 0
            self._notifier.reset(self._head())
        return self

    async def close(self) -> None:
        """Close the store; its contents stay for the next `open` of this object. Idempotent."""
        if self._why is None:
            self._why = "it is closed"
            self._notifier.fail(_WHERE, self._why)
            self._end_kernel()

    # ---- the journal

    def append(self, entry: Entry) -> int:
        """Add an event, and commit it at once."""
        if self._why is not None:
            raise StoreFailed(_WHERE, self._why)
        self._intake.check(entry)
        self._cursor += 1
        self._owned_trees.add(entry.tree)
        self._events.append(StoredEvent(self._cursor, *entry))
        self._ticket = ticket = self._ticket + 1
        self._notifier.notify(ticket, self._cursor)
        return ticket

    @property
    def committed(self) -> int:
        return self._ticket

    async def durable(self, ticket: int) -> None:
        """Return at once: an appended event gets no safer in this store."""
        if ticket <= self._ticket:
            return
        self._check()
        raise InvalidValue("ticket", ticket, f"one that `append` returned: 1 to {self._ticket}")

    def on_commit(self, listener: Callable[[int], None]) -> Callable[[], None]:
        """Call `listener` inside each `append`; return a function that stops this."""
        self._check()
        return self._notifier.listen(listener)

    async def read(
        self, after: int = 0, *, tree: str | None = None, run: str | None = None, limit: int = 1_000
    ) -> list[StoredEvent]:
        for field, name in (("tree", tree), ("run", run)):
            if name is not None:
                checked_name(field, name)
        self._check()
        first = bisect.bisect_right(self._events, after, key=_CURSOR)
        events = list[StoredEvent]()
        if tree is None and run is None:
            return self._events[first : first + max(limit, 0)]
        for at in range(first, len(self._events)):
            if len(events) >= limit:
                break
            event = self._events[at]
            if tree in (None, event.tree) and run in (None, event.run):
                events.append(event)
        return events

    async def head(self) -> int:
        self._check()
        return self._head()

    async def wait(self, after: int, *, timeout_s: float | None = None) -> bool:
        self._check()
        return await self._notifier.wait(after, timeout_s)

    async def forget(self, tree: str) -> int:
        checked_name("tree", tree)
        self._check()
        remaining = [event for event in self._events if event.tree != tree]
        removed_count, self._events = len(self._events) - len(remaining), remaining
        self._notifier.head = self._head()
        return removed_count

    # ---- documents

    async def get(self, kind: str, key: str) -> Document | None:
        self._check()
        return self._documents.get((checked_name("kind", kind), checked_name("key", key)))

    async def list(self, kind: str, *, prefix: str = "") -> list[Document]:
        checked_name("kind", kind), checked_name("prefix", prefix)
        self._check()
        matches = (each for each in self._documents.values() if each.kind == kind and each.key.startswith(prefix))
        return sorted(matches, key=attrgetter("key"))

    async def put(
        self, kind: str, key: str, data: bytes, *, expected: int | None = None, tree: str | None = None
    ) -> Document:
        checked_name("kind", kind), checked_name("key", key), checked_data("data", data)
        self._check()
        version = self._version(kind, key, expected)
        if tree is not None:
            self._owned_trees.add(checked_name("tree", tree))
        document = self._documents[kind, key] = Document(kind, key, version + 1, data)
        return document

    async def delete(self, kind: str, key: str, *, expected: int | None = None) -> bool:
        checked_name("kind", kind), checked_name("key", key)
        self._check()
        self._version(kind, key, expected)
        return self._documents.pop((kind, key), None) is not None

    # ---- blobs

    async def put_blob(self, data: bytes) -> str:
        name = hashlib.sha256(checked_data("data", data)).hexdigest()
        self._check()
        self._blobs[name] = data
        return name

    async def get_blob(self, name: str) -> bytes | None:
        self._check()
        return self._blobs.get(name)

    async def get_blobs(self, names: Sequence[str]) -> Mapping[str, bytes]:
        return self.get_blobs_now(names)

    def get_blobs_now(self, names: Sequence[str]) -> Mapping[str, bytes]:
        self._check()
        return {name: self._blobs[name] for name in names if name in self._blobs}

    async def list_blobs(self) -> Sequence[str]:
        self._check()
        return sorted(self._blobs)

    async def delete_blob(self, name: str) -> bool:
        self._check()
        return self._blobs.pop(name, None) is not None

    # ---- both

    async def put_together(self, blobs: Sequence[bytes], documents: Sequence[DocumentWrite]) -> Sequence[Document]:
        checked_together(blobs, documents)
        self._check()
        versions = [
            self._version(kind, key, expected, expected_data) for kind, key, _, expected, expected_data in documents
        ]
        for data in blobs:
            self._blobs[hashlib.sha256(data).hexdigest()] = data
        stored_documents = [
            Document(write.kind, write.key, version + 1, write.data)
            for write, version in zip(documents, versions, strict=True)
        ]
        self._documents |= {(document.kind, document.key): document for document in stored_documents}
        return stored_documents

    # ---- inside

    def _check(self) -> None:
        if self._why is not None:
            raise StoreFailed(_WHERE, self._why)

    def _head(self) -> int:
        return self._events[-1].cursor if self._events else 0

    def _version(self, kind: str, key: str, expected: int | None, expected_data: bytes | None = None) -> int:
        if expected is not None:
            checked_number("expected", expected)
        document = self._documents.get((kind, key))
        current = document.version if document else 0
        if expected is not None and current != expected:
            raise Conflict(kind, key, expected=expected, found=current)
        if expected_data is not None and (document is None or document.data != expected_data):
            raise Conflict(kind, key, expected=current, found=current)
        return current
