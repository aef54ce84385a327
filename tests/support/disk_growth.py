"""The growth of the file system of a folder, while other programs of the machine write and remove files, too."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import Self

_PAUSE_S = 0.1


class DiskGrowth:
    """A thread that samples how full a file system is, from `with` to its end."""

    def __init__(self, folder: Path, above_mb: int) -> None:
        """Set the growth since the beginning whose time counts."""
        self._folder, self._above = folder, above_mb << 20
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._sample, name="disk growth")
        self.seconds_above = 0.0  #: time in which the file system had grown by more than that

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end.set()
        self._thread.join()

    def _sample(self) -> None:
        start, at = self._filled_bytes(), time.monotonic()
        while not self._end.wait(_PAUSE_S):
            now = time.monotonic()
            if self._filled_bytes() - start > self._above:
                self.seconds_above += now - at
            at = now

    def _filled_bytes(self) -> int:
        status = os.statvfs(self._folder)
        return (status.f_blocks - status.f_bfree) * status.f_frsize
