"""A tunnel: two streams joined end to end. Data that one side is slow to take is not read from the other side."""

from __future__ import annotations

import asyncio
import contextlib
import select
import socket
import threading
from collections.abc import AsyncIterator, Callable

from ramet.core.errors import ProtocolError
from ramet.wire.client_hello import ClientHelloParser

_CHUNK = 64 * 1024
_CHECK_S = 1.0  #: interval of checks for a disconnected client: while it is not read from, no event reports that


class _Buffers(threading.local):
    """The read buffer of a thread.

    Data is copied out before the next read, so one buffer serves all ends of the thread.
    """

    def __init__(self) -> None:
        self.view = memoryview(bytearray(_CHUNK))


_buffers = _Buffers()


class End(asyncio.BufferedProtocol):
    """An end of a tunnel: a stream whose bytes go to `on_data`, and whose end of file goes to `on_eof`.

    Nothing is read before `start`.
    """

    transport: asyncio.Transport

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.on_data: Callable[[bytes], object] = bytes
        self.on_eof: Callable[[], object] = bool
        self.other: End | None = None
        self.is_ended = False  #: no more data will come from it
        self.received_bytes = 0
        self.moved_at = self._loop.time()
        self.close_future: asyncio.Future[None] = self._loop.create_future()  #: done when it is closed, for any reason

    @classmethod
    @contextlib.asynccontextmanager
    async def on(cls, sock: socket.socket) -> AsyncIterator[End]:
        """Yield an end on a connected socket, which is closed on leaving."""
        try:
            _, end = await asyncio.get_running_loop().connect_accepted_socket(cls, sock)
        except BaseException:
            sock.close()
            raise
        try:
            yield end
        finally:
            end.transport.abort()
            await asyncio.wait({end.close_future})

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Store the transport, with reading paused. Called by asyncio."""
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        transport.pause_reading()

    def start(self) -> None:
        """Start or resume reading."""
        self.transport.resume_reading()

    def stop(self) -> None:
        """Pause reading until `start`."""
        self.transport.pause_reading()

    def is_disconnected(self) -> bool:
        """Return whether the peer has disconnected; a peer that only closed its sending side may still receive."""
        if self.close_future.done():
            return True
        poller = select.poll()
        poller.register(self.transport.get_extra_info("socket").fileno(), 0)
        return bool(poller.poll(0))  # POLLHUP or POLLERR, which are always reported.

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return the read buffer of the thread. Called by asyncio."""
        return _buffers.view

    def buffer_updated(self, size: int) -> None:
        """Pass the received bytes to `on_data`. Called by asyncio."""
        self.received_bytes += size
        self.moved_at = self._loop.time()
        self.on_data(bytes(_buffers.view[:size]))

    def eof_received(self) -> bool:
        """Handle the end of file; pending data is still sent. Called by asyncio."""
        self.is_ended = True
        self.on_eof()
        return True

    def pause_writing(self) -> None:
        """Pause the other end, which is faster than this one. Called by asyncio."""
        if self.other is not None and not self.other.is_ended:
            self.other.stop()

    def resume_writing(self) -> None:
        """Resume the other end. Called by asyncio."""
        if self.other is not None and not self.other.is_ended:
            self.other.start()

    def connection_lost(self, error: Exception | None) -> None:
        """Close both ends; the other end still sends its pending data. Called by asyncio."""
        self.is_ended = True
        if not self.close_future.done():
            self.close_future.set_result(None)
        self.on_eof()
        if self.other is not None:
            self.other.transport.close()


