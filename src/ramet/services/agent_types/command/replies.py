"""The answer of one turn, between a program that says it and the reader whom it is for."""

from __future__ import annotations

import asyncio
from collections import deque

from ramet.core.errors import RametError

_WAITING = 16  #: pieces that wait for the reader; whoever says more waits, too


class Answering:
    """One turn's answer, while it comes. Its reader calls `next` until None, and `leave`, whoever else is there."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.is_over = False
        self.is_interrupted = False
        self._error: RametError | None = None
        self._pieces: deque[bytes] = deque()
        self._is_left = False
        self._news, self._room = asyncio.Event(), asyncio.Event()

    async def put(self, piece: bytes) -> None:
        """Say the next piece, when there is room for it; nobody hears it once the reader has left."""
        while len(self._pieces) >= _WAITING and not self._is_left:
            self._room.clear()
            await self._room.wait()
        if not self._is_left and not self.is_over:
            self._pieces.append(piece)
            self._news.set()

    def end(self, error: RametError | None = None) -> None:
        """Nothing follows what was put before but this error; idempotent."""
        if not self.is_over:
            self.is_over, self._error = True, error
            self._news.set()

    async def next(self) -> bytes | None:
        """The next piece; None when it is whole. Raises what it ended with."""
        while not self._pieces:
            if self.is_over:
                if self._error is not None:
                    raise self._error
                return None
            self._news.clear()
            await self._news.wait()
        self._room.set()
        return self._pieces.popleft()

    def leave(self) -> None:
        """Read no more."""
        self._is_left = True
        self._pieces.clear()
        self._room.set()
