"""What is to be said on a line, in order, by whoever does not wait for it."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque

from ramet.core.errors import RametError
from ramet.isolation.remote.line import Line
from ramet.isolation.remote.messages import Word, encode
from ramet.wire.frames import Frame


class Outbox:
    """Sends what is posted. What may be under way is bounded by whoever posts: windows, questions that wait."""

    def __init__(self, line: Line) -> None:
        self._line = line
        self._frames: deque[Frame] = deque()
        self._news, self._empty = asyncio.Event(), asyncio.Event()
        self._empty.set()
        self._is_closed = False
        self._task = asyncio.get_running_loop().create_task(self._send())

    def post(self, word: Word, body: bytes = b"") -> None:
        """Have it sent; nothing once the line has ended."""
        if not self._is_closed:
            self._frames.append(Frame(encode(word), body))
            self._news.set()
            self._empty.clear()

    async def flush(self, within_s: float) -> None:
        """Wait until all that was posted is on its way, or the line or the time has ended."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                await self._empty.wait()

    async def close(self) -> None:
        """Send no more. Idempotent."""
        self._is_closed = True
        self._frames.clear()
        self._empty.set()
        self._task.cancel()
        await asyncio.wait((self._task,))

    async def _send(self) -> None:
        try:
            while True:
                await self._news.wait()
                self._news.clear()
                while self._frames:
                    await self._line.send(self._frames[0])
                    if self._frames:
                        self._frames.popleft()
                self._empty.set()
        except (RametError, OSError):
            self._is_closed = True
            self._frames.clear()
            self._empty.set()
            await self._line.close()  # Whoever reads it learns of its end.
