"""Streams over a line: bytes read from one descriptor are written to another at the far end, with flow control.

All work is done in callbacks of the event loop. At most WINDOW bytes of each stream are under way, or kept here.
"""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import Callable, Sequence

from ramet.core.errors import ProtocolError
from ramet.isolation.remote.messages import MAX_PIECE, WINDOW, Credit, Data, NodeMessage

#: Sends a message with a body; does not block.
Post = Callable[[NodeMessage, bytes], None]

_MIN_CREDIT = WINDOW // 4  #: bytes that must be read here before a credit is sent


class Outgoing:
    """The sending end of a stream: it reads a descriptor to its end, or until `close`.

    The descriptor stays its owner's.
    """

    def __init__(
        self,
        fd: int,
        number: int,
        stream: int,
        post: Post,
        *,
        before: Sequence[Outgoing] = (),
        first: bytes = b"",
        on_data: Callable[[bytes], None] = lambda _: None,
        on_end: Callable[[], None] = lambda: None,
    ) -> None:
        """Begin to read the descriptor.

        Data that can be read from the streams `before` is sent first, because it was written first. `first` is sent
        before data that is read; `on_data` is called with data that was read, before it is sent.
        """
        self._fd, self._number, self._stream, self._post = fd, number, stream, post
        self._before, self._first, self._on_data, self._on_end = before, memoryview(first), on_data, on_end
        self._credit = WINDOW
        self._loop = asyncio.get_running_loop()
        self._is_open = self._is_reading = True
        os.set_blocking(fd, False)
        self._loop.add_reader(fd, self._read)
        self._send_first()

    def grant(self, size: int) -> None:
        """Allow `size` more bytes to be sent. Raises ProtocolError for more credit than bytes sent."""
        if self._credit + size > WINDOW:
            raise ProtocolError(f"stream {self._stream} of {self._number} is given credit for what was not sent")
        self._credit += size
        self._send_first()
        if self._is_open and not self._is_reading and self._credit > 0:
            self._is_reading = True
            self._loop.add_reader(self._fd, self._read)

    def drain(self) -> None:
        """Send all data that can be read now, as far as the credit allows."""
        while self._is_open and self._credit > 0 and self._read():
            pass

    def close(self) -> None:
        """Stop reading. Idempotent."""
        self._is_open = False
        self._stop_reading()

    def _read(self) -> bool:
        """Send one piece; return False if there is none now, or ever."""
        for each in self._before:
            each.drain()
        self._send_first()
        if not self._credit:
            self._stop_reading()
            return False
        try:
            data = os.read(self._fd, min(self._credit, MAX_PIECE))
        except (BlockingIOError, InterruptedError):
            return False
        except OSError:  # Connection reset: the other end is gone.
            data = b""
        self._on_data(data)
        self._credit -= len(data)
        self._post(Data(number=self._number, stream=self._stream), data)
        if not data:
            self.close()
            self._on_end()
        elif not self._credit:
            self._stop_reading()
        return bool(data)

    def _send_first(self) -> None:
        while self._first and self._credit and self._is_open:
            size = min(self._credit, MAX_PIECE, len(self._first))
            chunk, self._first = self._first[:size], self._first[size:]
            self._credit -= size
            self._post(Data(number=self._number, stream=self._stream), bytes(chunk))

    def _stop_reading(self) -> None:
        if self._is_reading:
            self._is_reading = False
            self._loop.remove_reader(self._fd)


class Incoming:
    """The receiving end of a stream: it writes to a descriptor. Once that fails, data is counted and dropped."""

    def __init__(
        self, number: int, stream: int, post: Post, *, first: bytes = b"", on_end: Callable[[], None] = lambda: None
    ) -> None:
        """Create the stream.

        `first` is written before other data: it arrived on another line, so no credit is sent for it. `on_end` is
        called once, when no more data can arrive, and all data was written or can no longer be written.
        """
        self._number, self._stream, self._post, self._on_end = number, stream, post, on_end
        self._loop = asyncio.get_running_loop()
        self._fd = -1
        self._pieces: deque[memoryview] = deque([memoryview(first)] if first else [])
        self._from_other_line = len(first)  #: bytes still to be written that arrived on another line
        self._window = WINDOW  #: bytes that may still arrive
        self._uncredited_bytes = 0  #: bytes that were written, but no credit was sent for
        self.has_end = self._is_broken = self._is_writing = self._is_over = False

    def attach(self, fd: int) -> None:
        """Write to this descriptor from now on; it stays its owner's."""
        os.set_blocking(fd, False)
        self._fd = fd
        self._write()

    def take(self, data: bytes) -> None:
        """Take received bytes; empty bytes are the end.

        Raises ProtocolError for more bytes than the window allows, and for bytes after the end.
        """
        if self.has_end:
            raise ProtocolError(f"stream {self._stream} of {self._number} continues after its end")
        if len(data) > self._window:
            raise ProtocolError(f"stream {self._stream} of {self._number}: more than its window")
        self._window -= len(data)
        if not data:
            self.has_end = True
        elif self._is_broken:
            self._credit(len(data))
        else:
            self._pieces.append(memoryview(data))
        if not self._is_writing:
            self._write()

    @property
    def unwritten(self) -> bytes:
        """The data that arrived, but was not written."""
        return b"".join(self._pieces)

    def end(self) -> None:
        """Treat the stream as ended; data that has arrived is still written. Idempotent."""
        if not self.has_end:
            self.take(b"")

    def abandon(self) -> None:
        """Drop all data, now and later, because it can no longer be written."""
        self._is_broken = True
        self._stop_writing()
        self._fd = -1
        dropped_bytes = sum(map(len, self._pieces))
        self._pieces.clear()
        if dropped_bytes:
            self._credit(dropped_bytes)
        self._look_for_end()

    def close(self) -> None:
        """Drop all data, without a callback. Idempotent."""
        self._is_over = self._is_broken = True
        self._stop_writing()
        self._pieces.clear()

    def _write(self) -> None:
        if self._fd < 0:
            self._look_for_end()
            return
        while self._pieces:
            chunk = self._pieces[0]
            try:
                written_size = os.write(self._fd, chunk)
            except (BlockingIOError, InterruptedError):
                if not self._is_writing:
                    self._is_writing = True
                    self._loop.add_writer(self._fd, self._write)
                return
            except OSError:
                self.abandon()
                return
            if written_size == len(chunk):
                self._pieces.popleft()
            else:
                self._pieces[0] = chunk[written_size:]
            self._credit(written_size)
        self._stop_writing()
        self._look_for_end()

    def _credit(self, size: int) -> None:
        foreign = min(self._from_other_line, size)
        self._from_other_line -= foreign
        self._uncredited_bytes += size - foreign
        if self._uncredited_bytes >= _MIN_CREDIT and not self.has_end:
            self._window += self._uncredited_bytes
            self._post(Credit(number=self._number, stream=self._stream, size=self._uncredited_bytes), b"")
            self._uncredited_bytes = 0

    def _look_for_end(self) -> None:
        if self.has_end and not self._pieces and not self._is_over and (self._fd >= 0 or self._is_broken):
            self._is_over = True
            self._on_end()

    def _stop_writing(self) -> None:
        if self._is_writing:
            self._is_writing = False
            self._loop.remove_writer(self._fd)
