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
from functools import cache
from typing import get_args

from msgspec.structs import fields

from ramet.core.errors import InvalidValue
from ramet.core.events import Event, decode, encode

_log = logging.getLogger("ramet.recorder")
#: Events of one tree; older ones are in the transcripts, if there are any.
KEPT_EVENTS = 50_000
#: Bytes of one tree's events in memory, as JSON.
MAX_MEMORY = 16 * 1024 * 1024
#: Bytes of one file, and files of one tree: the oldest file is dropped with its events.
MAX_FILE, MAX_FILES = 64 * 1024 * 1024, 4
_NOT_JSON = 1024  #: the size assumed for an event that cannot be encoded: it stays in memory


class _File:
    """A file without a name, which no other process can open. It is closed with this object."""

    def __init__(self, folder: pathlib.Path | None) -> None:
        """Create the file in `folder`. Raises OSError if no file can be created."""
        with tempfile.TemporaryFile(dir=folder, buffering=0) as opened:
            self.fd = os.dup(opened.fileno())
        weakref.finalize(self, os.close, self.fd)
        self.size = 0

    def add(self, line: bytes) -> _FileSlice:
        """Write one event. Raises OSError."""
        remaining = memoryview(line)
        while remaining:
            remaining = remaining[os.pwrite(self.fd, remaining, self.size + len(line) - len(remaining)) :]
        file_slice = _FileSlice(file=self, offset=self.size, size=len(line))
        self.size += len(line)
        return file_slice


@dataclass(frozen=True, kw_only=True, slots=True)
class _FileSlice:
    """The place in a file of an event that is not in memory."""

    file: _File
    offset: int
    size: int

    def read(self) -> Event:
        return decode(os.pread(self.file.fd, self.size, self.offset))


@cache
def _has_floats(kind: type[Event]) -> bool:
    """Return whether a whole number of such an event, like a limit of 40, would be read from its line as 40.0."""
    return any(float in (each.type, *get_args(each.type)) for each in fields(kind))


class KeptEvents:
    """The kept events, in the order in which they were added."""

    def __init__(self, folder: pathlib.Path | None = None) -> None:
        """Set `folder`, where files are created; None: the system's folder for temporary files."""
        self._folder = folder
        #: Lines in place of most objects: no collector visits them, and few readers come late.
        self._events: deque[Event | bytes | _FileSlice] = deque()
        self._sizes: deque[int] = deque()  #: of the newest events, which are in memory
        self._bytes = 0
        self._files: deque[_File] = deque()
        self.start = 0  #: position of the oldest kept event
        self.first: Event | None = None  #: the first event of all

    def __len__(self) -> int:
        return len(self._events)

    def __iter__(self) -> Iterator[Event]:
        """Iterate over the events from the oldest on; an event that is dropped meanwhile is left out."""
        position = self.start
        while (position := max(position, self.start)) < self.end:
            yield self.at(position)
            position += 1

    def __getitem__(self, index: int) -> Event:
        """Return the event at an index of the kept events; a negative index counts back from the newest."""
        event = self._events[index]
        if isinstance(event, _FileSlice):
            return event.read()
        return decode(event) if isinstance(event, bytes) else event

    @property
    def end(self) -> int:
        """The position behind the newest event."""
        return self.start + len(self._events)

    def at(self, position: int) -> Event:
        """Return the event at a position from `start` to `end`."""
        return self[position - self.start]

    def append(self, event: Event, line: bytes | None) -> None:
        """Add an event and its line, if there is one; move the oldest events out of memory, or drop them, if needed."""
        if self.first is None:
            self.first = event
        size = _NOT_JSON if line is None else len(line)
        self._events.append(event if line is None or _has_floats(type(event)) else line)
        self._sizes.append(size)
        self._bytes += size
        while self._bytes > MAX_MEMORY and len(self._sizes) > 1:
            self._move_out()
        while len(self._events) > KEPT_EVENTS:
            self._drop()

    def _move_out(self) -> None:
        """Move the oldest event that is in memory to a file."""
        event = self._events[-len(self._sizes)]
        assert not isinstance(event, _FileSlice), "an event with a size is in memory"
        try:
            line = event if isinstance(event, bytes) else encode(event)
            self._events[-len(self._sizes)] = self._file().add(line)
        except InvalidValue:
            pass  # The event cannot be encoded: it stays in memory.
        except OSError as problem:
            _log.warning("the oldest events are dropped, since no file can be written for them: %s", problem)
            self._files.clear()
            while len(self._events) > len(self._sizes):
                self._drop()
            return self._drop()
        self._bytes -= self._sizes.popleft()
        return None

    def _file(self) -> _File:
        """Return the file to write to. Raises OSError."""
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
    def _is_in(file: _File, event: Event | bytes | _FileSlice) -> bool:
        """Return whether an event is in a file, or stayed in memory among the events of files."""
        return not isinstance(event, _FileSlice) or event.file is file

    def _drop(self) -> None:
        if len(self._sizes) == len(self._events):
            self._bytes -= self._sizes.popleft()
        self._events.popleft()
        self.start += 1
