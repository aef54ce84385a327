"""A store of a user: plain sqlite3, one kernel, every change committed at once, on the event loop.

It is short, and promises nothing about power cuts. The documentation for writers of stores explains all that it uses.
"""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import os
import pathlib
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self
from urllib.parse import urlsplit

from ramet.core.errors import Conflict, InvalidValue, StoreFailed, StoreInUse
from ramet.store.contract import Document, DocumentWrite, Entry, StoredEvent
from ramet.store.notifications import Notifier
from ramet.store.single_kernel import SoleKernel
from ramet.store.validation import EntryValidator, checked_data, checked_name, checked_number, checked_together
from ramet.testing.conformance.store.suite import StoreFixture

_TABLES = """
PRAGMA journal_mode = WAL;
PRAGMA synchronous = NORMAL;
CREATE TABLE IF NOT EXISTS event (
    cursor INTEGER PRIMARY KEY AUTOINCREMENT, tree TEXT, run TEXT, seq INTEGER, type TEXT, data BLOB);
CREATE TABLE IF NOT EXISTS document (kind TEXT, key TEXT, version INTEGER, data BLOB, PRIMARY KEY (kind, key));
CREATE TABLE IF NOT EXISTS blob (name TEXT PRIMARY KEY, data BLOB);
"""
_POLL_S = 0.01


