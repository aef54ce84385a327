"""Packets over a WebSocket after its handshake: each packet is a binary message."""

from __future__ import annotations

import asyncio
import os
from collections import deque

from ramet.isolation.transport.tls import TlsStream
from ramet.wire.resumable_stream import MAX_PACKET
from ramet.wire.websocket import BINARY, CLOSE, PING, PONG, MessageReader, pack


def allowance_s(size: int) -> float:
    """Return how long a packet of this size may take from first to last byte: 10 s, plus 1 s for each MiB."""
    return 10.0 + size / 2**20


class WebSocketTransport:
    """A `ramet.isolation.transport.resuming.Transport` over a WebSocket."""

    def __init__(self, stream: TlsStream, *, is_server: bool) -> None:
        self._stream, self._is_server = stream, is_server
        self._messages = MessageReader(is_server=is_server, max_size=MAX_PACKET)
        self._packets: deque[bytes] = deque()
        self._loop = asyncio.get_running_loop()
        self.heard_at = self._begun_at = self._loop.time()
        self._late_at: float | None = None  #: when the current message must be complete

    async def send(self, packet: bytes) -> None:
        self._write_frame(BINARY, packet)
        await self._stream.drain()

    async def receive(self) -> bytes | None:
        while not self._packets:
            async with asyncio.timeout_at(self._late_at):
                data = await self._stream.read()
            if not data:
                return None
            self.heard_at = self._loop.time()
            if not self._take(data):
                return None
        return self._packets.popleft()

    def abort(self) -> None:
        self._stream.abort()

    def _take(self, data: bytes) -> bool:
        """Take received data; return False once the other end has closed."""
        was_under_way = self._messages.announced_size is not None
        messages = self._messages.feed(data)
        for kind, payload in messages:
            if kind == BINARY:
                self._packets.append(payload)
            elif kind == PING:
                self._write_frame(PONG, payload)
            elif kind == CLOSE:
                return bool(self._packets)
        if not was_under_way or any(kind == BINARY for kind, _ in messages):
            self._begun_at = self.heard_at
        announced_size = self._messages.announced_size
        self._late_at = None if announced_size is None else self._begun_at + allowance_s(announced_size)
        return True

    def _write_frame(self, kind: int, payload: bytes) -> None:
        if kind == BINARY or not self._stream.waiting:
            self._stream.put(pack(kind, payload, None if self._is_server else os.urandom(4)))
