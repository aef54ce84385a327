"""The storage of tool results that are too large for a conversation: one folder per tree, readable by its runs."""

from __future__ import annotations

import functools
import itertools
import os
import pathlib
import shutil
import tempfile
from collections.abc import Callable

from ramet.core.ids import safe_name
from ramet.disk.state_folder import open_folder
from ramet.tools.run_info import RunInfo

_NEW = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class Spill:
    """The large results of a tree, stored with the transcripts, or in a temporary folder that ends with the tree."""

    def __init__(self, transcripts: pathlib.Path | None, secret: str) -> None:
        """Set `secret`, an unguessable name, so that no other user can create the temporary folder first."""
        self._is_temporary = transcripts is None
        base = _resolve(tempfile.gettempdir()) / f"ramet-{secret}" if transcripts is None else transcripts
        self._folder = base / "results"
        self._numbers = itertools.count(1)

    def writer_for(self, run: RunInfo) -> Callable[[str, str], pathlib.Path]:
        """Return the function that stores a result of one run; no result replaces another."""

        def put(call_id: str, text: str) -> pathlib.Path:
            name = f"{next(self._numbers)}-{safe_name(call_id, 'result')}.txt"
            with open_folder(self._make_folder(run), make=True) as folder:
                file = os.open(name, _NEW, 0o666, dir_fd=folder)
            with open(file, "w", encoding="utf-8", errors="surrogateescape") as result:  # noqa: PTH123 - a descriptor
                result.write(text)
            return self._folder / run.id / name

        return put

    def roots(self, run: RunInfo) -> tuple[pathlib.Path, ...]:
        """Return the folders that this run may read besides its own: the folder of its results, once there are any."""
        return (self._folder / run.id,)

    def close(self) -> None:
        """Remove the temporary folder, if there is one."""
        if self._is_temporary:
            shutil.rmtree(self._folder.parent, ignore_errors=True)

    def _make_folder(self, run: RunInfo) -> pathlib.Path:
        if self._is_temporary and not self._folder.parent.exists():
            self._folder.parent.mkdir(mode=0o700)
        return self._folder / run.id


@functools.cache
def _resolve(temporary_folder: str) -> pathlib.Path:
    return pathlib.Path(temporary_folder).resolve()
