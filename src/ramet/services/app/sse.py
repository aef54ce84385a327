"""A stream of server-sent events to one reader: what is queued goes out as one piece, and silence is broken.

A reader that is gone ends the reading, nothing else. One that reads slowly is waited for, while little of what it has
not read is held here; its connection is cut when it takes nothing any more (`services.connections`).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing, suppress

from starlette.types import Receive, Scope, Send

from ramet.wire.sse import HEARTBEAT

HEARTBEAT_S = 15.0
#: Bytes that wait for one reader beside what its connection holds.
HELD = 256 * 1024
_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),  # a proxy between would hold back what is to be seen at once
]


class Streams:
    """The streams that are open, so that a server that stops can end them."""

    def __init__(self) -> None:
        self._open: set[EventStream] = set()
        self._is_over = False

    def stream(self, events: AsyncGenerator[bytes, None], headers: Mapping[str, str] | None = None) -> EventStream:
        """A response of these events."""
        return EventStream(events, self, headers=headers)

    def end(self) -> None:
        """End all, after what they have queued; those that begin later end at once."""
        self._is_over = True
        for each in tuple(self._open):
            each.end()

    def __len__(self) -> int:
        return len(self._open)

    def enter(self, stream: EventStream) -> None:
        """It is open from now on."""
        self._open.add(stream)
        if self._is_over:
            stream.end()

    def leave(self, stream: EventStream) -> None:
        """It is no more."""
        self._open.discard(stream)


class EventStream:
    """An ASGI response. `events` are encoded, and are closed when the stream ends, whoever ends it."""

    def __init__(
        self,
        events: AsyncGenerator[bytes, None],
        streams: Streams,
        *,
        headers: Mapping[str, str] | None = None,
        heartbeat_s: float = HEARTBEAT_S,
        held: int = HELD,
    ) -> None:
        self._events, self._streams = events, streams
        own = [(name.encode(), value.encode()) for name, value in (headers or {}).items()]
        self._headers, self._heartbeat_s, self._most = [*_HEADERS, *own], heartbeat_s, held
        self._held: list[bytes] = []
        self._size = 0
        self._ready, self._room = asyncio.Event(), asyncio.Event()
        self._is_over = self._is_gone = False

    def end(self) -> None:
        """Send what is queued and no more."""
        self._is_over = True
        self._ready.set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send all, until the events end, the reader is gone or the server stops."""
        self._streams.enter(self)
        reading = asyncio.create_task(self._read(), name="ramet stream")
        leaving = asyncio.create_task(self._watch(receive), name="ramet stream's reader")
        try:
            await send({"type": "http.response.start", "status": 200, "headers": self._headers})
            await self._write(send)
            if reading.done():
                reading.result()  # Not the end, if reading failed: the connection breaks off.
            if not self._is_gone:
                await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            self._streams.leave(self)
            reading.cancel()
            leaving.cancel()
            await asyncio.wait({reading, leaving})

    async def _write(self, send: Send) -> None:
        while not self._is_gone:
            if self._held:
                piece = b"".join(self._held)
                self._held.clear()
                self._size = 0
                self._room.set()
            elif self._is_over:
                return
            else:
                self._ready.clear()
                piece = b""
                try:
                    async with asyncio.timeout(self._heartbeat_s):
                        await self._ready.wait()
                except TimeoutError:
                    piece = HEARTBEAT
            if piece:
                await send({"type": "http.response.body", "body": piece, "more_body": True})

    async def _read(self) -> None:
        try:
            async with aclosing(self._events) as events:
                async for each in events:
                    self._held.append(each)
                    self._size += len(each)
                    self._ready.set()
                    while self._size >= self._most:
                        self._room.clear()
                        await self._room.wait()
        finally:
            self.end()

    async def _watch(self, receive: Receive) -> None:
        with suppress(asyncio.CancelledError):
            while (await receive())["type"] != "http.disconnect":
                pass
            self._is_gone = True
            self.end()
