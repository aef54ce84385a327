"""The operations of a store on events, documents and blobs: each is checked here, and done by the store's own tables.

`ramet.store.contract` says what each operation promises. A store supplies `_read`, which runs a query on its reader,
and `_change`, which runs a change of its tables behind all earlier appends. Both may do so in another thread.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from ramet.core.errors import Conflict, OwnedElsewhere
from ramet.store.contract import Document, DocumentWrite, StoredEvent
from ramet.store.validation import MOST_NUMBER, checked_data, checked_name, checked_number, checked_together

T = TypeVar("T")


class Reader(Protocol):
    """The committed content of a store. Arguments are valid."""

    def events(self, after: int, tree: str | None, run: str | None, limit: int) -> list[StoredEvent]: ...
    def document(self, kind: str, key: str) -> Document | None: ...
    def documents(self, kind: str, prefix: str) -> list[Document]: ...
    def blob(self, name: str) -> bytes | None: ...
    def blobs_named(self, names: Sequence[str]) -> dict[str, bytes]: ...
    def blobs(self) -> Sequence[str]: ...


class Tables(Protocol):
    """The content of a store, to be changed. Arguments are valid; Conflict is raised before any change."""

    def forget(self, tree: str) -> int: ...
    def put(self, kind: str, key: str, data: bytes, expected: int | None) -> Document: ...
    def delete(self, kind: str, key: str, expected: int | None) -> bool: ...
    def put_blob(self, data: bytes) -> str: ...
    def delete_blob(self, name: str) -> bool: ...
    def put_together(self, blobs: Sequence[bytes], documents: Sequence[DocumentWrite]) -> Sequence[Document]: ...


def check_version(write: DocumentWrite, version: int, data: bytes | None) -> None:
    """Check that a document has the version and the data that a write expects. Raises Conflict."""
    if write.expected not in (None, version) or write.over not in (None, data):
        expected = version if write.expected is None else write.expected
        raise Conflict(write.kind, write.key, expected=expected, found=version)


class QueuedChange:
    """A change in the queue of a writer; its outcome is known once its batch is durable."""

    def __init__(self, change: Callable[[Any], Any], size: int = 0, future: asyncio.Future[Any] | None = None) -> None:
        self._change, self.size, self.future = change, size, future
        self._answer: Any = None
        self._refusal: Conflict | OwnedElsewhere | None = None

    def apply(self, tables: object) -> None:
        """Make the change, in the writer's transaction. A refusal changes nothing, and does not end the batch."""
        self._answer = self._refusal = None  # A writer that lost its server begins again.
        try:
            self._answer = self._change(tables)
        except (Conflict, OwnedElsewhere) as refusal:
            self._refusal = refusal

    def finish(self) -> None:
        """Give the waiting caller the outcome, on its event loop."""
        if self.future is None or self.future.done():
            return
        if self._refusal is not None:
            self.future.set_exception(self._refusal)
        else:
            self.future.set_result(self._answer)


