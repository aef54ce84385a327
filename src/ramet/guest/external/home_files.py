"""The home of a program: a folder of the workspace with its configuration and its sessions.

A resumed run finds what the program left there, which is hostile: a link could lead to a file that is mounted writable.
So no link is followed, and a file is replaced as a whole.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from ramet.core.errors import InvalidValue, TaskFailed
from ramet.disk.regular_files import write_all
from ramet.wire.external_program import HOME_FOLDER

#: A folder below the home for temporary files.
SCRATCH_FOLDER: Final = "tmp"
_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW_FILE: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def write_home(workspace: Path, files: Mapping[str, str]) -> Path:
    """Write files below the home, readable for the program alone; return the home.

    Raises InvalidValue for a path that does not stay below the home, and TaskFailed where the program has left
    something that is not a folder.
    """
    for path in files:
        if not is_path_below(path):
            raise InvalidValue("files", path, "a path below the home of the program")
    try:
        with _opened(str(workspace), None) as top, _ensured(top, HOME_FOLDER) as home:
            with _ensured(home, SCRATCH_FOLDER):
                pass
            for path, text in files.items():
                _write(home, path, text)
    except OSError as problem:
        raise TaskFailed(f"the home of the program cannot be written: {problem}") from None
    return workspace / HOME_FOLDER


def is_path_below(path: str) -> bool:
    """Return whether a path has only names of entries in it."""
    return bool(path) and "\0" not in path and all(part not in ("", ".", "..") for part in path.split("/"))


def _write(folder: int, path: str, text: str) -> None:
    """Write a file below an open folder."""
    with contextlib.ExitStack() as stack:
        *parents, name = path.split("/")
        for parent in parents:
            folder = stack.enter_context(_ensured(folder, parent))
        draft = f".{secrets.token_hex(8)}"
        file = os.open(draft, _NEW_FILE, 0o600, dir_fd=folder)
        try:
            try:
                write_all(file, text.encode("utf-8", "replace"))
            finally:
                os.close(file)
            os.rename(draft, name, src_dir_fd=folder, dst_dir_fd=folder)
        except OSError:
            os.unlink(draft, dir_fd=folder)
            raise


@contextlib.contextmanager
def _ensured(folder: int, name: str) -> Iterator[int]:
    with contextlib.suppress(FileExistsError):
        os.mkdir(name, 0o700, dir_fd=folder)
    with _opened(name, folder) as made:
        yield made


@contextlib.contextmanager
def _opened(name: str, folder: int | None) -> Iterator[int]:
    # The workspace itself is the host's, and its path may have links.
    descriptor = os.open(name, _FOLDER if folder is not None else _FOLDER & ~os.O_NOFOLLOW, dir_fd=folder)
    try:
        yield descriptor
    finally:
        os.close(descriptor)