class Relay:
    """A client joined with a server: the bytes of each go to the other, uninspected, until both have ended.

    Once the client has disconnected, the server has `drain_s` to take the remaining data; None: no limit.
    """

    def __init__(self, client: End, server: End, *, drain_s: float | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        self._client, self._server, self._drain_s = client, server, drain_s
        client.other, server.other = server, client
        client.on_data, client.on_eof = server.transport.write, lambda: self._end(server)
        server.on_data, server.on_eof = client.transport.write, lambda: self._end(client)

    async def run(self, *, idle_s: float) -> None:
        """Forward all data, until both sides have ended or no data has moved for `idle_s`."""
        client, server = self._client, self._server
        client.start()
        server.start()
        disconnected_at: float | None = None
        while waiting := {each for each in (client.close_future, server.close_future) if not each.done()}:
            moved_at = max(client.moved_at, server.moved_at)
            remaining_s = check_s = moved_at + idle_s - self._loop.time()
            if self._drain_s is not None:
                check_s = _CHECK_S
                if disconnected_at is None and client.is_disconnected():
                    disconnected_at = self._loop.time()
                if disconnected_at is not None:
                    if client.is_ended and not server.transport.get_write_buffer_size():
                        return
                    remaining_s = min(remaining_s, max(disconnected_at, moved_at) + self._drain_s - self._loop.time())
            if remaining_s <= 0:
                return
            await asyncio.wait(waiting, timeout=min(remaining_s, check_s), return_when=asyncio.FIRST_COMPLETED)

    def _end(self, other: End) -> None:
        """Forward an end of file; the second one closes both ends."""
        if other.is_ended:
            self._client.transport.close()
            self._server.transport.close()
            return
        with contextlib.suppress(OSError):  # It has disconnected meanwhile; its loss is reported separately.
            other.transport.write_eof()


class Tunnel(Relay):
    """A client joined with a server. If the stream opens with TLS, the requested server must be `host`.

    A hello that asks for no server passes, and so does a stream that is not TLS. The content of the encryption cannot
    be checked: the name in a `Host` field, an encrypted ClientHello, a second hello after a retry, TLS that begins
    later.
    """

    def __init__(
        self, client: End, server: End, *, host: str, hello_s: float, on_refused: Callable[[str], None]
    ) -> None:
        super().__init__(client, server)
        self._host = host
        self._hello_s, self._on_refused = hello_s, on_refused
        self._opening: ClientHelloParser | None = ClientHelloParser()
        self._deadline: asyncio.TimerHandle | None = None
        client.on_data = self._open

    @property
    def sent_bytes(self) -> int:
        """The bytes that came from the client, including its request."""
        return self._client.received_bytes

    @property
    def received_bytes(self) -> int:
        """The bytes that came from the server."""
        return self._server.received_bytes

    async def run(self, *, idle_s: float, first: bytes = b"") -> None:
        """Forward `first`, then all data, until both sides have ended or no data has moved for `idle_s`."""
        if first:
            self._open(first)
        try:
            await super().run(idle_s=idle_s)
        finally:
            if self._deadline is not None:
                self._deadline.cancel()

    def _open(self, data: bytes) -> None:
        assert self._opening is not None
        try:
            hello = self._opening.feed(data)
        except ProtocolError as error:
            return self._refuse(str(error))
        if hello is None:
            if self._deadline is None:
                self._deadline = self._loop.call_later(
                    self._hello_s, self._refuse, f"the TLS ClientHello was not complete after {self._hello_s:g} s"
                )
            return None
        if self._deadline is not None:
            self._deadline.cancel()
        if hello.server_name not in (None, self._host):
            return self._refuse(f"TLS asks for another server: {hello.server_name}")
        hello_bytes, self._opening = bytes(self._opening.buffer), None
        self._client.on_data = self._server.transport.write
        return self._server.transport.write(hello_bytes)

    def _refuse(self, reason: str) -> None:
        if self._client.transport.is_closing():
            return
        self._client.transport.abort()
        self._server.transport.abort()
        self._on_refused(reason)

    def _end(self, other: End) -> None:
        """Forward an end of file; the second one closes both ends."""
        if other is self._server and self._opening is not None and self._opening.buffer:
            return self._refuse("the TLS ClientHello is cut off")
        return super()._end(other)
