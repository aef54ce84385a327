"""Streams over a line: what one descriptor gives is written to another at the far end, no faster than that is read.

Everything happens in callbacks of the event loop. Of each stream at most WINDOW bytes are under way, or kept here.
"""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import Callable, Sequence

from ramet.core.errors import ProtocolError
from ramet.isolation.remote.messages import MAX_PIECE, WINDOW, Credit, Data, NodeMessage

#: Has a word sent, with a body; waits for nothing.
Post = Callable[[NodeMessage, bytes], None]

_WORTH_TELLING = WINDOW // 4  #: of what was read here, before a credit is given for it


class Outgoing:
    """Reads a descriptor to its end, or until it is closed here. The descriptor stays its owner's."""

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
        """What can be read from those `before` goes first: it was said before what is said here.

        `first` goes before what is read; `on_data` is told of what is read, before it goes.
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
        """So much more may be sent. Raises ProtocolError for more than was."""
        if self._credit + size > WINDOW:
            raise ProtocolError(f"stream {self._stream} of {self._number} is given credit for what was not sent")
        self._credit += size
        self._send_first()
        if self._is_open and not self._is_reading and self._credit > 0:
            self._is_reading = True
            self._loop.add_reader(self._fd, self._read)

    def drain(self) -> None:
        """Send all that can be read now, as far as it may be sent."""
        while self._is_open and self._credit > 0 and self._read():
            pass

    def close(self) -> None:
        """Read no more. Idempotent."""
        self._is_open = False
        self._stop_reading()

    def _read(self) -> bool:
        """Send one piece; False if there is none now, or ever."""
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
        except OSError:  # Reset: whoever was at the other end has gone.
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
            piece, self._first = self._first[:size], self._first[size:]
            self._credit -= size
            self._post(Data(number=self._number, stream=self._stream), bytes(piece))

    def _stop_reading(self) -> None:
        if self._is_reading:
            self._is_reading = False
            self._loop.remove_reader(self._fd)


class Incoming:
    """Writes what comes to a descriptor, as it takes it; where nobody takes it any more, it is counted and dropped."""

    def __init__(
        self, number: int, stream: int, post: Post, *, first: bytes = b"", on_end: Callable[[], None] = lambda: None
    ) -> None:
        """`first` is written before what comes: it came on another line, and no credit is given for it.

        `on_end` is called once, when all was written, or can no longer be, and no more comes.
        """
        self._number, self._stream, self._post, self._on_end = number, stream, post, on_end
        self._loop = asyncio.get_running_loop()
        self._fd = -1
        self._pieces: deque[memoryview] = deque([memoryview(first)] if first else [])
        self._foreign = len(first)  #: of what is to be written, so much came on another line
        self._room = WINDOW  #: what may still come
        self._owed = 0  #: what was taken, and no credit was given for
        self._has_end = self._is_broken = self._is_writing = self._is_over = False

    @property
    def has_end(self) -> bool:
        """Whether nothing more may come."""
        return self._has_end

    def attach(self, fd: int) -> None:
        """Where it goes from now on; the descriptor stays its owner's."""
        os.set_blocking(fd, False)
        self._fd = fd
        self._write()

    def take(self, data: bytes) -> None:
        """What came; nothing is the end. Raises ProtocolError for more than may come, and for what comes after it."""
        if self._has_end:
            raise ProtocolError(f"stream {self._stream} of {self._number} goes on after its end")
        if len(data) > self._room:
            raise ProtocolError(f"stream {self._stream} of {self._number}: more than its window")
        self._room -= len(data)
        if not data:
            self._has_end = True
        elif self._is_broken:
            self._credit(len(data))
        else:
            self._pieces.append(memoryview(data))
        if not self._is_writing:
            self._write()

    @property
    def unwritten(self) -> bytes:
        """What came and is not written."""
        return b"".join(self._pieces)

    def end(self) -> None:
        """Nothing more comes; what came is written. Idempotent."""
        if not self._has_end:
            self.take(b"")

    def abandon(self) -> None:
        """Nobody takes it any more."""
        self._is_broken = True
        self._stop_writing()
        self._fd = -1
        dropped = sum(map(len, self._pieces))
        self._pieces.clear()
        if dropped:
            self._credit(dropped)
        self._look_for_end()

    def close(self) -> None:
        """Drop everything, tell nobody. Idempotent."""
        self._is_over = self._is_broken = True
        self._stop_writing()
        self._pieces.clear()

    def _write(self) -> None:
        if self._fd < 0:
            self._look_for_end()
            return
        while self._pieces:
            piece = self._pieces[0]
            try:
                written = os.write(self._fd, piece)
            except (BlockingIOError, InterruptedError):
                if not self._is_writing:
                    self._is_writing = True
                    self._loop.add_writer(self._fd, self._write)
                return
            except OSError:
                self.abandon()
                return
            if written == len(piece):
                self._pieces.popleft()
            else:
                self._pieces[0] = piece[written:]
            self._credit(written)
        self._stop_writing()
        self._look_for_end()

    def _credit(self, size: int) -> None:
        foreign = min(self._foreign, size)
        self._foreign -= foreign
        self._owed += size - foreign
        if self._owed >= _WORTH_TELLING and not self._has_end:
            self._room += self._owed
            self._post(Credit(number=self._number, stream=self._stream, size=self._owed), b"")
            self._owed = 0

    def _look_for_end(self) -> None:
        if self._has_end and not self._pieces and not self._is_over and (self._fd >= 0 or self._is_broken):
            self._is_over = True
            self._on_end()

    def _stop_writing(self) -> None:
        if self._is_writing:
            self._is_writing = False
            self._loop.remove_writer(self._fd)
