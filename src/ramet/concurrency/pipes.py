"""The streams of a process: written and read by the event loop, with bounded captures.

The pipes are our own. With asyncio's pipes, waiting for a process's end would also wait for its grandchildren that hold
the pipes open.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable

_CHUNK = 64 * 1024
_MAX_FINAL_READS = 16  #: maximum number of chunks read from a pipe at the end


class Capture:
    """A bounded capture of output: its beginning, its end, and the number of bytes between them."""

    __slots__ = ("_head", "_head_size", "_stops", "_tail", "_tail_size", "total")

    def __init__(self, *, head: int, tail: int = 0, stops: bool = False) -> None:
        """Create a capture. With `stops`, output beyond the bound is useless: the writing process is ended."""
        self._head_size, self._tail_size, self._stops, self.total = head, tail, stops, 0
        self._head, self._tail = bytearray(), bytearray()

    def append(self, data: bytes) -> None:
        """Add data, and keep it within the bounds."""
        self.total += len(data)
        free = self._head_size - len(self._head)
        if free > 0:
            self._head += data[:free]
            data = data[free:]
        if self._tail_size and data:
            self._tail += data
            if len(self._tail) > 2 * self._tail_size:
                del self._tail[: -self._tail_size]

    @property
    def omitted_bytes(self) -> int:
        return self.total - len(self._head) - min(len(self._tail), self._tail_size)

    @property
    def is_full(self) -> bool:
        """Return whether no more data is wanted."""
        return self._stops and self.omitted_bytes > 0

    def data(self) -> bytes:
        """Return the kept data; a line states the size of a gap before the end."""
        if not self._tail_size:
            return bytes(self._head)
        gap = f"\n… [{self.omitted_bytes} bytes left out here] …\n".encode() if self.omitted_bytes else b""
        return bytes(self._head) + gap + bytes(self._tail[-self._tail_size :])


def reader_pipe(
    capture: Capture,
    *,
    on_full: Callable[[], object],
    parent_fds: contextlib.ExitStack,
    child_fds: contextlib.ExitStack,
) -> int:
    """Read a new pipe into `capture` until `parent_fds` is closed; return its write end, which `child_fds` closes.

    `on_full` is called when no more data is wanted.
    """
    source, sink = os.pipe()
    child_fds.callback(os.close, sink)
    parent_fds.callback(_Reader(source, capture, on_full).close)
    return sink


def writer_pipe(data: bytes, *, parent_fds: contextlib.ExitStack, child_fds: contextlib.ExitStack) -> int:
    """Write `data` into a new pipe, until `parent_fds` is closed; return its read end, which `child_fds` closes."""
    source, sink = os.pipe()
    child_fds.callback(os.close, source)
    parent_fds.callback(_Writer(sink, data).close)
    return source


class _Reader:
    """A reader that passes a pipe's data to a capture, until the end or until the capture is full."""

    def __init__(self, fd: int, capture: Capture, on_full: Callable[[], object]) -> None:
        self._fd, self._capture, self._on_full = fd, capture, on_full
        self._loop = asyncio.get_running_loop()
        os.set_blocking(fd, False)
        self._loop.add_reader(fd, self._read)

    def _read(self) -> bool:
        """Read one chunk; return False if there is none, or if no more is wanted."""
        try:
            data = os.read(self._fd, _CHUNK)
        except BlockingIOError:
            return False
        self._capture.append(data)
        if data and not self._capture.is_full:
            return True
        self._loop.remove_reader(self._fd)
        if data:
            self._on_full()
        return False

    def close(self) -> None:
        """Read what is still in the pipe, without waiting for more, and close it."""
        self._loop.remove_reader(self._fd)
        try:
            for _ in range(_MAX_FINAL_READS):  # A process that could not be ended may write without end.
                if not self._read():
                    break
        finally:
            os.close(self._fd)


class _Writer:
    """A writer that fills a pipe as fast as it is read, then closes it. Unread data is dropped."""

    def __init__(self, fd: int, data: bytes) -> None:
        self._fd, self._unsent, self._is_open = fd, memoryview(data), True
        self._loop = asyncio.get_running_loop()
        os.set_blocking(fd, False)
        self._loop.add_writer(fd, self._write)

    def _write(self) -> None:
        try:
            self._unsent = self._unsent[os.write(self._fd, self._unsent[:_CHUNK]) :]
        except BlockingIOError:
            return
        except BrokenPipeError:  # The reader has closed the pipe.
            self._unsent = self._unsent[:0]
        if not self._unsent:
            self.close()

    def close(self) -> None:
        """Close the pipe: the reader sees the end."""
        if self._is_open:
            self._is_open = False
            self._loop.remove_writer(self._fd)
            os.close(self._fd)
