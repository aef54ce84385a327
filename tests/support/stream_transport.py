"""A transport on a pair of asyncio's streams, without TLS: four bytes of length before each packet."""

from __future__ import annotations

import asyncio


class StreamTransport:
    """A `ramet.isolation.transport.resuming.Transport`."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self.heard_at = asyncio.get_running_loop().time()

    async def send(self, packet: bytes) -> None:
        self._writer.write(len(packet).to_bytes(4, "big") + packet)
        await self._writer.drain()

    async def receive(self) -> bytes | None:
        try:
            packet = await self._reader.readexactly(int.from_bytes(await self._reader.readexactly(4), "big"))
        except asyncio.IncompleteReadError:
            return None
        self.heard_at = asyncio.get_running_loop().time()
        return packet

    def abort(self) -> None:
        self._writer.transport.abort()
