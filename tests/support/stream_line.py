"""A line over a byte stream in each direction, such as a socket, or a program's standard input and output."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import IO

from ramet.core.errors import Gone, ProtocolError
from ramet.wire.frames import Frame, FrameReader, pack

_CHUNK = 256 * 1024
_CLOSE_S = 5.0


class StreamLine:
    """A line that ends when its stream ends, or a bad frame arrives."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, source: asyncio.BaseTransport | None = None
    ) -> None:
        """Create the line. `source` is the transport that feeds the reader, if it is not the writer's own."""
        self._reader, self._writer, self._source = reader, writer, source
        self._frames: deque[Frame] = deque()
        self._frame_reader = FrameReader()
        self._is_closed = False
        self._send_lock = asyncio.Lock()

    async def send(self, frame: Frame) -> None:
        """See `ramet.isolation.remote.line.Line`."""
        async with self._send_lock:
            if self._is_closed or self._writer.is_closing():
                raise Gone("the line has ended")
            try:
                self._writer.writelines(pack(*frame))
                await self._writer.drain()
            except OSError as error:
                raise Gone(f"the line has ended: {error}") from None

    async def receive(self) -> Frame | None:
        """See `ramet.isolation.remote.line.Line`. Raises ProtocolError, once, for a bad frame."""
        while not self._frames and not self._is_closed:
            try:
                data = await self._reader.read(_CHUNK)
            except OSError:
                data = b""
            if not data:
                return None
            try:
                self._frames.extend(self._frame_reader.feed(data))
            except ProtocolError:
                await self.close()
                raise
        return self._frames.popleft() if self._frames and not self._is_closed else None

    async def close(self) -> None:
        """See `ramet.isolation.remote.line.Line`. Data that is not taken within 5 s is dropped."""
        self._is_closed = True
        if self._source is not None:
            self._source.close()
        self._writer.close()
        try:
            async with asyncio.timeout(_CLOSE_S):
                await self._writer.wait_closed()
        except TimeoutError:
            self._writer.transport.abort()
        except OSError:
            pass


async def open_pipe_line(source: IO[bytes], sink: IO[bytes]) -> StreamLine:
    """Create a line over two pipes, and own them. Not for sockets: asyncio treats incoming data there as an end."""
    loop, reader, unread = asyncio.get_running_loop(), asyncio.StreamReader(), asyncio.StreamReader()
    read_transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), source)
    transport, protocol = await loop.connect_write_pipe(lambda: asyncio.StreamReaderProtocol(unread), sink)
    return StreamLine(reader, asyncio.StreamWriter(transport, protocol, reader, loop), read_transport)
