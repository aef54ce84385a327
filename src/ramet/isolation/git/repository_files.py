"""Files and folders that ramet itself creates in a repository: no link is followed, in the repository or above it.

If the creator is root, they are given to the owner of the repository.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ramet.isolation.linux.beneath import open_without_links

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_MAX_EXCLUDE = 1 << 20


def make_folder(root: Path, relative_path: Path) -> None:
    """Create `root/below`, and each missing parent. Raises OSError, also for a link in the path."""
    with _open_folder(root, relative_path):
        pass


def open_lock(folder: Path, name: str) -> int:
    """Open a lock file in `folder`, created if it is missing. Raises OSError, also for a link."""
    with _open_folder(folder, Path()) as fd:
        return _open_file(fd, name, 0o600)


def add_line(root: Path, relative_path: Path, line: str) -> None:
    """Add a line to the file `root/below`, unless it is there. Raises OSError, also for a link in the path."""
    with _open_folder(root, relative_path.parent) as folder:
        fd = _open_file(folder, relative_path.name, 0o644)
    with os.fdopen(fd, "r+b") as file:
        content = file.read(_MAX_EXCLUDE)
        if line.encode() not in content.splitlines():
            file.seek(0, os.SEEK_END)
            separator = b"" if not content or content.endswith(b"\n") else b"\n"
            file.write(separator + line.encode() + b"\n")


@contextmanager
def _open_folder(root: Path, relative_path: Path) -> Iterator[int]:
    fd = _open_root(root)
    try:
        for name in relative_path.parts:
            inner = _enter(fd, name)
            os.close(fd)
            fd = inner
        yield fd
    finally:
        os.close(fd)


def _open_root(root: Path) -> int:
    handle = open_without_links(str(root))
    try:
        return os.open(".", _FOLDER, dir_fd=handle)
    finally:
        os.close(handle)


def _enter(folder: int, name: str) -> int:
    try:
        os.mkdir(name, dir_fd=folder)
    except FileExistsError:
        _refuse_link(folder, name)
        return os.open(name, _FOLDER, dir_fd=folder)
    fd = os.open(name, _FOLDER, dir_fd=folder)
    _give(fd, folder)
    return fd


def _open_file(folder: int, name: str, mode: int) -> int:
    _refuse_link(folder, name)
    fd = os.open(name, _FILE, mode, dir_fd=folder)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(errno.EINVAL, f"{name} is not a regular file")
    _give(fd, folder)
    return fd


def _refuse_link(folder: int, name: str) -> None:
    """Raise an error that names a link as the reason; O_NOFOLLOW refuses a link that is made after this."""
    try:
        status = os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return
    if stat.S_ISLNK(status.st_mode):
        raise OSError(errno.ELOOP, f"{name} is a symbolic link; ramet writes to files and folders only")


def _give(fd: int, folder: int) -> None:
    """Give a file that root has created to the owner of its folder."""
    owner, status = os.fstat(folder), os.fstat(fd)
    if os.geteuid() == 0 and status.st_uid == 0 and status.st_nlink <= 2 and owner.st_uid != 0:
        os.fchown(fd, owner.st_uid, owner.st_gid)
