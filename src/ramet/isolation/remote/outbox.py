"""What is to be said on a line, in order, by whoever does not wait for it."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque

from ramet.core.errors import RametError
from ramet.isolation.remote.line import Line
from ramet.isolation.remote.messages import NodeMessage, encode
from ramet.wire.frames import Frame

#: Bytes that wait to be sent before nothing more is to be read from the other side; what a frame counts beside its own.
MAX_WAITING, FRAME_BYTES = 8 * 1024 * 1024, 256


class Outbox:
    """Sends what is posted. Windows and questions bound most of it.

    Words that answer words of the other side are bounded by `until_room`: its reader waits for that.
    """

    def __init__(self, line: Line) -> None:
        self._line = line
        self._frames: deque[Frame] = deque()
        self._waiting = 0  #: bytes of all frames
        self._sent = 0  #: frames
        self._room = asyncio.Event()
        self._room.set()
        self._news, self._empty = asyncio.Event(), asyncio.Event()
        self._empty.set()
        self._is_closed = False
        self._task = asyncio.get_running_loop().create_task(self._send())

    def post(self, word: NodeMessage, body: bytes = b"") -> None:
        """Have it sent; nothing once the line has ended."""
        if not self._is_closed:
            frame = Frame(encode(word), body)
            self._frames.append(frame)
            self._waiting += _weight(frame)
            if self._waiting > MAX_WAITING:
                self._room.clear()
            self._news.set()
            self._empty.clear()

    @property
    def is_full(self) -> bool:
        """Whether more than MAX_WAITING bytes wait to be sent."""
        return not self._room.is_set()

    async def until_room(self, within_s: float) -> None:
        """Wait until not too much waits to be sent. Raises TimeoutError if nothing was sent for so long."""
        while not self._room.is_set():
            before = self._sent
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(within_s):
                    await self._room.wait()
            if not self._room.is_set() and self._sent == before:
                raise TimeoutError

    async def flush(self, within_s: float) -> None:
        """Wait until all that was posted is on its way, or the line or the time has ended."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                await self._empty.wait()

    async def close(self) -> None:
        """Send no more. Idempotent."""
        self._drop()
        self._task.cancel()
        await asyncio.wait((self._task,))

    def _drop(self) -> None:
        self._is_closed = True
        self._frames.clear()
        self._waiting = 0
        self._empty.set()
        self._room.set()

    async def _send(self) -> None:
        try:
            while True:
                await self._news.wait()
                self._news.clear()
                while self._frames:
                    await self._line.send(self._frames[0])
                    if self._frames:
                        self._waiting -= _weight(self._frames.popleft())
                        self._sent += 1
                        if self._waiting <= MAX_WAITING:
                            self._room.set()
                self._empty.set()
        except (RametError, OSError):
            self._drop()
            await self._line.close()  # Whoever reads it learns of its end.


def _weight(frame: Frame) -> int:
    return len(frame.control) + len(frame.body) + FRAME_BYTES
