"""Rewrite a SQLite journal without its free pages, so that it can release pages later. No process may have it open.

Journals of older versions were created without this option: their free pages are reused, but never released. SQLite
changes the option only by writing the whole file anew, without concurrent writers. A kill in the middle leaves the
journal unchanged: the new content is one transaction of the write-ahead log.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from ramet.core.errors import StoreFailed
from ramet.disk.state_folder import check_database
from ramet.store.sqlite import database
from ramet.store.sqlite.database_lock import DatabaseLock
from ramet.store.sqlite.lock import KernelLock, refuse_network
from ramet.store.sqlite.tables import Journal

_SHARE = 4  #: compaction is worthwhile once at least one part in four is free
_COPIES = 2  #: copies of the used data that are on the disk temporarily: the new file, and the log that carries it


def compact(path: Path) -> int:
    """Rewrite a journal of an older ramet that has much free space; return the bytes saved. Blocks.

    Raises StoreInUse, Damaged, and StoreFailed if the disk has too little space.
    """
    path = path.resolve()
    check_database(path)
    refuse_network(path)
    size_before = path.stat().st_size
    with contextlib.ExitStack() as locks:
        locks.callback(KernelLock(path).release)
        locks.callback(DatabaseLock(path).release)
        connection = database.open_for_writing(path)
        try:
            with database.convert_errors(path):
                space = Journal(connection).space()
                if space.can_release or space.surplus * _SHARE < space.pages:
                    return 0
                needed_bytes = _COPIES * (space.pages - space.free) * space.page_size
                if (free_bytes := shutil.disk_usage(path.parent).free) < needed_bytes:
                    raise StoreFailed(
                        path, f"it takes {needed_bytes} bytes to make it smaller, and the disk has {free_bytes}"
                    )
                with _temporary_files_in(path.parent):
                    connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
                    connection.execute("VACUUM")
                connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        finally:
            connection.close()
    return max(0, size_before - path.stat().st_size)


@contextlib.contextmanager
def _temporary_files_in(folder: Path) -> Iterator[None]:
    """Make SQLite create its temporary copy in the journal's folder, which gives it the same access protection."""
    old_value = os.environ.get("SQLITE_TMPDIR")
    os.environ["SQLITE_TMPDIR"] = str(folder)
    try:
        yield
    finally:
        if old_value is None:
            del os.environ["SQLITE_TMPDIR"]
        else:
            os.environ["SQLITE_TMPDIR"] = old_value
