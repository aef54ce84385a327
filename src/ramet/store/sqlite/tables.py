"""The changes that the writer's thread makes to the tables: one batch, one transaction."""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Sequence
from typing import Any, NamedTuple

from ramet.store.contract import Document, DocumentWrite, Entry
from ramet.store.operations import QueuedChange, check_version
from ramet.store.sqlite import schema
from ramet.store.sqlite.high_water import Mark, MarkFile
from ramet.store.sqlite.ownership import Epoch, FileWatch, another_writes
from ramet.store.sqlite.schema import checksum_of

_CHUNK = 128  #: events of one statement: each statement releases the interpreter lock and must reacquire it
_REMEMBERED = 20_000  #: maximum number of cached names
KEPT_FREE = 256  #: free pages that a file keeps for later writes
_INCREMENTAL = 2  #: SQLite's number for this vacuum mode


class Space(NamedTuple):
    """The pages of a file."""

    pages: int  #: total number
    free: int  #: unused: they are reused, or released
    page_size: int  #: bytes
    can_release: bool  #: False: an older journal, which must be rewritten before it can shrink

    @property
    def surplus(self) -> int:
        """Return the number of free pages beyond those that a file keeps."""
        return max(0, self.free - KEPT_FREE)


class Journal:
    """The tables of one file, changed by one thread. Any SQLite error ends its use: the batch is rolled back."""

    def __init__(
        self, connection: sqlite3.Connection, watch: FileWatch | None = None, mark: MarkFile | None = None
    ) -> None:
        """Open the tables; `watch` is checked before each commit, and `mark` is written after it, if given."""
        self._connection, self._queries = connection, schema.queries()
        self._watch, self._mark = watch, mark
        self._epoch = Epoch(connection)
        self._trees: dict[str, int] = {}
        self._runs: dict[tuple[str, str], tuple[int, int]] = {}
        self._types: dict[str, int] = {}
        self._inserts: dict[tuple[str, int], str] = {}
        self.head = self._one("head")
        self._cursor = max(self.head, self._one("last_forgotten"))
        self._changes: int = self._one("changes")

    def commit(self, batch: Sequence[Entry | QueuedChange]) -> None:
        """Perform a batch, in order, and write it to disk. A change that raises Conflict has it as its outcome.

        Raises OwnershipLost if another kernel writes to the file, or if the file was replaced.
        """
        if self._watch is not None:
            self._watch.check()
        self._commit(batch)
        if self._mark is not None:
            self._mark.write(self.position)

    @property
    def position(self) -> Mark:
        """Return the committed position."""
        return Mark(self._cursor, self._changes)

    def accept_loss(self, mark: Mark) -> None:
        """Continue after a mark that is ahead: the lost cursors are not used again."""
        self._cursor, self._changes = self.position.maximum(mark)
        self._execute("mark_forgotten", self._cursor)

    def _commit(self, batch: Sequence[Entry | QueuedChange]) -> None:
        is_simple = len(batch) <= _CHUNK and all(type(each) is Entry and self._knows(each) for each in batch)
        if is_simple and self._epoch.is_taken:
            self._add_at_once(batch)  # type: ignore[arg-type]  # they are entries
            return
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            self._epoch.check(self.head)
            changes_before = self._connection.total_changes
            entries = list[Entry]()
            for each in batch:
                if isinstance(each, QueuedChange):
                    self._add(entries)
                    entries.clear()
                    each.apply(self)
                else:
                    self._learn(each)
                    entries.append(each)
            self._add(entries)
            if self._connection.total_changes != changes_before:
                self._epoch.take()
                if any(isinstance(each, QueuedChange) for each in batch):  # Events are counted by their cursors.
                    self._changes += 1
                    self._execute("put_changes", self._changes)
            self._connection.execute("COMMIT")
        except BaseException:
            if self._connection.in_transaction:
                self._connection.rollback()
            raise

    def close(self) -> None:
        """Close the connection; the last one to close moves the whole write-ahead log into the file."""
        self._connection.close()

    # ---- queued changes; see `ramet.store.operations`

    def forget(self, tree: str) -> int:
        """Remove the events of a tree, and its name; return the number of events."""
        number = self._one("find_tree", tree)
        if number is None:
            return 0
        self._execute("mark_forgotten", self._cursor)
        removed_count = self._execute("forget_events", number).rowcount
        self._execute("forget_runs", number)
        self._execute("forget_tree", number)
        self._trees.pop(tree, None)
        self._runs = {names: numbers for names, numbers in self._runs.items() if names[0] != tree}
        self.head = self._one("head")
        return removed_count

    def rewrite(self, cursor: int, data: bytes) -> None:
        """Replace the data of an event."""
        if (numbers := self._execute("numbers_of_event", cursor).fetchone()) is not None:
            run, seq, kind = numbers
            self._execute("rewrite_event", data, checksum_of(cursor, run, seq, kind, data), cursor)

    def put(self, kind: str, key: str, data: bytes, expected: int | None) -> Document:
        [document] = self.put_together((), [DocumentWrite(kind, key, data, expected)])
        return document

    def delete(self, kind: str, key: str, expected: int | None) -> bool:
        self._version(DocumentWrite(kind, key, b"", expected))
        return self._execute("delete_document", kind, key).rowcount > 0

    def put_blob(self, data: bytes) -> str:
        digest = hashlib.sha256(data)
        self._execute("put_blob", digest.digest(), data)
        return digest.hexdigest()

    def delete_blob(self, name: str) -> bool:
        return self._execute("delete_blob", schema.digest_of(name)).rowcount > 0

    def put_together(self, blobs: Sequence[bytes], documents: Sequence[DocumentWrite]) -> Sequence[Document]:
        stored_documents = [
            Document(write.kind, write.key, self._version(write) + 1, write.data) for write in documents
        ]
        for start in range(0, len(blobs), _CHUNK):
            chunk = blobs[start : start + _CHUNK]
            rows = ", ".join(["(?, ?)"] * len(chunk))
            values = [each for data in chunk for each in (hashlib.sha256(data).digest(), data)]
            self._connection.execute(f"{self._queries['put_blobs']} {rows}", values)
        for document in stored_documents:
            self._execute("put_document", document._asdict())
        return stored_documents

    def release_pages(self, most: int) -> Space:
        """Release up to `most` free pages; the file system has them once the log is moved into the file."""
        space = self.space()
        if not space.can_release:
            return space
        # One page each: this connection does not step through a pragma's rows.
        for _ in range(min(most, space.free - KEPT_FREE)):
            self._connection.execute("PRAGMA incremental_vacuum(1)")
        return self.space()

    def space(self) -> Space:
        """Return how much of the file is in use."""
        pragmas = ("page_count", "freelist_count", "page_size", "auto_vacuum")
        pages, free, size, mode = (self._connection.execute(f"PRAGMA {each}").fetchone()[0] for each in pragmas)
        return Space(pages, free, size, mode == _INCREMENTAL)

    # ---- events

    def _add(self, entries: Sequence[Entry]) -> None:
        for start in range(0, len(entries), _CHUNK):
            chunk = entries[start : start + _CHUNK]
            self._connection.execute(self._insert("add_events", len(chunk)), self._values(chunk))
            self.head = self._cursor

    def _add_at_once(self, entries: Sequence[Entry]) -> None:
        """Insert in one statement, which is its own transaction, and writes nothing in another kernel's epoch."""
        statement, values = self._insert("add_events_in_epoch", len(entries)), self._values(entries)
        if self._connection.execute(statement, [*values, self._epoch.number]).rowcount != len(entries):
            raise another_writes()
        self.head = self._cursor

    def _values(self, entries: Sequence[Entry]) -> list[object]:
        values, cursor = list[object](), self._cursor
        for name, run_name, seq, type_name, data in entries:
            cursor += 1
            tree, run = self._runs[name, run_name]
            kind = self._types[type_name]
            values += (cursor, tree, run, seq, kind, data, checksum_of(cursor, run, seq, kind, data))
        self._cursor = cursor
        return values

    def _insert(self, query: str, count: int) -> str:
        """Return the same text for the same count, so that SQLite can reuse the prepared statement."""
        if (text := self._inserts.get((query, count))) is None:
            rows = ", ".join(["(?, ?, ?, ?, ?, ?, ?)"] * count)
            text = self._inserts[query, count] = self._queries[query].replace("{rows}", rows)
        return text

    def _knows(self, entry: Entry) -> bool:
        return (entry.tree, entry.run) in self._runs and entry.type in self._types

    def _learn(self, entry: Entry) -> None:
        """Load or create numbers for the names of an entry."""
        if entry.type not in self._types:
            self._types[entry.type] = self._number("type", entry.type)
        if (entry.tree, entry.run) in self._runs:
            return
        if entry.tree not in self._trees:
            self._trees[entry.tree] = self._number("tree", entry.tree)
        tree = self._trees[entry.tree]
        self._runs[entry.tree, entry.run] = tree, self._number("run", entry.run, tree)

    def trim(self) -> None:
        """Clear name caches that are too large; call between two batches."""
        for names in (self._trees, self._runs, self._types):
            if len(names) > _REMEMBERED:
                names.clear()

    def _number(self, table: str, *names: object) -> int:
        row_id = self._one(f"find_{table}", *names)
        return row_id if row_id is not None else int(self._execute(f"add_{table}", *names).lastrowid or 0)

    def _version(self, write: DocumentWrite) -> int:
        row = self._execute("version" if write.over is None else "document", write.kind, write.key).fetchone()
        version = int(row[0]) if row else 0
        check_version(write, version, row[1] if row and write.over is not None else None)
        return version

    def _one(self, query: str, *values: object) -> Any:
        row = self._execute(query, *values).fetchone()
        return row and row[0]

    def _execute(self, query: str, *values: Any) -> sqlite3.Cursor:
        parameters = values[0] if len(values) == 1 and isinstance(values[0], dict) else values
        return self._connection.execute(self._queries[query], parameters)
