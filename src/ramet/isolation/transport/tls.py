"""TLS over a pair of asyncio's streams, with little memory per connection; asyncio's own TLS keeps 256 KiB for each."""

from __future__ import annotations

import asyncio
import contextlib
import ssl

from ramet.core.errors import ProtocolError
from ramet.wire.websocket import MAX_HEAD, Head, read_head

_CHUNK = 64 * 1024


class TlsStream:
    """An end of a TLS connection, for one reader and one writer at a time. Never use it again after an error."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        context: ssl.SSLContext,
        *,
        server_hostname: str | None = None,
    ) -> None:
        self._reader, self._writer = reader, writer
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(
            self._incoming, self._outgoing, server_side=server_hostname is None, server_hostname=server_hostname
        )
        self._buffered_data = b""  #: data that arrived after a head

    async def shake_hands(self) -> None:
        """Complete the TLS handshake. Raises OSError (ssl.SSLError is one)."""
        while True:
            try:
                self._tls.do_handshake()
            except ssl.SSLWantReadError:
                await self._flush()
                if not await self._read_more():
                    raise ConnectionResetError("closed in the middle of a handshake") from None
            except ssl.SSLError:
                await self._flush()  # an alert with the reason
                raise
            else:
                await self._flush()
                return

    async def read(self) -> bytes:
        """Return received data; empty bytes at the end. Raises OSError."""
        if self._buffered_data:
            data, self._buffered_data = self._buffered_data, b""
            return data
        while True:
            try:
                return self._tls.read(_CHUNK)
            except ssl.SSLWantReadError:
                if self._outgoing.pending:
                    await self._flush()
                if not await self._read_more():
                    return b""
            except ssl.SSLZeroReturnError:
                return b""

    async def read_head(self) -> Head:
        """Read the head of an HTTP message; `read` returns the data after it.

        Raises EOFError, OSError, ProtocolError.
        """
        data = b""
        while (end := data.find(b"\r\n\r\n")) < 0:
            if len(data) > MAX_HEAD:
                raise ProtocolError(f"a head is longer than {MAX_HEAD} bytes")
            if not (chunk := await self.read()):
                raise EOFError("the connection has ended in a head")
            data += chunk
        self._buffered_data = data[end + 4 :]
        return read_head(data[: end + 4])

    def put(self, data: bytes) -> None:
        """Queue data to be sent; `drain` waits until there is room for more. Raises OSError."""
        with memoryview(data) as view:
            for offset in range(0, len(view), _CHUNK):
                self._tls.write(view[offset : offset + _CHUNK])
                self._writer.write(self._outgoing.read())

    async def drain(self) -> None:
        """Wait until little data waits to be sent. Raises OSError."""
        await self._writer.drain()

    @property
    def waiting(self) -> int:
        """The number of bytes that wait to be sent."""
        return self._writer.transport.get_write_buffer_size()

    async def close(self) -> None:
        """End the stream, and wait until the other end closes, which shows that it has read all. Raises OSError."""
        with contextlib.suppress(ssl.SSLError):  # `unwrap` would wait for the other end's close message.
            self._tls.unwrap()
        await self._flush()
        self._writer.write_eof()
        while await self._reader.read(_CHUNK):
            pass

    def abort(self) -> None:
        """End the connection at once. Idempotent."""
        self._writer.transport.abort()

    async def _read_more(self) -> bool:
        data = await self._reader.read(_CHUNK)
        self._incoming.write(data)
        return bool(data)

    async def _flush(self) -> None:
        self._writer.write(self._outgoing.read())
        await self._writer.drain()
