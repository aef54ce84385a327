"""Folders that exist completely or not at all, and survive a loss of power once they exist.

A folder is built as a draft beside its final place, and is moved there when it is complete. A draft left by a process
that died has no meaning. The next start removes it.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from ramet.core.errors import InvalidValue

_DRAFT = ".draft-"
_TOGETHER = 8


def open_place(place: Path) -> None:
    """Create the folder that holds such folders, and remove the unfinished drafts in it."""
    place.mkdir(parents=True, exist_ok=True, mode=0o755)
    for leftover in place.glob(f"{_DRAFT}*"):
        remove(leftover)


@contextlib.contextmanager
def draft(place: Path) -> Iterator[Path]:
    """Yield an empty folder that is removed at the end of the block, unless `publish` has moved it away."""
    folder = Path(tempfile.mkdtemp(prefix=_DRAFT, dir=place))
    try:
        yield folder
    finally:
        remove(folder)


def publish(folder: Path, place: Path) -> bool:
    """Make a folder read-only, and move it to its place. Return whether this folder was moved there.

    An existing folder stays in place: it has the same name, and therefore the same content.
    """
    _settle(folder)
    try:
        folder.rename(place)  # Replaces a folder only if that is empty, and none of these is.
        is_new = True
    except OSError:
        if not place.is_dir():
            raise
        is_new = False
    _sync(place.parent)
    return is_new


def read_bounded(file: Path, limit: int, field: str) -> bytes:
    """Return the content of a file, and read at most `limit` bytes.

    Raises InvalidValue, which names `field`, for more.
    """
    with file.open("rb") as content:
        data = content.read(limit + 1)
    if len(data) > limit:
        raise InvalidValue(field, f"{file.stat().st_size} bytes", f"at most {limit}")
    return data


def write_json(file: Path, *data: Any) -> None:
    """Replace a file by data, one value on each line. The old file or the new one exists, never a part of one."""
    handle, name = tempfile.mkstemp(prefix=_DRAFT, dir=file.parent)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as output:
            for number, each in enumerate(data):
                output.write("\n" if number else "")
                json.dump(each, output)
            output.flush()
            os.fsync(output.fileno())
        Path(name).replace(file)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    _sync(file.parent)


def remove(path: Path) -> None:
    """Remove a file or a folder, including a read-only one. Idempotent."""
    if path.is_dir() and not path.is_symlink():
        for top, _, _ in os.walk(path):  # The entries of a read-only folder cannot be removed.
            Path(top).chmod(0o700)
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _settle(folder: Path) -> None:
    """Make a folder read-only for everyone except the administrator, then sync it to the disk."""
    files: list[Path] = []
    tops: list[Path] = []
    for top, _, names in os.walk(folder, topdown=False):
        files += (Path(top, name) for name in names)
        tops.append(Path(top))
    # All modes before all syncs: the first of these then writes the file system's journal for the others.
    for path in (*files, *tops):
        mode = stat.S_IMODE(path.lstat().st_mode)
        file_mode = 0o555 if mode & stat.S_IXUSR else 0o444
        if mode != file_mode:
            path.chmod(file_mode)
    # Several concurrently, since the disk writes all waiting data in one operation.
    with ThreadPoolExecutor(_TOGETHER) as threads:
        list(threads.map(_sync, (*files, *tops)))


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