class PlainStore(SoleKernel):
    """A file that one process writes and others may read."""

    name = "plain"
    durable_across_processes = True

    def __init__(self, path: pathlib.Path, *, kernel: str = "kernel", read_only: bool = False) -> None:
        super().__init__()
        self.path, self.kernel, self.read_only = path, kernel, read_only
        self._db: sqlite3.Connection | None = None
        self._lock: int | None = None
        self._why = "it is not open"
        self._ticket = 0
        self._intake, self._news = EntryValidator(), Notifier()

    async def open(self) -> Self:
        """Open the file, as the only writer unless it is opened to be read. Raises StoreInUse or StoreFailed."""
        if self._db is not None:
            return self
        if not self.read_only:
            lock = os.open(f"{self.path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                holder = os.pread(lock, 20, 0).decode()
                os.close(lock)
                raise StoreInUse(self.path, f"pid {holder}") from None
            os.ftruncate(lock, 0)
            os.pwrite(lock, str(os.getpid()).encode(), 0)
            self._lock = lock
        try:
            uri = f"file:{self.path}?mode={'ro' if self.read_only else 'rwc'}"
            self._db = sqlite3.connect(uri, uri=True, isolation_level=None, check_same_thread=False)
            if not self.read_only:
                self._db.executescript(_TABLES)
            self._ticket = 0
            self._news.reset(self._head())
        except sqlite3.Error as error:
            await self.close()
            raise StoreFailed(self.path, str(error)) from None
        return self

    async def close(self) -> None:
        """Close the file; idempotent."""
        if self._db is not None:
            self._db.close()
            self._db, self._why = None, "it is closed"
            self._news.fail(self.path, self._why)
            self._end_kernel()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    # ---- the journal

    def append(self, entry: Entry) -> int:
        self._writes()
        self._intake.check(entry)
        self._ask("INSERT INTO event (tree, run, seq, type, data) VALUES (?, ?, ?, ?, ?)", *entry)
        self._owned_trees.add(entry.tree)
        self._ticket = ticket = self._ticket + 1
        self._news.notify(ticket, self._head())
        return ticket

    @property
    def committed(self) -> int:
        return self._ticket

    async def durable(self, ticket: int) -> None:
        if ticket > self._ticket:
            self._check()
            raise InvalidValue("ticket", ticket, f"one that `append` returned: 1 to {self._ticket}")

    def on_commit(self, listener: Callable[[int], None]) -> Callable[[], None]:
        self._check()
        return self._news.listen(listener)

    async def read(
        self, after: int = 0, *, tree: str | None = None, run: str | None = None, limit: int = 1_000
    ) -> list[StoredEvent]:
        conditions, values = ["cursor > ?"], [after]
        for field, name in (("tree", tree), ("run", run)):
            if name is not None:
                conditions.append(f"{field} = ?")
                values.append(checked_name(field, name))  # type: ignore[arg-type]  # values of any type
        rows = self._ask(
            f"SELECT * FROM event WHERE {' AND '.join(conditions)} ORDER BY cursor LIMIT ?", *values, max(limit, 0)
        )
        return [StoredEvent(*row) for row in rows]

    async def head(self) -> int:
        return self._head()

    async def wait(self, after: int, *, timeout_s: float | None = None) -> bool:
        self._check()
        if not self.read_only:
            return await self._news.wait(after, timeout_s)
        try:
            async with asyncio.timeout(timeout_s):  # Another process writes: nobody tells.
                while self._head() <= after:  # noqa: ASYNC110 - it asks a file
                    await asyncio.sleep(_POLL_S)
        except TimeoutError:
            return self._head() > after
        return True

    async def forget(self, tree: str) -> int:
        checked_name("tree", tree)
        self._writes()
        gone = len(self._ask("DELETE FROM event WHERE tree = ? RETURNING cursor", tree))
        self._news.head = self._head()
        return gone

    # ---- documents

    async def get(self, kind: str, key: str) -> Document | None:
        checked_name("kind", kind), checked_name("key", key)
        rows = self._ask("SELECT * FROM document WHERE kind = ? AND key = ?", kind, key)
        return Document(*rows[0]) if rows else None

    async def list(self, kind: str, *, prefix: str = "") -> list[Document]:
        checked_name("kind", kind), checked_name("prefix", prefix)
        rows = self._ask("SELECT * FROM document WHERE kind = ? ORDER BY key", kind)
        return [Document(*row) for row in rows if row[1].startswith(prefix)]

    async def put(
        self, kind: str, key: str, data: bytes, *, expected: int | None = None, tree: str | None = None
    ) -> Document:
        if tree is not None:
            checked_name("tree", tree)
        (written,) = await self.put_together((), (DocumentWrite(kind, key, data, expected),))
        if tree is not None:
            self._owned_trees.add(tree)
        return written

    async def delete(self, kind: str, key: str, *, expected: int | None = None) -> bool:
        checked_name("kind", kind), checked_name("key", key)
        self._writes()
        self._version(DocumentWrite(kind, key, b"", expected))
        return bool(self._ask("DELETE FROM document WHERE kind = ? AND key = ? RETURNING key", kind, key))

    # ---- blobs

    async def put_blob(self, data: bytes) -> str:
        checked_data("data", data)
        await self.put_together((data,), ())
        return hashlib.sha256(data).hexdigest()

    async def get_blob(self, name: str) -> bytes | None:
        return self.get_blobs_now((name,)).get(name)

    async def get_blobs(self, names: Sequence[str]) -> Mapping[str, bytes]:
        return self.get_blobs_now(names)

    def get_blobs_now(self, names: Sequence[str]) -> Mapping[str, bytes]:
        self._check()
        return {name: row[0] for name in names for row in self._ask("SELECT data FROM blob WHERE name = ?", name)}

    async def list_blobs(self) -> Sequence[str]:
        return [row[0] for row in self._ask("SELECT name FROM blob ORDER BY name")]

    async def delete_blob(self, name: str) -> bool:
        self._writes()
        return bool(self._ask("DELETE FROM blob WHERE name = ? RETURNING name", name))

    # ---- both

    async def put_together(self, blobs: Sequence[bytes], documents: Sequence[DocumentWrite]) -> Sequence[Document]:
        checked_together(blobs, documents)
        self._writes()
        self._ask("BEGIN IMMEDIATE")
        try:
            written = [Document(put.kind, put.key, self._version(put) + 1, put.data) for put in documents]
            for data in blobs:
                self._ask("INSERT OR IGNORE INTO blob VALUES (?, ?)", hashlib.sha256(data).hexdigest(), data)
            for document in written:
                self._ask("INSERT OR REPLACE INTO document VALUES (?, ?, ?, ?)", *document)
        except BaseException:
            self._ask("ROLLBACK")
            raise
        self._ask("COMMIT")
        return written

    # ---- inside

    def _check(self) -> None:
        if self._db is None:
            raise StoreFailed(self.path, self._why)

    def _writes(self) -> None:
        self._check()
        if self.read_only:
            raise StoreFailed(self.path, "it was opened to be read")

    def _ask(self, sql: str, *values: Any) -> Sequence[Any]:
        self._check()
        assert self._db is not None
        try:
            return self._db.execute(sql, values).fetchall()
        except sqlite3.Error as error:
            raise StoreFailed(self.path, str(error)) from None

    def _head(self) -> int:
        found: int = self._ask("SELECT coalesce(max(cursor), 0) FROM event")[0][0]
        return found

    def _version(self, put: DocumentWrite) -> int:
        if put.expected is not None:
            checked_number("expected", put.expected)
        rows = self._ask("SELECT version, data FROM document WHERE kind = ? AND key = ?", put.kind, put.key)
        found, data = rows[0] if rows else (0, None)
        if put.expected not in (None, found) or (put.over is not None and data != put.over):
            wanted = found if put.expected is None else put.expected
            raise Conflict(put.kind, put.key, expected=wanted, found=found)
        return int(found)


class Amnesiac(PlainStore):
    """A store that reports a write of several documents together, and writes none of them."""

    async def put_together(self, blobs: Sequence[bytes], documents: Sequence[DocumentWrite]) -> Sequence[Document]:
        if len(documents) > 1:
            return [Document(put.kind, put.key, self._version(put) + 1, put.data) for put in documents]
        return await super().put_together(blobs, documents)


def by_url(url: str, kernel: str) -> PlainStore:
    """Return the store of a URL, as an entry point of "ramet.stores" does."""
    return PlainStore(pathlib.Path(urlsplit(url).path), kernel=kernel)


def store_fixture(folder: pathlib.Path) -> StoreFixture:
    """Return the fixture for checks of the store."""
    path = folder / "plain.db"
    return StoreFixture(lambda: PlainStore(path), lambda: PlainStore(path, read_only=True))


def broken_store_fixture(folder: pathlib.Path) -> StoreFixture:
    """Return the fixture for checks of a store that breaks a promise."""
    path = folder / "plain.db"
    return StoreFixture(lambda: Amnesiac(path), lambda: Amnesiac(path, read_only=True))
