"""The open files of a SQLite store: its locks, and its connections."""

from __future__ import annotations

import contextlib
import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from ramet.core.errors import Damaged
from ramet.disk.state_folder import check_database
from ramet.store.sqlite import database
from ramet.store.sqlite.checkpoint import Checkpoints
from ramet.store.sqlite.database_lock import DatabaseLock
from ramet.store.sqlite.high_water import MarkFile, loss_of, mark_of
from ramet.store.sqlite.lock import KernelLock, refuse_network
from ramet.store.sqlite.ownership import FileWatch
from ramet.store.sqlite.reader import SqliteReader
from ramet.store.sqlite.tables import Journal

T = TypeVar("T")


class SqliteFiles:
    """The open files of a store, or none: the locks, the connections."""

    def __init__(self, path: Path, read_only: bool, allow_fuse: bool) -> None:
        self.journal: Journal | None = None
        self.checkpoints: Checkpoints | None = None
        self._lock: KernelLock | None = None
        self._database_lock: DatabaseLock | None = None
        self._mark: MarkFile | None = None
        self.loss: Damaged | None = None  #: loss found by a read-only store; no kernel writes to such a journal
        self._connections: list[sqlite3.Connection] = []
        self._path, self._loop_reader_lock = path, threading.Lock()
        self._loop_reader: SqliteReader | None = None
        try:
            check_database(path)
            if not read_only:
                refuse_network(path, allow_fuse=allow_fuse)
                self._lock = KernelLock(path)
                database.make(path)
                self._database_lock = DatabaseLock(path)
                writer_connection = self._remember(database.open_for_writing(path))
                self._mark = MarkFile(path)
                with database.convert_errors(path):
                    self.journal = Journal(writer_connection, FileWatch(path, self._database_lock.identity), self._mark)
                    self.checkpoints = Checkpoints(self._remember(database.connect(path, "rw")), writer_connection)
            mark = mark_of(path)  # Before the journal, which is never behind its mark.
            reader_connection = self._remember(database.open_for_reading(path))
            self.reader = SqliteReader(reader_connection, path)
            if read_only:
                # Readers of such a page get an error; other pages may be intact.
                with contextlib.suppress(sqlite3.Error):
                    self.loss = loss_of(path, database.position_of(reader_connection), mark)
        except BaseException:
            self.release()
            raise

    def read_in_caller(self, read: Callable[[SqliteReader], T]) -> T:
        """Read in the calling thread, on a connection opened at the first call."""
        with self._loop_reader_lock:
            if self._loop_reader is None:
                self._loop_reader = SqliteReader(database.open_for_reading(self._path), self._path)
            return read(self._loop_reader)

    def close_readers(self) -> None:
        """Close the connections that only read."""
        self.reader.close()
        with self._loop_reader_lock:
            if self._loop_reader is not None:
                self._loop_reader.close()
            self._loop_reader = self.reader  # it is closed, and raises for late callers

    def release(self) -> None:
        """Close all open files, from any thread; idempotent."""
        for connection in self._connections:
            connection.close()
        if self._mark is not None:
            self._mark.close()
        for lock in (self._database_lock, self._lock):
            if lock is not None:
                lock.release()

    def _remember(self, connection: sqlite3.Connection) -> sqlite3.Connection:
        self._connections.append(connection)
        return connection
