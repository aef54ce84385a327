"""The kernel's listener for machines, which connect by TLS and WebSocket, each with its key.

There is no other listener.

Every refused connection gets the same answer, whatever the reason, and uses at most the memory of one head before. The
number and the duration of unauthenticated connections are limited, in total and per address.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
import ssl
from collections import Counter
from dataclasses import dataclass

from ramet.core.errors import ProtocolError
from ramet.isolation.transport.join_keys import JoinKeys
from ramet.isolation.transport.join_token import KEY_HEADER, POD_HEADER
from ramet.isolation.transport.resuming import ResumingLine
from ramet.isolation.transport.tls import TlsStream
from ramet.isolation.transport.websocket import WebSocketTransport
from ramet.wire.websocket import answer, nonce_of

PATH = "/line"
_BODY = b"no\n"
REFUSAL = b"HTTP/1.1 403 Forbidden\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s" % (len(_BODY), _BODY)
_FULL = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


@dataclass(frozen=True, kw_only=True)
class ListenerLimits:
    """The limits of connections that have not presented a valid key yet."""

    strangers: int = 256
    strangers_of_address: int = 64  #: many pods may connect from one address, that of their node
    handshake_s: float = 10.0  #: for TLS and the request together


class PodListener:
    """The listener that accepts pods and passes their connections to their lines. Enter it as a context.

    `context` may be replaced while the listener is open: a new certificate is used from the next connection on.
    """

    def __init__(
        self,
        host: str,
        port: int,
        context: ssl.SSLContext,
        *,
        caps: ListenerLimits = ListenerLimits(),
    ) -> None:
        self._address, self._limits = (host, port), caps
        self.context = context
        self._loop = asyncio.get_running_loop()
        self._join_keys = JoinKeys(self._loop.time)
        self._lines: dict[str, ResumingLine] = {}
        self._strangers: Counter[str] = Counter()
        self._connections: set[asyncio.Task[None]] = set()
        self._listener: socket.socket | None = None
        self._accepting: asyncio.Task[None] | None = None

    async def __aenter__(self) -> PodListener:
        host, port = self._address
        addresses = await self._loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, address = addresses[0]
        listener = socket.socket(family, kind, protocol)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.setblocking(False)
            listener.bind(address)
            listener.listen(128)
        except BaseException:
            listener.close()
            raise
        self._listener = listener
        self._accepting = self._loop.create_task(self._accept(listener))
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._listener is not None
        assert self._accepting is not None
        tasks = {self._accepting, *self._connections}
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        self._listener.close()

    @property
    def port(self) -> int:
        """The port on which the listener accepts connections."""
        assert self._listener is not None
        return int(self._listener.getsockname()[1])

    # ---- expected pods ----------------------------------------------------------------------------------------------

    def expect(self, pod: str, line: ResumingLine, *, join_s: float, key: str | None = None) -> str:
        """Allow a pod (its uid) to connect within `join_s`, for `line`; return its join key, which is not stored.

        `key` is from `join_keys.new_key`, for a pod that got it before it had a uid.
        """
        key = self._join_keys.expect(pod, join_s=join_s, key=key)
        self._lines[pod] = line
        return key

    def forget(self, pod: str) -> None:
        """Revoke the keys of a pod that is gone. The line's owner closes the line. Idempotent."""
        self._join_keys.forget(pod)
        self._lines.pop(pod, None)

    # ---- connections ------------------------------------------------------------------------------------------------

    async def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                end, address = await self._loop.sock_accept(listener)
            except OSError as error:  # most likely an error of that one connection
                if error.errno in _FULL:
                    await asyncio.sleep(0.1)
                continue
            peer = str(address[0])
            are_many = self._strangers.total() >= self._limits.strangers
            if are_many or self._strangers[peer] >= self._limits.strangers_of_address:
                end.close()
            else:
                self._strangers[peer] += 1
                self._begin(end, peer)

    async def _serve(self, end: socket.socket, peer: str) -> None:
        stream: TlsStream | None = None
        admission: tuple[str, str, ResumingLine, WebSocketTransport] | None = None
        try:
            try:
                async with asyncio.timeout(self._limits.handshake_s):
                    with contextlib.suppress(OSError):
                        end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    stream = TlsStream(*await asyncio.open_connection(sock=end), self.context)
                    await stream.shake_hands()
                    admission = await self._admit(stream)
            except (OSError, EOFError):  # TimeoutError is one
                pass
            finally:
                self._strangers[peer] -= 1
                if not self._strangers[peer]:
                    del self._strangers[peer]
            if admission is not None:
                await self._carry(*admission)
        finally:
            if stream is not None:
                stream.abort()

    async def _admit(self, stream: TlsStream) -> tuple[str, str, ResumingLine, WebSocketTransport] | None:
        pod, bearer_key, nonce = "", "", None
        try:
            head = await stream.read_head()
            pod = head.headers.get(POD_HEADER, "")
            scheme, _, key = head.headers.get("authorization", "").partition(" ")
            bearer_key = key if scheme == "Bearer" and head.start[1] == PATH else ""
            nonce = nonce_of(head)
        except ProtocolError:
            pass
        next_key = self._join_keys.admit(pod, bearer_key if nonce is not None else "")
        line = self._lines.get(pod)
        if next_key is None or nonce is None or line is None or line.has_ended:
            stream.put(REFUSAL)
            await stream.close()
            return None
        stream.put(answer(nonce, {KEY_HEADER: next_key}))
        await stream.drain()
        return pod, next_key, line, WebSocketTransport(stream, is_server=True)

    async def _carry(self, pod: str, key: str, line: ResumingLine, transport: WebSocketTransport) -> None:
        def confirm_key() -> None:
            if not self._join_keys.confirm(pod, key):  # The pod connected again while this connection was being set up.
                transport.abort()

        await line.carry(transport, on_greeting=confirm_key)

    def _begin(self, end: socket.socket, peer: str) -> None:
        connection = self._loop.create_task(self._serve(end, peer))
        self._connections.add(connection)
        connection.add_done_callback(self._connections.discard)
        connection.add_done_callback(lambda _: end.close())  # A task that was cancelled before it began closes nothing.
