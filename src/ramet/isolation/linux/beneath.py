"""Open files by descriptor, beneath a folder, without following a symbolic link anywhere in the path.

`openat2` does it in one step. Where that call is missing or forbidden (before Linux 5.6, under gVisor, behind an old
seccomp profile) the path is walked part by part, each from the descriptor of the previous part.
"""

from __future__ import annotations

import errno
import os
import stat
import sys

from ramet.isolation.linux import calls

_HANDLE = getattr(os, "O_PATH", os.O_RDONLY) | os.O_CLOEXEC
_RESOLVE = calls.RESOLVE_BENEATH | calls.RESOLVE_NO_SYMLINKS | calls.RESOLVE_NO_MAGICLINKS
_IS_MISSING = (errno.ENOSYS, errno.EPERM)


def open_beneath(folder: int, path: str) -> int:
    """Return a handle (O_PATH) of `path` beneath an open folder. Not inherited.

    Raises OSError: ELOOP for a symbolic link anywhere in the path, EXDEV for a path that leads out of the folder.
    """
    if sys.platform == "linux":
        try:
            return calls.openat2(folder, path, _HANDLE, _RESOLVE)
        except OSError as error:
            if error.errno not in _IS_MISSING:
                raise
    return walk_beneath(folder, path)


def open_without_links(path: str) -> int:
    """Return a handle of an absolute path that has no symbolic link in it. Raises OSError as `open_beneath` does."""
    root = os.open("/", _HANDLE | os.O_DIRECTORY)
    try:
        return open_beneath(root, path.lstrip("/") or ".")
    finally:
        os.close(root)


def walk_beneath(folder: int, path: str) -> int:
    """Return a handle as `open_beneath` does, without `openat2`. Raises the same errors."""
    parts = [part for part in path.split("/") if part not in ("", ".")]
    if path.startswith("/") or ".." in parts:
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV), path)
    parent_fd = os.dup(folder)
    try:
        for number, part in enumerate(parts, 1):
            fd = os.open(part, _HANDLE | os.O_NOFOLLOW, dir_fd=parent_fd)
            os.close(parent_fd)
            parent_fd = fd
            mode = os.fstat(parent_fd).st_mode
            if stat.S_ISLNK(mode):
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
            if number < len(parts) and not stat.S_ISDIR(mode):
                raise OSError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path)
    except BaseException:
        os.close(parent_fd)
        raise
    return parent_fd
