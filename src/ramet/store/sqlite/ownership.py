"""Detect at the next commit that another kernel writes to the database, and stop.

The database counts the kernels that wrote to it: the newest is its owner. A kernel becomes the owner with its first
commit. The count is checked in the transaction itself, so a kernel that was replaced writes nothing.
"""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path

from ramet.store.sqlite import schema
from ramet.store.sqlite.descriptors import Identity


class OwnershipLost(Exception):
    """The error for a file that belongs to another kernel, or is not the one that was opened."""


class Epoch:
    """The number of a kernel among the kernels that wrote to a database."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection, self._queries = connection, schema.queries()
        self.number = self._newest()  #: number of the previous kernel, until this one has taken over
        self.is_taken = False

    def check(self, head: int) -> None:
        """Check at the beginning of a transaction that this kernel may be the newest. Raises OwnershipLost.

        `head` is the newest cursor that this kernel knows: a kernel that takes over must know all existing events.
        """
        if self._newest() != self.number:
            raise another_writes()
        if not self.is_taken and self._connection.execute(self._queries["head"]).fetchone()[0] != head:
            raise another_writes()

    def take(self) -> None:
        """Become the newest kernel, in the transaction of the first change; idempotent."""
        if not self.is_taken:
            self.number += 1
            self._connection.execute(self._queries["put_epoch"], (self.number,))
            self.is_taken = True

    def _newest(self) -> int:
        return int(self._connection.execute(self._queries["epoch"]).fetchone()[0])


def another_writes() -> OwnershipLost:
    """Return the error for a database that another kernel has taken over."""
    return OwnershipLost("another kernel writes to it")


class FileWatch:
    """A check that a database and its write-ahead log are still the files that were opened.

    The check runs before each commit, so it compares numbers and creates no objects.
    """

    def __init__(self, path: Path, identity: Identity) -> None:
        self._path, self._log = str(path), f"{path}-wal"
        self._device, self._inode = identity
        self._log_inode = 0

    def check(self) -> None:
        """Check both files. Raises OwnershipLost if one was replaced or removed."""
        if _inode_on(self._device, self._path) != self._inode:
            raise OwnershipLost("another file took its place, or it was removed or renamed")
        log = _inode_on(self._device, self._log)
        if log != self._log_inode:
            if self._log_inode:
                raise OwnershipLost("its write-ahead log was removed or replaced")
            self._log_inode = log  # SQLite has created it by the first commit.


def _inode_on(device: int, path: str) -> int:
    """Return the inode of a path on a device; 0 if there is none, or if it is on another device."""
    try:
        status = os.stat(path)  # noqa: PTH116 - a Path takes twice as long
    except OSError:
        return 0
    return status.st_ino if status.st_dev == device else 0
