"""What carries packets for a while: one connection, which keeps their borders and their order until it breaks."""

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
    """One connection. It is used by one reader and one writer, and never again after an error."""

    @property
    def heard_at(self) -> float:
        """When bytes last came, by the clock of the event loop."""

    async def send(self, packet: bytes) -> None:
        """Say a packet; waits while the other end is slow. Raises OSError once it has broken."""

    async def receive(self) -> bytes | None:
        """The next packet; None at the end. Raises OSError, TimeoutError, and ProtocolError for what is no packet."""

    def abort(self) -> None:
        """Break it at once: whoever waits in `receive` or `send` is released. Idempotent."""


def allowance_s(size: int) -> float:
    """How long a packet of so many bytes may take from its first byte to its last: 10 s, and 1 s for each MiB."""
    return 10.0 + size / 2**20


class StreamTransport:
    """Packets on a stream of bytes: before each, its length in four bytes.

    `read` gives what has come, and nothing at the end; `write` waits until more can be taken; `abort` releases both.
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
        self._begun_at = self._heard_at  #: when the packet under way began
        self._late_at: float | None = None  #: when it must be whole

    @classmethod
    def of(cls, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> StreamTransport:
        """Over a pair of streams of asyncio."""

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
        buffer, at, whole = self._buffer, 0, 0
        is_new = not buffer
        buffer += data
        while len(buffer) - at >= _LENGTH.size:
            whole = _LENGTH.unpack_from(buffer, at)[0]
            if not 1 <= whole <= MAX_PACKET:
                raise ProtocolError(f"a packet of {whole} bytes is announced; 1 to {MAX_PACKET} are accepted")
            end = at + _LENGTH.size + whole
            if len(buffer) < end:
                break
            self._packets.append(bytes(buffer[at + _LENGTH.size : end]))
            at, whole = end, 0
        del buffer[:at]
        if is_new or at:
            self._begun_at = self._heard_at
        self._late_at = self._begun_at + allowance_s(whole) if buffer else None
