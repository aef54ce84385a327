"""The guest's end of its channel for synchronous code: whole messages, written by any thread, read by one."""

from __future__ import annotations

import os
import socket
import struct
import threading

from ramet.core.errors import RametError
from ramet.wire import frames
from ramet.wire.frames import Frame, FrameReader
from ramet.wire.guest_protocol import message_codec
from ramet.wire.guest_protocol.guest_to_host import Done

_HEADER = struct.Struct("!II")
#: Seconds that a writing thread gets before the last message is written anyway.
_LAST_MESSAGE_S = 5.0


class Channel:
    """A connected stream of one process; a forked child must not write to it."""

    def __init__(self, end: socket.socket) -> None:
        end.setblocking(True)
        self._end = end
        self._writing = threading.Lock()
        self._pid = os.getpid()
        self._is_over = False

    @property
    def is_own(self) -> bool:
        """True if this process is the agent's own, and not forked by it."""
        return self._pid == os.getpid()

    def check_own(self) -> None:
        """Raise RametError in a process that the agent forked."""
        if not self.is_own:
            raise RametError("this process was forked by an agent: only the agent's own process may ask its host")

    def write(self, control: bytes, body: bytes = b"") -> None:
        """Write one message; wait while the host does not read.

        Raises RametError if it cannot be written.
        """
        self.check_own()
        pieces = frames.pack(control, body)
        with self._writing:
            self._write(pieces)

    def write_last(self, message: Done, body: bytes = b"") -> None:
        """Write the last message; later messages are refused."""
        pieces = frames.pack(message_codec.encode(message), body)
        is_locked = self._writing.acquire(timeout=_LAST_MESSAGE_S)
        try:
            self._write(pieces)
        finally:
            self._is_over = True
            if is_locked:
                self._writing.release()

    def read(self) -> Frame | None:
        """Wait for one whole message, and read no byte beyond it; None if the host has closed."""
        reader = FrameReader()
        head = self._exactly(_HEADER.size)
        if head is None:
            return None
        frames = reader.feed(head)  # A bad header raises here.
        body = self._exactly(sum(_HEADER.unpack(head)))
        frames += reader.feed(body) if body is not None else []
        return frames[0] if frames else None

    def _write(self, pieces: list[bytes | bytearray | memoryview]) -> None:
        if self._is_over:
            raise RametError("this agent has ended: nothing more can be asked of its host")
        try:
            for piece in pieces:
                self._end.sendall(piece)
        except OSError as problem:
            raise RametError(f"the host has closed the channel ({problem.strerror})") from None

    def _exactly(self, size: int) -> bytes | None:
        buffer = bytearray(size)
        view, at = memoryview(buffer), 0
        try:
            while at < size:
                count = self._end.recv_into(view[at:])
                if count == 0:
                    return None
                at += count
        except OSError:
            return None
        return bytes(buffer)
