"""The answer of one turn, on its way from a program to its reader."""

from __future__ import annotations

import asyncio
from collections import deque

from ramet.core.errors import RametError

_MAX_WAITING = 16  #: pieces that wait for the reader; a writer with more pieces waits


class TurnReply:
    """The answer of one turn while it arrives.

    The reader calls `next` until it returns None, and always calls `abandon`.
    """

    def __init__(self, number: int) -> None:
        self.number = number
        self.is_over = False
        self.is_interrupted = False
        self._error: RametError | None = None
        self._pieces: deque[bytes] = deque()
        self._is_abandoned = False
        self._has_news, self._has_space = asyncio.Event(), asyncio.Event()

    async def put(self, piece: bytes) -> None:
        """Add the next piece, and wait until there is room for it. Pieces are dropped after the reader has left."""
        while len(self._pieces) >= _MAX_WAITING and not self._is_abandoned:
            self._has_space.clear()
            await self._has_space.wait()
        if not self._is_abandoned and not self.is_over:
            self._pieces.append(piece)
            self._has_news.set()

    def end(self, error: RametError | None = None) -> None:
        """End the answer after the pieces so far, with an error if one is given. Idempotent."""
        if not self.is_over:
            self.is_over, self._error = True, error
            self._has_news.set()

    async def next(self) -> bytes | None:
        """Return the next piece; None at the end. Raises the error that the answer ended with."""
        while not self._pieces:
            if self.is_over:
                if self._error is not None:
                    raise self._error
                return None
            self._has_news.clear()
            await self._has_news.wait()
        self._has_space.set()
        return self._pieces.popleft()

    def abandon(self) -> None:
        self._is_abandoned = True
        self._pieces.clear()
        self._has_space.set()
