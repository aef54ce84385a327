"""Opening and reading of regular files where a stranger may have put a link, a pipe, a device, or an endless file."""

from __future__ import annotations

import errno
import os
import stat

_READ_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_CREATE_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def open_regular(name: str | os.PathLike[str], *, folder: int | None = None) -> int:
    """Return a descriptor to read a regular file, from an open folder if one is given.

    Never waits. Raises OSError for a link, and for any other object that is not a regular file, which is not opened.
    """
    if not stat.S_ISREG(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
        raise _irregular(name)
    descriptor = os.open(name, _READ_FLAGS, dir_fd=folder)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):  # It was replaced in between.
        os.close(descriptor)
        raise _irregular(name)
    return descriptor


def read_regular(name: str | os.PathLike[str], *, limit: int) -> bytes:
    """Return the content of a regular file of at most `limit` bytes.

    Raises OSError as `open_regular` does, and if the file is larger.
    """
    with open(open_regular(name), "rb") as file:
        content = file.read(limit + 1)
    if len(content) > limit:
        raise OSError(errno.EFBIG, f"it is larger than {limit} bytes", os.fspath(name))
    return content


def write_all(descriptor: int, data: bytes) -> None:
    """Write all of the data, however many calls that takes. Raises OSError."""
    remaining = memoryview(data)
    while remaining:
        remaining = remaining[os.write(descriptor, remaining) :]


def create_file(name: str, data: bytes, *, folder: int) -> None:
    """Create a file with this content in an open folder; no file remains if it cannot be written.

    Raises FileExistsError for an existing entry of any kind, and OSError.
    """
    file = os.open(name, _CREATE_FLAGS, 0o644, dir_fd=folder)
    try:
        write_all(file, data)
    except BaseException:
        os.unlink(name, dir_fd=folder)
        raise
    finally:
        os.close(file)


def has_hole(descriptor: int) -> bool:
    """Return whether a part of a file was never written.

    The file may then be much larger than its space on the disk.
    """
    size = os.fstat(descriptor).st_size
    has = size > 0 and os.lseek(descriptor, 0, os.SEEK_HOLE) < size
    os.lseek(descriptor, 0, os.SEEK_SET)
    return has


def _irregular(name: str | os.PathLike[str]) -> OSError:
    return OSError(errno.EINVAL, "it is not a regular file", os.fspath(name))
