"""The contract of a transport: one connection, which keeps packet boundaries and their order until it breaks."""

from __future__ import annotations

import asyncio
import struct
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Protocol

from ramet.core.errors import ProtocolError
from ramet.wire.resumable_stream import MAX_PACKET

_LENGTH = struct.Struct("!I")


class Transport(Protocol):
    """A connection with one reader and one writer. It is never used again after an error."""

    @property
    def heard_at(self) -> float:
        """The event loop's time at which bytes last arrived."""

    async def send(self, packet: bytes) -> None:
        """Send a packet; wait while the other end is slow. Raises OSError once the connection has broken."""

    async def receive(self) -> bytes | None:
        """Return the next packet; None at the end.

        Raises OSError, TimeoutError, and ProtocolError for an invalid packet.
        """

    def abort(self) -> None:
        """Break the connection at once: a waiting `receive` or `send` returns. Idempotent."""


def allowance_s(size: int) -> float:
    """Return how long a packet of this size may take from first to last byte: 10 s, plus 1 s for each MiB."""
    return 10.0 + size / 2**20


class StreamTransport:
    """A transport on a byte stream: four bytes of length before each packet.

    `read` returns received bytes, and empty bytes at the end; `write` waits until more can be sent; `abort` ends both.
    """

    def __init__(
        self,
        read: Callable[[], Awaitable[bytes]],
        write: Callable[[bytes], Awaitable[object]],
        abort: Callable[[], None],
    ) -> None:
        self._read, self._write, self._abort = read, write, abort
        self._buffer = bytearray()
        self._packets: deque[bytes] = deque()
        self._loop = asyncio.get_running_loop()
        self._heard_at = self._loop.time()
        self._begun_at = self._heard_at  #: when the current packet began
        self._late_at: float | None = None  #: when the current packet must be complete

    @classmethod
    def of(cls, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> StreamTransport:
        """Create a transport over a pair of asyncio's streams."""

        async def write(data: bytes) -> None:
            writer.write(data)
            await writer.drain()

        return cls(lambda: reader.read(256 * 1024), write, writer.transport.abort)

    @property
    def heard_at(self) -> float:
        """See `Transport`."""
        return self._heard_at

    async def send(self, packet: bytes) -> None:
        """See `Transport`."""
        await self._write(_LENGTH.pack(len(packet)) + packet)

    async def receive(self) -> bytes | None:
        """See `Transport`."""
        while not self._packets:
            async with asyncio.timeout_at(self._late_at):
                data = await self._read()
            if not data:
                return None
            self._heard_at = self._loop.time()
            self._take(data)
        return self._packets.popleft()

    def abort(self) -> None:
        """See `Transport`."""
        self._abort()

    def _take(self, data: bytes) -> None:
        buffer, position, packet_size = self._buffer, 0, 0
        is_new = not buffer
        buffer += data
        while len(buffer) - position >= _LENGTH.size:
            packet_size = _LENGTH.unpack_from(buffer, position)[0]
            if not 1 <= packet_size <= MAX_PACKET:
                raise ProtocolError(f"a packet of {packet_size} bytes is announced; 1 to {MAX_PACKET} are accepted")
            end = position + _LENGTH.size + packet_size
            if len(buffer) < end:
                break
            self._packets.append(bytes(buffer[position + _LENGTH.size : end]))
            position, packet_size = end, 0
        del buffer[:position]
        if is_new or position:
            self._begun_at = self._heard_at
        self._late_at = self._begun_at + allowance_s(packet_size) if buffer else None
