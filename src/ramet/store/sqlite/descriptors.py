"""Track descriptors and connections of this process by their database files.

The locks of SQLite belong to the process: closing any descriptor of a file releases all of them. So a descriptor of a
database is closed only when no connection of this process has the file open; until then it stays open unused.
"""

from __future__ import annotations

import os
import sqlite3
import threading
import weakref
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any, NamedTuple

_FLAGS = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY


class Identity(NamedTuple):
    """Identity of a file, independent of its names."""

    device: int
    inode: int


def identity_of(path: Path) -> Identity | None:
    """Return the identity of the file at a path; None if there is none."""
    try:
        status = path.stat()
    except OSError:
        return None
    return Identity(status.st_dev, status.st_ino)


class Descriptors:
    """The descriptors and connections of this process, by their files."""

    def __init__(self) -> None:
        self.guard = threading.RLock()  # A connection that is garbage-collected may call in at any point.
        self.locked_files: set[Identity] = set()  #: files that a kernel of this process has locked
        self._connections: Counter[Identity] = Counter()
        self._idle: defaultdict[Identity, list[int]] = defaultdict(list)

    def open(self, path: Path, mode: int) -> tuple[int, Identity]:
        """Open a file. Raises OSError if this fails."""
        descriptor = os.open(path, mode | _FLAGS)
        status = os.fstat(descriptor)
        return descriptor, Identity(status.st_dev, status.st_ino)

    def close(self, descriptor: int, identity: Identity) -> None:
        """Close a descriptor, at once or as soon as no connection has its file open."""
        with self.guard:
            self._idle[identity].append(descriptor)
            self._close_idle(identity)

    def add_connection(self, identity: Identity) -> None:
        """Note that a connection has a file open."""
        with self.guard:
            self._connections[identity] += 1

    def remove_connection(self, identity: Identity) -> None:
        """Note that a connection is closed."""
        with self.guard:
            self._connections[identity] -= 1
            if self._connections[identity] <= 0:
                del self._connections[identity]
                self._close_idle(identity)

    def _close_idle(self, identity: Identity) -> None:
        if self._connections[identity] <= 0:
            for each in self._idle.pop(identity, ()):
                os.close(each)


descriptors = Descriptors()


class Connection(sqlite3.Connection):
    """A connection to a database that registers the file it has open."""

    def __init__(self, path: Path, mode: str, *, timeout_s: float) -> None:
        """Open a connection; `mode` is a URI mode (`rw`, `ro`).

        Transactions begin explicitly; any thread may use it.
        """
        self._finalizers: list[weakref.finalize[Any, Any]] = []
        identity_before = identity_of(path)
        self._keep_open(identity_before)  # Registered before opening, so that no descriptor is closed in the meantime.
        try:
            super().__init__(
                f"{path.as_uri()}?mode={mode}",
                uri=True,
                timeout=timeout_s,
                isolation_level=None,
                check_same_thread=False,
                cached_statements=256,
            )
        except BaseException:
            self._end()
            raise
        if (identity_after := identity_of(path)) != identity_before:
            self._keep_open(identity_after)

    def close(self) -> None:
        """Close the connection; idempotent."""
        super().close()
        self._end()

    def _keep_open(self, identity: Identity | None) -> None:
        if identity is not None:
            descriptors.add_connection(identity)
            finalizer = weakref.finalize(self, descriptors.remove_connection, identity)
            finalizer.atexit = False
            self._finalizers.append(finalizer)

    def _end(self) -> None:
        for each in self._finalizers:
            each()
