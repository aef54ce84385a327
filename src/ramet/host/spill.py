"""Where tool results go that are too large for a conversation: one folder per tree, readable by its runs."""

from __future__ import annotations

import pathlib
import shutil
import tempfile
from collections.abc import Callable

from ramet.core.ids import safe_name
from ramet.tools.context import RunInfo


class Spill:
    """Keeps large results beside the transcripts, or in a temporary folder that goes with the tree."""

    def __init__(self, transcripts: pathlib.Path | None) -> None:
        self._folder = transcripts / "results" if transcripts is not None else None
        self._temporary: pathlib.Path | None = None

    def of(self, run: RunInfo) -> Callable[[str, str], pathlib.Path]:
        """The way for one run to put a result away."""

        def put(call_id: str, text: str) -> pathlib.Path:
            file = self._made() / run.id / f"{safe_name(call_id, 'result')}.txt"
            file.parent.mkdir(exist_ok=True)
            file.write_text(text, encoding="utf-8", errors="surrogateescape")
            return file

        return put

    def roots(self, run: RunInfo) -> tuple[pathlib.Path, ...]:
        """Folders that this run may read beside its own: its results, once there are any."""
        folder = self._folder
        return (folder / run.id,) if folder is not None else ()

    def close(self) -> None:
        """Remove what was temporary."""
        if self._temporary is not None:
            shutil.rmtree(self._temporary, ignore_errors=True)

    def _made(self) -> pathlib.Path:
        if self._folder is None:
            self._temporary = pathlib.Path(tempfile.mkdtemp(prefix="ramet-results-"))
            self._folder = self._temporary
        self._folder.mkdir(parents=True, exist_ok=True)
        return self._folder
