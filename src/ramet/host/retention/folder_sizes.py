"""The sizes of the entries of a state folder on disk, measured in a thread at intervals: a walk may take seconds."""

from __future__ import annotations

import asyncio
import contextlib
import os
import pathlib
from collections import Counter
from collections.abc import Mapping
from typing import Final

from ramet.concurrency.threads import in_thread
from ramet.disk.state_folder import FOLDERS, JOURNAL

EVERY_S: Final = 60.0  #: at the earliest: seconds between the end of a measurement and the next one
SHARE: Final = 20  #: and at least this multiple of the duration of the last one
MOST_ENTRIES: Final = 1_000_000  #: of one measurement; agents may create any number of files
MOST_WAITING: Final = 10_000  #: folders that were found and not yet entered
OTHER: Final = "other"
_BLOCK: Final = 512  #: bytes, whatever the block size of the disk is


class FolderSizes:
    """Bytes on disk below a state folder, by its entries; `stop` ends a running measurement."""

    def __init__(self, folder: pathlib.Path, *, most_entries: int = MOST_ENTRIES) -> None:
        """Set `most_entries`, the number of entries at which a measurement stops counting."""
        self._folder, self._max_entries, self._remaining_entries = folder, most_entries, 0
        self._measuring: asyncio.Future[Mapping[str, int]] | None = None
        self._sizes: Mapping[str, int] = {}
        self._due = 0.0
        self._is_over = False

    def newest_sizes(self) -> Mapping[str, int]:
        """Return the newest sizes by entry; start a measurement if one is due. Never waits.

        The mapping is empty before the first measurement has ended.
        """
        loop = asyncio.get_running_loop()
        if self._measuring is None and not self._is_over and loop.time() >= self._due:
            begin = loop.time()
            self._measuring = in_thread(self._measure, name="ramet-sizes")
            self._measuring.add_done_callback(lambda done: self._note(done, begin))
        return self._sizes

    async def stop(self) -> None:
        """Stop measuring, and wait for the thread; idempotent."""
        self._is_over = True
        if self._measuring is not None:
            await asyncio.wait({self._measuring})

    def _note(self, done: asyncio.Future[Mapping[str, int]], begin: float) -> None:
        now = asyncio.get_running_loop().time()
        self._due = now + max(EVERY_S, SHARE * (now - begin))
        self._measuring = None
        if not done.cancelled() and done.exception() is None and not self._is_over:
            self._sizes = done.result()

    def _measure(self) -> Mapping[str, int]:
        sizes, self._remaining_entries = Counter[str](), self._max_entries
        with contextlib.suppress(OSError), os.scandir(self._folder) as entries:
            for each in entries:
                sizes[_part(each.name)] += self._size(each)
        return sizes

    def _size(self, top: os.DirEntry[str]) -> int:
        """Return the bytes of an entry with all below it; a removed or unreadable entry counts nothing."""
        pending = list[str]()
        total = self._count(top, pending)
        while pending:
            with contextlib.suppress(OSError), os.scandir(pending.pop()) as entries:
                for each in entries:
                    if self._remaining_entries <= 0 or self._is_over:
                        return total
                    total += self._count(each, pending)
        return total

    def _count(self, entry: os.DirEntry[str], pending: list[str]) -> int:
        self._remaining_entries -= 1
        try:
            if entry.is_dir(follow_symlinks=False) and len(pending) < MOST_WAITING:
                pending.append(entry.path)
            return entry.stat(follow_symlinks=False).st_blocks * _BLOCK
        except OSError:
            return 0


def _part(name: str) -> str:
    if name.startswith(JOURNAL):
        return "journal"
    return name if name in FOLDERS else OTHER
