"""The high-water mark of a journal: its committed position, in the file `<journal>.mark` next to it.

The mark is written after each commit has returned, and never synced. So it is never ahead of the data that survives a
power cut, and may be behind. A journal that is behind its mark has lost committed data: its write-ahead log was
truncated or removed, or an older copy replaced it. A missing or unreadable mark means nothing.
"""

from __future__ import annotations

import logging
import os
import re
from pathlib import Path
from typing import NamedTuple, Self
from zlib import crc32

from ramet.core.errors import Damaged
from ramet.disk.regular_files import read_regular

SUFFIX = ".mark"
_SIZE = 64  #: bytes
_LINE = re.compile(rb"ramet ([0-9]{20}) ([0-9]{16}) ([0-9a-f]{8}) *\n")
_NEW = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY
#: Limits that no journal reaches: a mark with larger numbers was not written by ramet.
_MOST_CURSOR, _MOST_CHANGES = 2**62, 10**15

_log = logging.getLogger(__name__)


class Mark(NamedTuple):
    """The committed position of a journal."""

    cursor: int  #: newest cursor that was used
    changes: int  #: number of transactions that changed something other than events

    @property
    def line(self) -> bytes:
        """Return the content of the mark file."""
        text = b"ramet %020d %016d " % self
        return (text + b"%08x" % crc32(text)).ljust(_SIZE - 1) + b"\n"

    def is_behind(self, other: Mark) -> bool:
        """Return whether data of the other position is missing here."""
        return self.cursor < other.cursor or self.changes < other.changes

    def maximum(self, other: Mark) -> Self:
        """Return the larger of both positions, component by component."""
        return type(self)(max(self.cursor, other.cursor), max(self.changes, other.changes))


NOTHING = Mark(0, 0)


def mark_of(journal: Path) -> Mark:
    """Return the mark of a journal; the mark of an empty journal if none can be read."""
    try:
        match = _LINE.fullmatch(read_regular(journal.with_name(journal.name + SUFFIX), limit=_SIZE))
    except OSError:
        return NOTHING
    if match is None:
        return NOTHING
    mark = Mark(int(match[1]), int(match[2]))
    is_possible = mark.cursor <= _MOST_CURSOR and mark.changes <= _MOST_CHANGES
    return mark if is_possible and mark.line == match[0] else NOTHING


def loss_of(journal: Path, position: Mark, mark: Mark) -> Damaged | None:
    """Return the error for a journal that is behind its mark; None for any other journal."""
    if not position.is_behind(mark):
        return None
    why = (
        f"the newest commits are missing from it: it ends at event {position.cursor} and change {position.changes}, "
        f"and event {mark.cursor} and change {mark.changes} were committed. Its write-ahead log was shortened or "
        "removed, or an older copy was put in its place; nothing was changed. Put the files back that belong together, "
        "or accept the loss: ramet repair --accept-loss"
    )
    return Damaged("the journal", journal, why)


class MarkFile:
    """The mark file of a journal, written by its kernel."""

    def __init__(self, journal: Path) -> None:
        self._path, self._fd, self._written_mark = journal.with_name(journal.name + SUFFIX), -1, NOTHING
        self._has_failed = False  #: the last write failed: logged once

    def write(self, mark: Mark) -> None:
        """Record the committed position. Never raises: an old mark detects less loss, but reports nothing wrong."""
        if mark == self._written_mark:
            return
        try:
            if self._fd < 0:
                self._fd = os.open(self._path, _NEW, 0o600)
                os.ftruncate(self._fd, _SIZE)
            os.pwrite(self._fd, mark.line, 0)
        except OSError as problem:
            if not self._has_failed:
                _log.warning("%s cannot be written: %s", self._path, problem)
            self._written_mark, self._has_failed = NOTHING, True
        else:
            self._written_mark, self._has_failed = mark, False

    def close(self) -> None:
        """Close the file; idempotent."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)