class StoreOperations(ABC):
    """The operations on events, documents and blobs that a store does by its reader and its tables."""

    async def read(
        self, after: int = 0, *, tree: str | None = None, run: str | None = None, limit: int = 1_000
    ) -> list[StoredEvent]:
        """Return committed events in order of their cursors, from the first after `after`; at most `limit`."""
        for field, name in (("tree", tree), ("run", run)):
            if name is not None:
                self._checked_text(field, name)
        return await self._read(lambda reader: reader.events(min(after, MOST_NUMBER), tree, run, max(limit, 0)))

    async def forget(self, tree: str) -> int:
        """Remove every event of a tree permanently; return their number."""
        self._checked_text("tree", tree)
        return await self._change(lambda tables: tables.forget(tree), closes_batch=True)

    async def get(self, kind: str, key: str) -> Document | None:
        """Return the newest version; None if the document does not exist."""
        self._checked_text("kind", kind), self._checked_text("key", key, kind)
        return await self._read(lambda reader: reader.document(kind, key))

    async def list(self, kind: str, *, prefix: str = "") -> list[Document]:
        """Return all documents of a kind whose keys begin with `prefix`, in order of their keys."""
        self._checked_text("kind", kind), self._checked_text("prefix", prefix)
        return await self._read(lambda reader: reader.documents(kind, prefix))

    async def put(
        self, kind: str, key: str, data: bytes, *, expected: int | None = None, tree: str | None = None
    ) -> Document:
        """Write a document, durably, after all earlier appends. Raises Conflict and OwnedElsewhere."""
        self._checked_text("kind", kind), self._checked_text("key", key, kind)
        checked_data("data", data)
        if expected is not None:
            checked_number("expected", expected)
        if tree is not None:
            self._checked_text("tree", tree)
        return await self._change(lambda tables: tables.put(kind, key, data, expected), len(data), tree=tree)

    async def delete(self, kind: str, key: str, *, expected: int | None = None) -> bool:
        """Delete a document; return False if there was none. Raises Conflict like `put`."""
        self._checked_text("kind", kind), self._checked_text("key", key, kind)
        if expected is not None:
            checked_number("expected", expected)
        return await self._change(lambda tables: tables.delete(kind, key, expected))

    async def put_blob(self, data: bytes) -> str:
        """Store bytes durably; return their name, the SHA-256 of the content in hex."""
        checked_data("data", data)
        return await self._change(lambda tables: tables.put_blob(data), len(data))

    async def get_blob(self, name: str) -> bytes | None:
        """Return the bytes with this name; None if there are none."""
        blob_name = self._checked_blob_name(name)
        return await self._read(lambda reader: reader.blob(blob_name))

    async def get_blobs(self, names: Sequence[str]) -> Mapping[str, bytes]:
        """Return the bytes of these names, in one query; unknown names are omitted."""
        blob_names = [self._checked_blob_name(name) for name in names]
        return await self._read(lambda reader: reader.blobs_named(blob_names))

    def get_blobs_now(self, names: Sequence[str]) -> Mapping[str, bytes]:
        """Return the bytes of these names like `get_blobs`, and block the calling thread meanwhile."""
        blob_names = [self._checked_blob_name(name) for name in names]
        return self._read_now(lambda reader: reader.blobs_named(blob_names))

    async def list_blobs(self) -> Sequence[str]:
        """Return the names of all blobs, sorted."""
        return await self._read(lambda reader: reader.blobs())

    async def delete_blob(self, name: str) -> bool:
        """Delete a blob; return False if there was none."""
        blob_name = self._checked_blob_name(name)
        return await self._change(lambda tables: tables.delete_blob(blob_name))

    async def put_together(self, blobs: Sequence[bytes], documents: Sequence[DocumentWrite]) -> Sequence[Document]:
        """Store blobs and write documents, all or none, durably like `put`. Raises Conflict."""
        size = self._checked_size(blobs, documents)
        return await self._change(lambda tables: tables.put_together(blobs, documents), size)

    # ---- what a store supplies

    @abstractmethod
    async def _read(self, query: Callable[[Reader], T]) -> T:
        """Return the answer of a query to the store's reader. Raises StoreFailed if the store is not open."""

    @abstractmethod
    def _read_now(self, query: Callable[[Reader], T]) -> T:
        """Return the answer of a query like `_read`, and block the calling thread meanwhile."""

    @abstractmethod
    async def _change(
        self, change: Callable[[Tables], T], size: int = 0, *, tree: str | None = None, closes_batch: bool = False
    ) -> T:
        """Return the answer of a change of the store's tables, once it is durable; `size` is about its bytes.

        With a `tree`, the change is only made if the tree is this kernel's, or becomes this kernel's. With
        `closes_batch`, it is made before all later appends. Raises StoreFailed if the store cannot be written.
        """

    @staticmethod
    def _checked_text(field: str, text: object, companion: str = "") -> str:
        """Return text that the store can keep, a key with its kind as `companion`. Raises InvalidValue otherwise."""
        return checked_name(field, text)

    def _checked_blob_name(self, name: str) -> str:
        """Return the name of a blob: also one that no blob can have, unless the store cannot look for it."""
        return name

    def _checked_size(self, blobs: Sequence[bytes], documents: Sequence[DocumentWrite]) -> int:
        """Return the number of bytes to write together. Raises InvalidValue if they cannot be written."""
        checked_together(blobs, documents)
        return sum(map(len, blobs)) + sum(len(document.data) for document in documents)
