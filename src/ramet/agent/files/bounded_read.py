"""Read files of other authors: bounded, only regular files, and nothing outside of the expected folder."""

from __future__ import annotations

import codecs
import os
import stat
from pathlib import Path
from typing import NamedTuple

from ramet.core.errors import RametError

_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY


class Unreadable(RametError):
    """The error for a file that cannot be used; `reason` is one sentence without the file's content."""

    def __init__(self, path: Path, reason: str) -> None:
        self.path, self.reason = path, reason
        super().__init__(f"{path}: {reason}")


class FileStamp(NamedTuple):
    """The file attributes that detect a change without reading the file."""

    mtime_ns: int
    size: int
    inode: int
    device: int

    @classmethod
    def of(cls, status: os.stat_result) -> FileStamp:
        return cls(status.st_mtime_ns, status.st_size, status.st_ino, status.st_dev)


class Content(NamedTuple):
    data: bytes
    stamp: FileStamp
    cut: bool = False  #: the file has more bytes than the limit


class Text(NamedTuple):
    r"""The text of a file, with line ends as `\\n`, without a byte order mark."""

    text: str
    stamp: FileStamp
    cut: bool = False  #: the file has more bytes than the limit


def real_path(path: Path, *, fence: Path | None = None) -> Path:
    """Return the real path. Raises Unreadable if it does not exist, is a link loop, or leads out of `fence`."""
    try:
        real = path.resolve(strict=True)
    except FileNotFoundError:
        raise Unreadable(path, "there is no such file, or it is a link that leads nowhere") from None
    except (OSError, RuntimeError) as error:  # RuntimeError: Python before 3.13 for a symlink loop
        raise Unreadable(path, f"it cannot be reached: {_failure_reason(error)}") from None
    if fence is not None and not real.is_relative_to(fence.resolve()):
        raise Unreadable(path, f"it leads out of {fence}")
    return real


def read_text(path: Path, *, limit: int, fence: Path | None = None, cut: bool = False) -> Text:
    """Read at most `limit` bytes of UTF-8, as `read_bytes` does. Raises Unreadable."""
    data, stamp, is_cut = read_bytes(path, limit=limit, fence=fence, cut=cut)
    try:  # Not final if cut: the limit may split a character.
        text = codecs.getincrementaldecoder("utf-8-sig")().decode(data, final=not is_cut)
    except UnicodeDecodeError as error:
        raise Unreadable(path, f"it is not UTF-8 (byte {error.start})") from None
    return Text(text.replace("\r\n", "\n").replace("\r", "\n"), stamp, is_cut)


def read_bytes(path: Path, *, limit: int, fence: Path | None = None, cut: bool = False) -> Content:
    """Read at most `limit` bytes; a larger file is refused, or truncated if `cut` allows it.

    Raises Unreadable. Never blocks: a pipe or device with the name of a file is refused before it is opened.
    """
    real = real_path(path, fence=fence)
    try:
        if not stat.S_ISREG(real.stat().st_mode):
            raise Unreadable(path, "it is not a regular file")
        handle = os.open(real, _FLAGS)
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode):  # the file was replaced in between
            os.close(handle)  # fdopen would refuse a folder, and leave it open
            raise Unreadable(path, "it is not a regular file")
        with os.fdopen(handle, "rb") as file:
            data = file.read(limit + 1)
    except OSError as error:
        raise Unreadable(path, f"it cannot be read: {_failure_reason(error)}") from None
    is_larger = len(data) > limit
    if is_larger and not cut:
        raise Unreadable(path, f"it is larger than {limit} bytes")
    return Content(data[:limit], FileStamp.of(status), is_larger)


def _failure_reason(error: BaseException) -> str:
    return (error.strerror or str(error)) if isinstance(error, OSError) else "its links form a loop"
