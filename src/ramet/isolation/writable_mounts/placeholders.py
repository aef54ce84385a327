"""Empty `.git` folders at the top of writable mounts without one, which a sandbox covers with a read-only folder.

Without such a folder a run could make a repository there, whose hooks and settings the user's next git command obeys.
git passes over an empty `.git`. A kernel makes the folder when the first sandbox with the mount starts, and removes it
after the last one. While it is in use each kernel holds a shared lock on it: no kernel removes the folder of another.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import threading
from dataclasses import dataclass

from ramet.isolation.linux.beneath import open_beneath, open_without_links
from ramet.isolation.mounts import refusal
from ramet.isolation.writable_mounts.protected_entries import GIT
from ramet.isolation.writable_mounts.refusals import FIELD, make_refusal

_ATTEMPTS = 20  #: Another kernel may remove the folder between two steps.
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(kw_only=True)
class _Placeholder:
    lock_fd: int  #: of the folder; it holds the lock
    is_own: bool  #: whether this kernel made the folder
    users: int = 1


class Placeholders:
    """The placeholders of one kernel, by the source of their mount."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._placeholders: dict[str, _Placeholder] = {}

    def acquire(self, mount: str, source: str) -> None:
        """Have a `.git` folder in a mount. Blocks.

        Raises InvalidValue, which names the mount, if another process holds its lock or the folder cannot be made.
        """
        with self._lock:
            known = self._placeholders.get(source)
            if known is None:
                lock_fd, is_own = _make(mount, source)
                self._placeholders[source] = _Placeholder(lock_fd=lock_fd, is_own=is_own)
                return
            if not _is_at(source, known.lock_fd):  # Another program removed the folder.
                lock_fd, is_own = _make(mount, source)
                os.close(known.lock_fd)
                known.lock_fd, known.is_own = lock_fd, is_own
            known.users += 1

    def release(self, source: str) -> None:
        """Release a placeholder; the last release removes a folder that this kernel made. Blocks."""
        with self._lock:
            if (known := self._placeholders.get(source)) is None:
                return
            known.users -= 1
            if known.users:
                return
            del self._placeholders[source]
            try:
                if known.is_own and _is_at(source, known.lock_fd):
                    _remove(source, known.lock_fd)
            finally:
                os.close(known.lock_fd)


def _make(mount: str, source: str) -> tuple[int, bool]:
    """Return a descriptor of the folder, which holds a shared lock, and whether it was made now."""
    is_own = False
    try:
        folder = open_without_links(source)
        try:
            for _ in range(_ATTEMPTS):
                with contextlib.suppress(FileExistsError):
                    os.mkdir(GIT, 0o755, dir_fd=folder)
                    is_own = True
                try:
                    lock_fd = os.open(GIT, _FOLDER, dir_fd=folder)
                except FileNotFoundError:
                    continue
                try:
                    fcntl.flock(lock_fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
                except BlockingIOError:
                    os.close(lock_fd)
                    continue
                if _is_at(source, lock_fd):
                    return lock_fd, is_own
                os.close(lock_fd)
        finally:
            os.close(folder)
    except OSError as error:
        raise refusal(mount, error, FIELD) from error
    raise make_refusal(mount, f"another process holds a lock on {source}/{GIT}")


def _is_at(source: str, fd: int) -> bool:
    """Return whether the folder behind a descriptor still is the `.git` of the mount."""
    try:
        folder = open_without_links(source)
        try:
            current = open_beneath(folder, GIT)
        finally:
            os.close(folder)
    except OSError:
        return False
    try:
        return os.path.sameopenfile(fd, current)
    finally:
        os.close(current)


def _remove(source: str, lock_fd: int) -> None:
    """Remove the folder if it is empty and no other kernel uses it."""
    with contextlib.suppress(OSError):
        fcntl.flock(lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        folder = open_without_links(source)
        try:
            os.rmdir(GIT, dir_fd=folder)
        finally:
            os.close(folder)
