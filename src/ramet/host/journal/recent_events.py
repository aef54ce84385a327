"""The newest events of one tree, for late readers: MAX_MEMORY bytes of them in memory, older ones in unnamed files.

An event has a position: 0 for the first one of the tree in this process. Positions below `start` were dropped.
"""

from __future__ import annotations

import logging
import os
import pathlib
import tempfile
import weakref
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from ramet.core.errors import InvalidValue
from ramet.core.events import Event, decode, encode

_log = logging.getLogger("ramet.recorder")
#: Events of one tree; older ones are in the transcripts, if there are any.
KEPT_EVENTS = 50_000
#: Bytes of one tree's events in memory, as JSON.
MAX_MEMORY = 16 * 1024 * 1024
#: Bytes of one file, and files of one tree: the oldest file is dropped with its events.
MAX_FILE, MAX_FILES = 64 * 1024 * 1024, 4
_NOT_JSON = 1024  #: what an event counts that cannot be written: it stays in memory


class _File:
    """A file that nobody can open by name. It is closed with this object."""

    def __init__(self, folder: pathlib.Path | None) -> None:
        """Raises OSError if there can be no file."""
        with tempfile.TemporaryFile(dir=folder, buffering=0) as opened:
            self.fd = os.dup(opened.fileno())
        weakref.finalize(self, os.close, self.fd)
        self.size = 0

    def add(self, line: bytes) -> _Place:
        """Write one event. Raises OSError."""
        rest = memoryview(line)
        while rest:
            rest = rest[os.pwrite(self.fd, rest, self.size + len(line) - len(rest)) :]
        place = _Place(file=self, offset=self.size, size=len(line))
        self.size += len(line)
        return place


@dataclass(frozen=True, kw_only=True, slots=True)
class _Place:
    """The place in a file of an event that is not in memory."""

    file: _File
    offset: int
    size: int

    def read(self) -> Event:
        return decode(os.pread(self.file.fd, self.size, self.offset))


class KeptEvents:
    """Events in the order in which they were added."""

    def __init__(self, folder: pathlib.Path | None = None) -> None:
        """`folder` is where files are made; None: where the system has its temporary files."""
        self._folder = folder
        self._events: deque[Event | _Place] = deque()
        self._sizes: deque[int] = deque()  #: of the newest events, which are in memory
        self._bytes = 0
        self._files: deque[_File] = deque()
        self.start = 0  #: position of the oldest event that is there
        self.first: Event | None = None  #: the first event of all

    def __len__(self) -> int:
        return len(self._events)

    def __iter__(self) -> Iterator[Event]:
        """Each event from the oldest on; one that is dropped meanwhile is left out."""
        position = self.start
        while (position := max(position, self.start)) < self.end:
            yield self.at(position)
            position += 1

    def __getitem__(self, index: int) -> Event:
        """The event at an index of those that are there; from the newest back if it is negative."""
        event = self._events[index]
        return event.read() if isinstance(event, _Place) else event

    @property
    def end(self) -> int:
        """The position behind the newest event."""
        return self.start + len(self._events)

    def at(self, position: int) -> Event:
        """The event at a position from `start` to `end`."""
        return self[position - self.start]

    def append(self, event: Event) -> None:
        """Add an event; move the oldest ones out of memory, or drop them, where there are too many."""
        if self.first is None:
            self.first = event
        try:
            size = len(encode(event))
        except InvalidValue:
            size = _NOT_JSON
        self._events.append(event)
        self._sizes.append(size)
        self._bytes += size
        while self._bytes > MAX_MEMORY and len(self._sizes) > 1:
            self._move_out()
        while len(self._events) > KEPT_EVENTS:
            self._drop()

    def _move_out(self) -> None:
        """Move the oldest event that is in memory to a file."""
        event = self._events[-len(self._sizes)]
        assert not isinstance(event, _Place), "what has a size is in memory"
        try:
            place = self._file().add(encode(event))
            self._events[-len(self._sizes)] = place
        except InvalidValue:
            pass  # No data: it stays in memory.
        except OSError as problem:
            _log.warning("the oldest events are kept no longer, for there is no file for them: %s", problem)
            self._files.clear()
            while len(self._events) > len(self._sizes):
                self._drop()
            return self._drop()
        self._bytes -= self._sizes.popleft()
        return None

    def _file(self) -> _File:
        """The file to write to. Raises OSError."""
        if self._files and self._files[-1].size < MAX_FILE:
            return self._files[-1]
        if len(self._files) == MAX_FILES:
            oldest = self._files.popleft()
            while len(self._events) > len(self._sizes) and self._is_in(oldest, self._events[0]):
                self._drop()
        try:
            self._files.append(_File(self._folder))
        except OSError:
            if self._folder is None:
                raise
            self._files.append(_File(None))
        return self._files[-1]

    @staticmethod
    def _is_in(file: _File, event: Event | _Place) -> bool:
        """Whether an event is in a file, or stayed in memory beside those that are."""
        return not isinstance(event, _Place) or event.file is file

    def _drop(self) -> None:
        if len(self._sizes) == len(self._events):
            self._bytes -= self._sizes.popleft()
        self._events.popleft()
        self.start += 1
