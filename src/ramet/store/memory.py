"""A store in the memory of a process: for use without persistence, and as a verified fake in tests."""

from __future__ import annotations

import bisect
import hashlib
from collections.abc import Callable, Sequence
from itertools import islice
from operator import attrgetter
from typing import Self, TypeVar

from ramet.core.errors import InvalidValue, StoreFailed
from ramet.store.contract import Document, DocumentWrite, Entry, StoredEvent
from ramet.store.notifications import Notifier
from ramet.store.operations import StoreOperations, check_version
from ramet.store.single_kernel import SoleKernel
from ramet.store.validation import EntryValidator

T = TypeVar("T")
_WHERE = "in memory"
_CURSOR = attrgetter("cursor")


class MemoryStore(StoreOperations, SoleKernel):
    """A store in memory: `append` commits and notifies listeners before it returns. No thread, no task, no file."""

    name = "memory"
    durable_across_processes = False

    def __init__(self) -> None:
        super().__init__()
        self._why: str | None = "it is not open"
        self._ticket = 0
        self._cursor = 0  #: never decreases, even after `forget`
        self._tables = MemoryTables()
        self._intake, self._notifier = EntryValidator(), Notifier()

    async def open(self) -> Self:
        """Open the store; contents from before `close` are kept. Idempotent."""
        if self._why is not None:
            self._why, self._ticket = None, 0
            self._notifier.reset(self._tables.head())
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
        self._tables.all_events.append(StoredEvent(self._cursor, *entry))
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

    async def head(self) -> int:
        self._check()
        return self._tables.head()

    async def wait(self, after: int, *, timeout_s: float | None = None) -> bool:
        self._check()
        return await self._notifier.wait(after, timeout_s)

    # ---- inside

    def _check(self) -> None:
        if self._why is not None:
            raise StoreFailed(_WHERE, self._why)

    def _read_now(self, query: Callable[[MemoryTables], T]) -> T:
        self._check()
        return query(self._tables)

    async def _read(self, query: Callable[[MemoryTables], T]) -> T:
        return self._read_now(query)

    async def _change(
        self, change: Callable[[MemoryTables], T], size: int = 0, *, tree: str | None = None, closes_batch: bool = False
    ) -> T:
        self._check()
        answer = change(self._tables)
        self._notifier.head = self._tables.head()  # `forget` may have removed the newest event.
        if tree is not None:
            self._owned_trees.add(tree)
        return answer


class MemoryTables:
    """The reader and the tables of a store in memory; see `ramet.store.operations`."""

    def __init__(self) -> None:
        self.all_events: list[StoredEvent] = []
        self.all_documents: dict[tuple[str, str], Document] = {}
        self.all_blobs: dict[str, bytes] = {}

    def head(self) -> int:
        return self.all_events[-1].cursor if self.all_events else 0

    def events(self, after: int, tree: str | None, run: str | None, limit: int) -> list[StoredEvent]:
        first = bisect.bisect_right(self.all_events, after, key=_CURSOR)
        if tree is None and run is None:
            return self.all_events[first : first + limit]
        later = (self.all_events[at] for at in range(first, len(self.all_events)))
        matches = (each for each in later if tree in (None, each.tree) and run in (None, each.run))
        return list(islice(matches, limit))

    def forget(self, tree: str) -> int:
        remaining = [event for event in self.all_events if event.tree != tree]
        removed_count, self.all_events = len(self.all_events) - len(remaining), remaining
        return removed_count

    def document(self, kind: str, key: str) -> Document | None:
        return self.all_documents.get((kind, key))

    def documents(self, kind: str, prefix: str) -> list[Document]:
        matches = (each for each in self.all_documents.values() if each.kind == kind and each.key.startswith(prefix))
        return sorted(matches, key=attrgetter("key"))

    def put(self, kind: str, key: str, data: bytes, expected: int | None) -> Document:
        [document] = self.put_together((), [DocumentWrite(kind, key, data, expected)])
        return document

    def delete(self, kind: str, key: str, expected: int | None) -> bool:
        self._version(DocumentWrite(kind, key, b"", expected))
        return self.all_documents.pop((kind, key), None) is not None

    def blob(self, name: str) -> bytes | None:
        return self.all_blobs.get(name)

    def blobs_named(self, names: Sequence[str]) -> dict[str, bytes]:
        return {name: self.all_blobs[name] for name in names if name in self.all_blobs}

    def blobs(self) -> list[str]:
        return sorted(self.all_blobs)

    def put_blob(self, data: bytes) -> str:
        name = hashlib.sha256(data).hexdigest()
        self.all_blobs[name] = data
        return name

    def delete_blob(self, name: str) -> bool:
        return self.all_blobs.pop(name, None) is not None

    def put_together(self, blobs: Sequence[bytes], documents: Sequence[DocumentWrite]) -> Sequence[Document]:
        stored_documents = [
            Document(write.kind, write.key, self._version(write) + 1, write.data) for write in documents
        ]
        for data in blobs:
            self.put_blob(data)
        self.all_documents |= {(document.kind, document.key): document for document in stored_documents}
        return stored_documents

    def _version(self, write: DocumentWrite) -> int:
        document = self.document(write.kind, write.key)
        version, data = (document.version, document.data) if document else (0, None)
        check_version(write, version, data)
        return version
