"""Folders that are there as a whole or not at all, and outlast a loss of power once they are.

What is being made lies in a draft beside its place, and is moved there when it is finished. A draft that is left by a
process that died is nothing, and is cleared away at the next start.
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
    """Make the folder for such folders, and clear away what is unfinished in it."""
    place.mkdir(parents=True, exist_ok=True, mode=0o755)
    for left in place.glob(f"{_DRAFT}*"):
        remove(left)


@contextlib.contextmanager
def draft(place: Path) -> Iterator[Path]:
    """An empty folder that is gone when its block is left, unless `publish` has moved it away."""
    folder = Path(tempfile.mkdtemp(prefix=_DRAFT, dir=place))
    try:
        yield folder
    finally:
        remove(folder)


def publish(folder: Path, place: Path) -> bool:
    """Make a folder read-only, and give it its place. One that is there already stays: it is the same by its name.

    Says whether it is this one that is there.
    """
    _settle(folder)
    try:
        folder.rename(place)  # A folder is replaced only by this if it is empty, which none of these is.
        is_new = True
    except OSError:
        if not place.is_dir():
            raise
        is_new = False
    _sync(place.parent)
    return is_new


def read_bounded(file: Path, limit: int, what: str) -> bytes:
    """Return what a file holds, reading no more than `limit`. Raises InvalidValue, which names `what`, for more."""
    with file.open("rb") as content:
        data = content.read(limit + 1)
    if len(data) > limit:
        raise InvalidValue(what, f"{file.stat().st_size} bytes", f"at most {limit}")
    return data


def write_json(file: Path, *data: Any) -> None:
    """Put data in a file's place, each in a line: the old one or the new one is there, and whole."""
    handle, name = tempfile.mkstemp(prefix=_DRAFT, dir=file.parent)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as out:
            for number, each in enumerate(data):
                out.write("\n" if number else "")
                json.dump(each, out)
            out.flush()
            os.fsync(out.fileno())
        Path(name).replace(file)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    _sync(file.parent)


def remove(path: Path) -> None:
    """Remove a file or a folder, also a read-only one. Idempotent."""
    if path.is_dir() and not path.is_symlink():
        for top, _, _ in os.walk(path):  # A folder that may not be written to does not let go of what is in it.
            Path(top).chmod(0o700)
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _settle(folder: Path) -> None:
    """Nobody may change it who is not the administrator; then to the disk with it."""
    files: list[Path] = []
    tops: list[Path] = []
    for top, _, names in os.walk(folder, topdown=False):
        files += (Path(top, name) for name in names)
        tops.append(Path(top))
    # All modes before all syncs: the first of these then writes the file system's journal for the others.
    for path in (*files, *tops):
        mode = stat.S_IMODE(path.lstat().st_mode)
        wanted = 0o555 if mode & stat.S_IXUSR else 0o444
        if mode != wanted:
            path.chmod(wanted)
    # Several at a time, since the disk takes what waits for it in one go.
    with ThreadPoolExecutor(_TOGETHER) as threads:
        list(threads.map(_sync, (*files, *tops)))


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
