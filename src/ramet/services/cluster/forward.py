"""Forwarding of a request to another kernel, and of its answer: unchanged, piece by piece, and once.

Status, headers and bodies are unchanged. A client that leaves ends the request at the other kernel. A small answer is
received whole before any of it is passed on: one of which a part is missing is no answer. A lost kernel ends its larger
answers and its streams in the middle, like a lost connection.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Final

from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope, Send

from ramet.disk.installation import missing_extra
from ramet.services.cluster.auth import FROM, PASS
from ramet.services.errors import BodyTooLarge
from ramet.services.http.request import JSON_BYTES
from ramet.services.http.responses import wait_disconnect

if TYPE_CHECKING:
    from ramet.services.http.request import RequestContext

_log = logging.getLogger("ramet.serve")
CONNECT_S, ASK_S = 2.0, 10.0
KEPT_BYTES: Final = 16 * 1024 * 1024
WHOLE_BYTES: Final = 64 * 1024  #: an answer of this length or less is received whole; a stream states no length
#: Shorter than the keep-alive time of a server: no request is sent on a connection that the server closes.
_IDLE_S: Final = 20.0
#: Headers of a single connection, which are not forwarded.
_HOP_BY_HOP: Final = frozenset(
    (b"connection", b"keep-alive", b"proxy-connection", b"te", b"trailer", b"transfer-encoding", b"upgrade")
)
_OWN_HEADERS: Final = frozenset((b"host", FROM.encode(), PASS.encode()))


class Unreachable(Exception):
    """No answer was received. `was_sent` says whether the other kernel may have begun the request."""

    def __init__(self, why: str, *, was_sent: bool) -> None:
        self.was_sent = was_sent
        super().__init__(why)


class Body:
    """The body of a request, read once and kept up to `KEPT_BYTES`: it can be sent again, or read by this kernel.

    A body that every kernel would refuse is refused here, before a part of it is sent.
    """

    def __init__(self, call: RequestContext) -> None:
        self._call, self._size = call, 0
        self._limit = max(JSON_BYTES, call.parts.message_bytes)
        self._sent_pieces: list[bytes] | None = []
        self._unread = call.pieces() if call.has_body else None
        self.read = asyncio.Event()  #: set once the whole body was read
        if self._unread is None:
            self.read.set()

    @property
    def can_be_sent_again(self) -> bool:
        """Return whether everything that was read is kept."""
        return self._sent_pieces is not None

    async def pieces(self) -> AsyncGenerator[bytes]:
        """Yield the whole body, from its beginning. Raises BodyTooLarge."""
        length = self._call.request.headers.get("content-length", "")
        if length.isdigit() and int(length) > self._limit:
            raise BodyTooLarge("body", size=int(length), limit=self._limit)
        for each in list(self._sent_pieces or ()):
            yield each
        if self._unread is None:
            return
        async for piece in self._unread:
            self._size += len(piece)
            if self._size > self._limit:
                raise BodyTooLarge("body", size=self._size, limit=self._limit)
            if self._sent_pieces is not None:
                self._sent_pieces.append(piece)
                if self._size > KEPT_BYTES:
                    self._sent_pieces = None
            yield piece
        self._unread = None
        self.read.set()

    async def read_start(self, limit: int) -> bytes:
        """Return the whole body if it has at most `limit` bytes. Otherwise return its beginning,
        longer than `limit`.
        """
        parts, size = [], 0
        async with aclosing(self.pieces()) as pieces:
            async for piece in pieces:
                parts.append(piece)
                size += len(piece)
                if size > limit:
                    break
        return b"".join(parts)

    def restore(self) -> None:
        """Return the kept body to the call, for its next reader."""
        assert self._sent_pieces is not None
        self._call.restore_body(self._sent_pieces)
        self._sent_pieces = None


class Forwarder:
    """Connections to other kernels, by address."""

    def __init__(self) -> None:
        """Import the HTTP client. Raises MissingExtra."""
        try:
            import httpx2
        except ImportError:
            raise missing_extra("several kernels", "server") from None
        self._httpx: Any = httpx2
        self._transports: dict[str, Any] = {}
        self.transport_error: type[Exception] = httpx2.TransportError
        self.requests: dict[asyncio.Task[Any], str] = {}  #: the name of the kernel for each active request
        self.streams: set[asyncio.Task[Any]] = set()  #: the event streams that are being passed on

    async def close(self) -> None:
        """End all active requests and all connections. Idempotent."""
        await self._end(list(self.requests))
        transports, self._transports = list(self._transports.values()), {}
        for each in transports:
            await each.aclose()

    async def cancel_requests(self, kernel: str) -> None:
        """End the active requests to a lost kernel, which will not be answered."""
        await self._end([task for task, receiver in self.requests.items() if receiver == kernel])

    async def end_streams(self) -> None:
        """End the forwarded streams, in their middle; other active requests are still answered."""
        await self._end(list(self.streams))

    async def send(
        self,
        call: RequestContext,
        body: Body,
        kernel: str,
        address: str,
        extra_headers: Mapping[str, str],
        target: bytes | None = None,
    ) -> ForwardedResponse:
        """Send a request to another kernel. Return its answer once the answer begins, to be passed on or read.

        Raises Unreachable, BodyTooLarge, and ClientDisconnect if the client has left.
        """
        scope = call.request.scope
        headers = [(name, value) for name, value in scope["headers"] if name not in _HOP_BY_HOP | _OWN_HEADERS]
        headers += [(name.encode(), value.encode()) for name, value in extra_headers.items()]
        headers.append((b"host", b"ramet"))
        if target is None:
            target = scope["raw_path"] + (b"?" + scope["query_string"] if scope["query_string"] else b"")
        request = self._httpx.Request(
            call.request.method,
            self._url(address, target),
            headers=headers,
            content=body.pieces() if call.has_body else None,
            extensions=self._timeouts(None),
        )
        sending = asyncio.create_task(self._send(request, kernel, address), name="ramet forward")
        self.requests[sending] = kernel
        sending.add_done_callback(lambda task: self.requests.pop(task, None))
        disconnect = asyncio.create_task(_client_left(call, body), name="ramet forward's client")
        try:
            await asyncio.wait({sending, disconnect}, return_when=asyncio.FIRST_COMPLETED)
            if not sending.done():
                raise ClientDisconnect
            if sending.cancelled():
                raise Unreachable(f"kernel {kernel} is lost", was_sent=True)
            return sending.result()
        finally:
            disconnect.cancel()
            if not sending.done():
                sending.cancel()
            await asyncio.wait({sending, disconnect})

    async def ask(self, kernel: str, address: str, path: str, headers: Mapping[str, str]) -> int:
        """Send a small GET request, and return the status of its answer. Raises Unreachable."""
        url = self._url(address, path.encode())
        request = self._httpx.Request("GET", url, headers=dict(headers), extensions=self._timeouts(ASK_S))
        response = await self._send(request, kernel, address)
        await response.read()
        return response.status

    async def _send(self, request: Any, kernel: str, address: str) -> ForwardedResponse:
        try:
            response = await self._whole_if_small(await self._transport(address).handle_async_request(request))
        except (self._httpx.ConnectError, self._httpx.ConnectTimeout, self._httpx.PoolTimeout) as problem:
            raise Unreachable(str(problem) or "it does not answer", was_sent=False) from None
        except self.transport_error as problem:
            raise Unreachable(str(problem) or type(problem).__name__, was_sent=True) from None
        return ForwardedResponse(response, kernel, self)

    async def _whole_if_small(self, response: Any) -> Any:
        """Return the answer with its body, if it is small. Raises an error of the transport if the body breaks off."""
        length = response.headers.get("content-length", "")
        if not length.isdecimal() or not 0 < int(length) <= WHOLE_BYTES:
            return response
        try:
            body = b"".join([piece async for piece in response.stream])
        finally:
            await response.aclose()
        stream = self._httpx.ByteStream(body)
        return self._httpx.Response(response.status_code, headers=response.headers.raw, stream=stream)

    def _url(self, address: str, target: bytes) -> Any:
        base = self._httpx.URL("http://ramet" if address.startswith("/") else address)
        return base.copy_with(raw_path=target)

    def _timeouts(self, read_s: float | None) -> dict[str, Any]:
        return {"timeout": {"connect": CONNECT_S, "read": read_s, "write": None, "pool": None}}

    def _transport(self, address: str) -> Any:
        if address not in self._transports:
            limits = self._httpx.Limits(max_connections=None, max_keepalive_connections=64, keepalive_expiry=_IDLE_S)
            self._transports[address] = self._httpx.AsyncHTTPTransport(
                uds=address if address.startswith("/") else None,
                trust_env=False,
                verify=address.startswith("https://"),
                limits=limits,
            )
        return self._transports[address]

    async def _end(self, tasks: list[asyncio.Task[Any]]) -> None:
        for each in tasks:
            each.cancel()
        if tasks:
            await asyncio.wait(tasks)


class ForwardedResponse:
    """The answer of another kernel. Use it once: as an ASGI response, with `read`, or with `close`."""

    def __init__(self, response: Any, kernel: str, forwarder: Forwarder) -> None:
        self.status: int = response.status_code
        self._response, self._kernel, self._forwarder = response, kernel, forwarder

    def header(self, name: str) -> str:
        """Return the header of that name, "" if there is none."""
        return str(self._response.headers.get(name, ""))

    async def read(self) -> bytes:
        """Return the whole body. Raises Unreachable if the connection breaks."""
        try:
            return bytes(await self._response.aread())
        except self._forwarder.transport_error as problem:
            raise Unreachable(str(problem), was_sent=True) from None
        finally:
            await self.close()

    async def close(self) -> None:
        """Abandon the answer. Idempotent."""
        await self._response.aclose()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on each piece as it arrives, until the answer ends or breaks, or its reader leaves."""
        transfer = asyncio.create_task(self._transfer(send), name="ramet forward")
        disconnect = asyncio.create_task(wait_disconnect(receive), name="ramet forward's client")
        self._forwarder.requests[transfer] = self._kernel
        if self.header("content-type").startswith("text/event-stream"):
            self._forwarder.streams.add(transfer)
        try:
            await asyncio.wait({transfer, disconnect}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._forwarder.requests.pop(transfer, None)
            self._forwarder.streams.discard(transfer)
            transfer.cancel()
            disconnect.cancel()
            await asyncio.wait({transfer, disconnect})
            await self.close()
        if not transfer.cancelled() and (problem := transfer.exception()) is not None:
            if not isinstance(problem, self._forwarder.transport_error):
                raise problem
            _log.warning("an answer of kernel %s was interrupted: %s", self._kernel, problem)

    async def _transfer(self, send: Send) -> None:
        headers = [(name.lower(), value) for name, value in self._response.headers.raw]
        forwarded = [(name, value) for name, value in headers if name not in _HOP_BY_HOP]
        await send({"type": "http.response.start", "status": self.status, "headers": forwarded})
        async for piece in self._response.stream:
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _client_left(call: RequestContext, body: Body) -> None:
    """Return when the client has left. While the body is being read, only the reader of the body notices that."""
    await body.read.wait()
    await wait_disconnect(call.request.receive)
