"""The streams of a process: fed and read by the event loop, and what is kept of them is bounded.

The pipes are our own. One of asyncio's would keep the wait for a process's end waiting for its grandchildren, too, as
long as they hold it open.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable

_CHUNK = 64 * 1024
_LAST = 16  #: chunks that a pipe may still hold, at most, when nobody writes any more


class Capture:
    """Output within bounds: its beginning, its end, and how much lay between."""

    __slots__ = ("_head", "_head_size", "_stops", "_tail", "_tail_size", "total")

    def __init__(self, *, head: int, tail: int = 0, stops: bool = False) -> None:
        """With `stops`, more than fits is no use to anybody: whoever writes it is ended."""
        self._head_size, self._tail_size, self._stops, self.total = head, tail, stops, 0
        self._head, self._tail = bytearray(), bytearray()

    def take(self, data: bytes) -> None:
        """Keep what is to be kept."""
        self.total += len(data)
        room = self._head_size - len(self._head)
        if room > 0:
            self._head += data[:room]
            data = data[room:]
        if self._tail_size and data:
            self._tail += data
            if len(self._tail) > 2 * self._tail_size:
                del self._tail[: -self._tail_size]

    @property
    def left_out(self) -> int:
        """How many bytes were not kept."""
        return self.total - len(self._head) - min(len(self._tail), self._tail_size)

    @property
    def is_enough(self) -> bool:
        """Whether no more is wanted."""
        return self._stops and self.left_out > 0

    def data(self) -> bytes:
        """What was kept; if there is a gap before the end, a line says how large it is."""
        if not self._tail_size:
            return bytes(self._head)
        gap = f"\n… [{self.left_out} bytes left out here] …\n".encode() if self.left_out else b""
        return bytes(self._head) + gap + bytes(self._tail[-self._tail_size :])


def reader_pipe(
    capture: Capture, *, enough: Callable[[], object], ours: contextlib.ExitStack, theirs: contextlib.ExitStack
) -> int:
    """Read a new pipe into `capture` until `ours` is closed; returns the end to write to, which `theirs` closes.

    `enough` is called when no more is wanted.
    """
    source, sink = os.pipe()
    theirs.callback(os.close, sink)
    ours.callback(_Reader(source, capture, enough).close)
    return sink


def writer_pipe(data: bytes, *, ours: contextlib.ExitStack, theirs: contextlib.ExitStack) -> int:
    """Write `data` into a new pipe, until `ours` is closed; returns the end to read from, which `theirs` closes."""
    source, sink = os.pipe()
    theirs.callback(os.close, source)
    ours.callback(_Writer(sink, data).close)
    return source


class _Reader:
    """Gives a capture what comes through a pipe, until the end or until it is enough."""

    def __init__(self, fd: int, capture: Capture, enough: Callable[[], object]) -> None:
        self._fd, self._capture, self._enough = fd, capture, enough
        self._loop = asyncio.get_running_loop()
        os.set_blocking(fd, False)
        self._loop.add_reader(fd, self._read)

    def _read(self) -> bool:
        """Take one chunk; False if there is none, or no use for more."""
        try:
            data = os.read(self._fd, _CHUNK)
        except BlockingIOError:
            return False
        self._capture.take(data)
        if data and not self._capture.is_enough:
            return True
        self._loop.remove_reader(self._fd)
        if data:
            self._enough()
        return False

    def close(self) -> None:
        """Take what is still in the pipe, without waiting for more, and close it."""
        self._loop.remove_reader(self._fd)
        try:
            for _ in range(_LAST):  # Whoever could not be ended may still write, without end.
                if not self._read():
                    break
        finally:
            os.close(self._fd)


class _Writer:
    """Writes data into a pipe as fast as it is read, then closes it. What is not read is dropped."""

    def __init__(self, fd: int, data: bytes) -> None:
        self._fd, self._rest, self._open = fd, memoryview(data), True
        self._loop = asyncio.get_running_loop()
        os.set_blocking(fd, False)
        self._loop.add_writer(fd, self._write)

    def _write(self) -> None:
        try:
            self._rest = self._rest[os.write(self._fd, self._rest[:_CHUNK]) :]
        except BlockingIOError:
            return
        except BrokenPipeError:  # Nobody reads it any more.
            self._rest = self._rest[:0]
        if not self._rest:
            self.close()

    def close(self) -> None:
        """Close the pipe: the reader sees the end."""
        if self._open:
            self._open = False
            self._loop.remove_writer(self._fd)
            os.close(self._fd)
