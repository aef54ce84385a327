"""Open a SQLite file for writing or reading, and explain its errors."""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path

from ramet.core.errors import Damaged, StoreFailed
from ramet.store.sqlite import schema
from ramet.store.sqlite.descriptors import Connection
from ramet.store.sqlite.high_water import NOTHING, Mark, loss_of, mark_of

#: How long to wait for another process that recovers the file after a crash.
_BUSY_S = 5.0
_PLAIN = {
    "SQLITE_FULL": "there is no space left on its disk",
    "SQLITE_READONLY": "it, or its folder, cannot be written to",
    "SQLITE_CANTOPEN": "it cannot be opened, or the files next to it cannot be created",
    "SQLITE_IOERR": "the disk failed to write or to read",
    "SQLITE_BUSY": "another program keeps it locked",
    "SQLITE_CORRUPT": "it is damaged",
    "SQLITE_NOTADB": "it is not a database",
}
_DAMAGES = ("SQLITE_CORRUPT", "SQLITE_NOTADB")


def plain(error: sqlite3.Error) -> str:
    """Return the meaning of a SQLite error in words, with SQLite's message."""
    name = getattr(error, "sqlite_errorname", "")
    for known, text in _PLAIN.items():
        if name.startswith(known):
            return f"{text} ({error})"
    return str(error)


def is_damage(error: sqlite3.Error) -> bool:
    """Return whether an error says that a file is damaged."""
    return getattr(error, "sqlite_errorname", "").startswith(_DAMAGES)


@contextlib.contextmanager
def convert_errors(path: Path) -> Iterator[None]:
    """Convert errors of SQLite to Damaged or StoreFailed."""
    try:
        yield
    except sqlite3.Error as error:
        if is_damage(error):
            raise Damaged("the journal", path, plain(error)) from None
        raise StoreFailed(path, plain(error)) from None
    except UnicodeDecodeError as error:  # SQLite's message about an invalid name is not text itself.
        raise Damaged("the journal", path, f"it is damaged ({error.object.decode('utf-8', 'replace')})") from None
    except OSError as error:
        raise StoreFailed(path, error.strerror or str(error)) from None


def make(path: Path, *, accepts_loss: bool = False) -> None:
    """Create an empty file if there is none. Raises StoreFailed, and Damaged if a journal existed there before."""
    with convert_errors(path):
        if not path.exists():
            if not accepts_loss:
                _check_nothing_lost(path, NOTHING)
            # Private from the first moment; SQLite gives its other files the same mode.
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))


def open_for_writing(path: Path, *, accepts_loss: bool = False) -> sqlite3.Connection:
    """Open the journal in a file, and migrate it. Raises Damaged, without any change, and StoreFailed.

    Also raises Damaged if the journal is behind its mark, unless the loss is accepted. The caller must hold the locks.
    """
    with convert_errors(path):
        position = _examine(path)
        if not accepts_loss:
            _check_nothing_lost(path, position)
        connection = connect(path, "rw")
        try:
            version = schema.version_of(connection, path)
            (mode,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
            if mode != "wal":
                raise StoreFailed(path, "a write-ahead log is not possible in its folder")
            if not version:
                # After enabling WAL: before it, this would be a second write with a rollback journal, which would count
                # as foreign.
                connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
                connection.execute("VACUUM")  # Of an empty file, which would otherwise keep its vacuum mode.
            connection.execute("PRAGMA synchronous = FULL")
            connection.execute("PRAGMA wal_autocheckpoint = 0")
            connection.execute("PRAGMA journal_size_limit = 67108864")
            connection.execute("PRAGMA cache_size = -2000")
            connection.execute("PRAGMA secure_delete = ON")  # removed data is overwritten
            schema.migrate(connection, version)
        except BaseException:
            connection.close()
            raise
        return connection


def open_for_reading(path: Path) -> sqlite3.Connection:
    """Open the journal read-only, in this version or an older one.

    Raises Damaged, and StoreFailed if there is no journal yet.
    """
    with convert_errors(path):
        if not path.exists():
            raise StoreFailed(path, "there is no such file")
        connection = connect(path, "ro")
        try:
            connection.execute("PRAGMA query_only = ON")
            if not _version_to_read(connection, path):
                raise StoreFailed(path, "there is no journal in it yet; open it once for writing")
            _check_complete(connection, path)
        except BaseException:
            connection.close()
            raise
        return connection


def _version_to_read(connection: sqlite3.Connection, path: Path) -> int:
    """Return the version of a journal; 0 also if the process that created it was killed while doing so."""
    try:
        return schema.version_of(connection, path)
    except sqlite3.OperationalError as error:
        # The next writer rolls back the incomplete transaction.
        if error.sqlite_errorname != "SQLITE_READONLY_ROLLBACK":
            raise
        return 0


def connect(path: Path, mode: str) -> sqlite3.Connection:
    """Open a plain connection in autocommit mode, for one thread at a time.

    Objects in the schema cannot call functions with side effects.
    """
    connection = Connection(path, mode, timeout_s=_BUSY_S)
    connection.execute("PRAGMA trusted_schema = OFF")
    return connection


def position_of(connection: sqlite3.Connection) -> Mark:
    """Return the position up to which a journal is committed."""
    queries = schema.queries()
    head, forgotten, changes = (
        int(connection.execute(queries[each]).fetchone()[0]) for each in ("head", "last_forgotten", "changes")
    )
    return Mark(max(head, forgotten), changes)


def _check_nothing_lost(path: Path, position: Mark) -> None:
    if (loss := loss_of(path, position, mark_of(path))) is not None:
        raise loss


def _examine(path: Path) -> Mark:
    """Check an existing file without modifying anything, and return its committed position.

    Raises Damaged if the file must not be opened for writing.

    Never use `open` here: closing a file directly releases all locks that SQLite has on it in this process.
    """
    if path.stat().st_size == 0 or path.with_name(path.name + "-journal").exists():
        return NOTHING  # An interrupted creation: SQLite finishes or undoes it.
    connection = connect(path, "ro" if _has_log(path) else "ro&immutable=1")
    try:
        position = position_of(connection) if schema.version_of(connection, path) else NOTHING
        _check_complete(connection, path)
        return position
    finally:
        connection.close()


def _check_complete(connection: sqlite3.Connection, path: Path) -> None:
    """Check the length of the file: SQLite reads missing bytes of the last page as zeros. Raises Damaged."""
    # In one transaction: a kernel that releases pages meanwhile cannot truncate the file before this reader is done.
    connection.execute("BEGIN")
    try:
        (pages,) = connection.execute("PRAGMA page_count").fetchone()
        (size,) = connection.execute("PRAGMA page_size").fetchone()
        # In this order: a kernel that writes meanwhile has a log, or has already moved it into the file.
        if not _has_log(path) and (actual_size := path.stat().st_size) < pages * size:
            raise Damaged("the journal", path, f"it is truncated: {actual_size} bytes of {pages * size}")
    finally:
        connection.execute("COMMIT")


def _has_log(path: Path) -> bool:
    log = path.with_name(path.name + "-wal")
    return log.exists() and log.stat().st_size > 0
