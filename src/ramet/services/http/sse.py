"""A stream of server-sent events to one reader: queued events are sent as one piece, with heartbeats during silence.

A reader that leaves ends only its stream. A slow reader is waited for, while only a small amount of its unread events
is held here. Its connection is cut when it no longer reads at all (`ramet.services.http.connections`).

Events with cursors are `event` with its cursor as id, then `done`, or `error` with a problem. A stream whose tree moved
to another kernel breaks off. Its reader reconnects for the rest, and finds it there. So does a stream whose store
cannot be read now: a kernel that loses its store is about to lose its trees as well.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing, suppress

from starlette.types import Receive, Scope, Send

from ramet.core.errors import OwnedElsewhere, RametError, StoreFailed
from ramet.services.http.responses import wait_disconnect
from ramet.services.operator.change_feed import ChangeMessage
from ramet.services.problems import to_problem
from ramet.services.turns.tree_events import TreeEvent
from ramet.wire.sse import HEARTBEAT, encode

HEARTBEAT_S = 15.0
#: Bytes that may wait for one reader, in addition to the buffer of its connection.
HELD = 256 * 1024
_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),  # a proxy must not delay events
]


class StreamMoved(Exception):
    """The signal that a stream continues in another kernel. Its connection breaks off, and its reader reconnects."""


async def encode_events(
    events: AsyncGenerator[TreeEvent, None] | AsyncGenerator[ChangeMessage, None], name: str = "event"
) -> AsyncGenerator[bytes, None]:
    """Yield all events with their cursors, encoded, by this name; an error becomes the last event."""
    try:
        async with aclosing(events):
            async for each in events:
                yield encode(name, each.data, str(each.cursor))
        yield encode("done", b"")
    except (OwnedElsewhere, StoreFailed):
        raise StreamMoved from None
    except RametError as error:
        yield encode("error", to_problem(error).encode())


class Streams:
    """The open streams. A server that stops can end them."""

    def __init__(self) -> None:
        self._open: set[EventStream] = set()
        self._has_ended = self._is_broken = False

    def stream(
        self,
        events: AsyncGenerator[bytes, None],
        headers: Mapping[str, str] | None = None,
        *,
        is_endless: bool = True,
    ) -> EventStream:
        return EventStream(events, self, headers=headers, is_endless=is_endless)

    def end(self) -> None:
        """End all endless streams after their queued events; later ones end at once.

        The others are read to their ends, which a stopping server causes: an end that has just come may not be queued
        yet.
        """
        self._has_ended = True
        for each in tuple(self._open):
            if each.is_endless:
                each.end()

    def move(self) -> None:
        """Break off all streams, since they continue in another kernel; later streams break off at once."""
        self._is_broken = True
        for each in tuple(self._open):
            each.move()

    def __len__(self) -> int:
        return len(self._open)

    def enter(self, stream: EventStream) -> None:
        self._open.add(stream)
        if self._is_broken:
            stream.move()
        elif self._has_ended and stream.is_endless:
            stream.end()

    def leave(self, stream: EventStream) -> None:
        self._open.discard(stream)


class EventStream:
    """An ASGI response of events. `events` are encoded, and are closed at any end of the stream.

    They are endless unless they end, at the latest, when their server has ended its turns.
    """

    def __init__(
        self,
        events: AsyncGenerator[bytes, None],
        streams: Streams,
        *,
        headers: Mapping[str, str] | None = None,
        is_endless: bool = True,
        heartbeat_s: float = HEARTBEAT_S,
        limit: int = HELD,
    ) -> None:
        self._events, self._streams, self.is_endless = events, streams, is_endless
        extra_headers = [(name.encode(), value.encode()) for name, value in (headers or {}).items()]
        self._headers, self._heartbeat_s, self._limit = [*_HEADERS, *extra_headers], heartbeat_s, limit
        self._waiting_chunks: list[bytes] = []
        self._size = 0
        self._ready, self._has_space = asyncio.Event(), asyncio.Event()
        self._has_ended = self._is_broken = self._has_disconnected = self._is_silent = False
        self._last_write = 0.0  #: the time of the last write, by the loop's clock

    def end(self) -> None:
        """Send the queued events, and no more."""
        self._has_ended = True
        self._ready.set()

    def move(self) -> None:
        """Send the queued events, and leave the response incomplete, so that its reader reconnects for the rest."""
        self._is_broken = True
        self.end()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send all events, until they end, the reader leaves or the server stops."""
        self._streams.enter(self)
        read_task = asyncio.create_task(self._read(), name="ramet stream")
        watch_task = asyncio.create_task(self._watch(receive), name="ramet stream's reader")
        self._last_write = asyncio.get_running_loop().time()
        self._send_heartbeat()
        try:
            await send({"type": "http.response.start", "status": 200, "headers": self._headers})
            await self._write(send)
            if self._is_broken and read_task.done():
                with suppress(StreamMoved):
                    await read_task  # If reading failed, raise: the connection breaks off without an end.
        finally:
            self._streams.leave(self)
            self._timer.cancel()
            read_task.cancel()
            watch_task.cancel()
            await asyncio.wait({read_task, watch_task})

    async def _write(self, send: Send) -> None:
        is_last = False
        while not (is_last or self._has_disconnected):
            if not (self._waiting_chunks or self._has_ended or self._is_silent):
                self._ready.clear()
                await self._ready.wait()
                continue
            is_last = self._has_ended
            piece = b"".join(self._waiting_chunks) if self._waiting_chunks or is_last else HEARTBEAT
            self._waiting_chunks.clear()
            self._size = 0
            self._has_space.set()
            self._is_silent, self._last_write = False, asyncio.get_running_loop().time()
            await send({"type": "http.response.body", "body": piece, "more_body": not is_last or self._is_broken})

    async def _read(self) -> None:
        try:
            async with aclosing(self._events) as events:
                async for each in events:
                    self._waiting_chunks.append(each)
                    self._size += len(each)
                    self._ready.set()
                    while self._size >= self._limit:
                        self._has_space.clear()
                        await self._has_space.wait()
        except Exception:
            self._is_broken = True
            raise
        finally:
            self.end()

    def _send_heartbeat(self) -> None:
        """Request a heartbeat after a silence, and schedule the next check. So writing needs no timer."""
        loop = asyncio.get_running_loop()
        remaining_s = self._last_write + self._heartbeat_s - loop.time()
        if remaining_s <= 0:
            self._is_silent, remaining_s = True, self._heartbeat_s
            self._ready.set()
        self._timer = loop.call_later(remaining_s, self._send_heartbeat)

    async def _watch(self, receive: Receive) -> None:
        await wait_disconnect(receive)
        self._has_disconnected = True
        self.end()
