"""A journal in SQLite is rewritten without its free pages, and gives such pages back from then on. Nobody may have it.

Journals of older versions were made without that: what is free in them is used again, and never given back. SQLite
changes this only by writing the whole file anew, which nobody can write beside. A kill in the middle leaves the journal
as it was: the new content is one transaction of the write-ahead log.
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

_SHARE = 4  #: it is worth while once a part as large as one of so many is free
_COPIES = 2  #: of what is in use, that are on the disk for a while: the new file, and the log that brings it


def compact(path: Path) -> int:
    """Rewrite a journal of an older ramet in which much is free; the bytes by which it became smaller. Waits.

    Raises StoreInUse, StoreFailed where the disk has no room for that, Damaged.
    """
    path = path.resolve()
    check_database(path)
    refuse_network(path)
    before = path.stat().st_size
    with contextlib.ExitStack() as locks:
        locks.callback(KernelLock(path).release)
        locks.callback(DatabaseLock(path).release)
        connection = database.open_for_writing(path)
        try:
            with database.opening(path):
                space = Journal(connection).space()
                if space.gives_back or space.surplus * _SHARE < space.pages:
                    return 0
                needed = _COPIES * (space.pages - space.free) * space.page_size
                if (room := shutil.disk_usage(path.parent).free) < needed:
                    raise StoreFailed(path, f"it takes {needed} bytes to make it smaller, and the disk has {room}")
                with _temporary_files_in(path.parent):
                    connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
                    connection.execute("VACUUM")
                connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        finally:
            connection.close()
    return max(0, before - path.stat().st_size)


@contextlib.contextmanager
def _temporary_files_in(folder: Path) -> Iterator[None]:
    """Have SQLite make its copy where the journal is: whoever may not read that may not read the copy either."""
    before = os.environ.get("SQLITE_TMPDIR")
    os.environ["SQLITE_TMPDIR"] = str(folder)
    try:
        yield
    finally:
        if before is None:
            del os.environ["SQLITE_TMPDIR"]
        else:
            os.environ["SQLITE_TMPDIR"] = before
