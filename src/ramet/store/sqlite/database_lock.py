"""Allow one kernel per database file, under any name: a lock on the file itself, in addition to the lock file.

A lock file can be removed, and a hard link of the database in another folder has its own lock file. So a kernel also
locks a byte of the database, far beyond the bytes that SQLite locks and the end of the file, for an open file
description (`F_OFD_SETLK`). Such a lock does not conflict with any lock of SQLite.
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct
import sys
from pathlib import Path

from ramet.core.errors import StoreFailed, StoreInUse
from ramet.store.sqlite.descriptors import descriptors, identity_of

_BYTE = 2**62  #: SQLite locks bytes from 2^30 on
_FLOCK = "hhqqi4x"  #: struct flock: type, whence, start, length, pid
_UNKNOWN_HOLDER = "pid unknown: its lock file was removed, or the database has another name"


class DatabaseLock:
    """A lock on an existing database, from construction to `release`, or to the end of this process."""

    def __init__(self, path: Path) -> None:
        """Lock the file. Raises StoreInUse if a kernel has it under any name, and StoreFailed. Changes nothing."""
        with descriptors.guard:
            if (identity := identity_of(path)) in descriptors.locked_files:
                raise StoreInUse(path, f"pid {os.getpid()}")  # Closing a descriptor of it would release its locks.
            try:
                self._fd, self.identity = descriptors.open(path, os.O_RDWR)
            except OSError as error:
                raise StoreFailed(path, f"it cannot be opened: {error.strerror}") from None
            try:
                if self.identity != identity:
                    raise StoreFailed(path, "it was replaced while it was opened")
                if sys.platform == "linux":
                    fcntl.fcntl(self._fd, fcntl.F_OFD_SETLK, _lock_of(fcntl.F_WRLCK))
            except BaseException as error:
                descriptors.close(self._fd, self.identity)
                if not isinstance(error, OSError):
                    raise
                if error.errno in (errno.EAGAIN, errno.EACCES):
                    raise StoreInUse(path, _UNKNOWN_HOLDER) from None
                raise StoreFailed(path, f"it cannot be locked: {error.strerror}") from None
            descriptors.locked_files.add(self.identity)

    def release(self) -> None:
        """Release the lock; idempotent. The kernel's connections must be closed before."""
        with descriptors.guard:
            fd, self._fd = self._fd, -1
            if fd < 0:
                return
            descriptors.locked_files.discard(self.identity)
            if sys.platform == "linux":  # The descriptor may stay open for a while.
                fcntl.fcntl(fd, fcntl.F_OFD_SETLK, _lock_of(fcntl.F_UNLCK))
            descriptors.close(fd, self.identity)


def is_locked(path: Path) -> bool:
    """Return whether a kernel has this database, under any name. Has no effect on others; False if there is no file."""
    with descriptors.guard:
        if identity_of(path) in descriptors.locked_files:
            return True
        try:
            descriptor, identity = descriptors.open(path, os.O_RDONLY)
        except OSError:
            return False
        try:
            if sys.platform != "linux":
                return False
            answer = fcntl.fcntl(descriptor, fcntl.F_OFD_GETLK, _lock_of(fcntl.F_WRLCK))
            return bool(struct.unpack(_FLOCK, answer)[0] != fcntl.F_UNLCK)
        except OSError:
            return False
        finally:
            descriptors.close(descriptor, identity)


def _lock_of(kind: int) -> bytes:
    return struct.pack(_FLOCK, kind, os.SEEK_SET, _BYTE, 1, 0)
