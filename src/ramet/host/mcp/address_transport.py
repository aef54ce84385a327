"""HTTP to the address of a server: only to addresses that were checked, and with bounds for what comes back.

The server is hostile. Each connection looks its name up once, checks every address (`ramet.host.egress.dial`), and goes
to one of those, so that neither a redirect nor a name that changes leads elsewhere. Bodies come without compression,
and no faster than their events can be looked at. A problem of a connection is the answer to its request: it ends no
session. A body above a bound ends it.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any, Final

import httpcore2
import httpx2

from ramet.core.addresses import IPAddress
from ramet.host.egress.dial import Dialer
from ramet.tools.mcp.connection_port import OnEndpoint
from ramet.wire.http_connect import ConnectRefusal, parse_target

#: Bytes of a message, and its brackets and commas: each takes up to 100 bytes once it is decoded.
MAX_MESSAGE_BYTES: Final = 4 * 1024 * 1024
MAX_PARTS: Final = 100_000
MAX_STREAM_BYTES: Final = 64 * 1024 * 1024  #: of one answer with events
CONNECT_S, HEAD_S = 15.0, 30.0  #: for a connection; until an answer begins to a message that needs none
MAX_CONNECTIONS: Final = 32
#: Lines and pieces of an answer with events that are taken at once, and per second: the rest waits at the server.
BURST_LINES, LINES_PER_S = 5_000, 15_000
#: Streams that are opened again: the seconds between them, and their number.
STREAM_INTERVAL_S, MAX_STREAMS = 1.0, 100
NO_CONNECTION: Final = -32_098  #: code of the error that stands for a failed connection
_MAX_TRIED: Final = 4  #: addresses of one name
_BOUNDARIES: Final = (b"\n\n", b"\r\r", b"\r\n\r\n")


class CheckedNetwork(httpcore2.AsyncNetworkBackend):
    """The network as a run may use it."""

    def __init__(self, dialer: Dialer, on_endpoint: OnEndpoint) -> None:
        self._dialer, self._on_endpoint = dialer, on_endpoint
        self._sockets = httpcore2.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ASYNC109  # of the contract
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        """Connect to a checked address of this name. Raises ConnectError."""
        end = asyncio.get_running_loop().time() + CONNECT_S
        try:
            async with asyncio.timeout_at(end):
                addresses = await self._find(host, port)
        except TimeoutError:
            raise httpcore2.ConnectTimeout(f"{host} was not looked up in time") from None
        problem: Exception = httpcore2.ConnectError(f"{host} has no address")
        for index, address in enumerate(tried := addresses[:_MAX_TRIED]):
            share_s = (end - asyncio.get_running_loop().time()) / (len(tried) - index)
            try:
                return await self._sockets.connect_tcp(str(address), port, timeout=max(0.1, share_s))
            except (httpcore2.ConnectError, httpcore2.ConnectTimeout) as error:
                problem = error
        raise httpcore2.ConnectError(f"no connection to {host}: {type(problem).__name__}")

    async def _find(self, host: str, port: int) -> list[IPAddress]:
        target = parse_target(f"[{host}]:{port}" if ":" in host else f"{host}:{port}")
        found = await self._dialer.find(target) if not isinstance(target, ConnectRefusal) else target
        reason = found.reason if isinstance(found, ConnectRefusal) else ""
        self._on_endpoint(host, port, not reason, reason)
        if isinstance(found, ConnectRefusal):
            raise httpcore2.ConnectError(found.reason)
        return list(found)

    async def connect_unix_socket(
        self,
        path: str,
        timeout: float | None = None,  # noqa: ASYNC109  # of the contract
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        """Raise ConnectError."""
        raise httpcore2.ConnectError("sockets of files are no addresses of servers")

    async def sleep(self, seconds: float) -> None:
        """Wait."""
        await asyncio.sleep(seconds)


class AddressTransport(httpx2.AsyncBaseTransport):
    """The transport of one server. `on_violation` takes the reason for which its session has to end."""

    def __init__(self, network: CheckedNetwork, tls: Any, on_violation: Callable[[str], None]) -> None:
        self._pool = httpcore2.AsyncConnectionPool(
            ssl_context=tls,
            max_connections=MAX_CONNECTIONS,
            max_keepalive_connections=4,
            keepalive_expiry=30.0,
            network_backend=network,
        )
        self._on_violation = on_violation
        self._streams = 0
        self._last_stream_at = -STREAM_INTERVAL_S

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send a request; a problem of the connection is an answer, too."""
        message = _message_of(request)
        is_call = isinstance(message, dict) and "method" in message and "id" in message
        if request.method == "GET" and not await self._may_open_stream():
            return httpx2.Response(405, request=request)
        request.headers["accept-encoding"] = "identity"
        try:
            # The answer to a call may take as long as the call. Everything else is short.
            async with asyncio.timeout(None if is_call or request.method == "GET" else HEAD_S):
                return await self._send(request)
        except TimeoutError:
            problem = "it did not answer in time"
        except (httpcore2.TimeoutException, httpcore2.NetworkError, httpcore2.ProtocolError) as error:
            problem = str(error)[:500] or type(error).__name__
        failure = {"code": NO_CONNECTION, "message": problem}
        return httpx2.Response(
            502,
            json={"jsonrpc": "2.0", "id": message["id"] if is_call else None, "error": failure},
            request=request,
        )

    async def _send(self, request: httpx2.Request) -> httpx2.Response:
        assert isinstance(request.stream, httpx2.AsyncByteStream)
        url = request.url
        response = await self._pool.handle_async_request(
            httpcore2.Request(
                method=request.method,
                url=httpcore2.URL(scheme=url.raw_scheme, host=url.raw_host, port=url.port, target=url.raw_path),
                headers=request.headers.raw,
                content=request.stream,
                extensions={"timeout": {"connect": CONNECT_S, "write": HEAD_S, "pool": HEAD_S}},
            )
        )
        headers = httpx2.Headers(response.headers)
        body = _BoundedBody(response, is_events="event-stream" in headers.get("content-type", ""))
        body.on_violation = self._on_violation
        if headers.get("content-encoding", "identity").lower() != "identity":
            await body.aclose()
            raise httpcore2.RemoteProtocolError("its answer is compressed, which was not asked for")
        return httpx2.Response(response.status, headers=response.headers, stream=body, request=request)

    async def _may_open_stream(self) -> bool:
        """Wait until a stream may be opened again; return False if there were too many."""
        self._streams += 1
        if self._streams > MAX_STREAMS:
            return False
        now = asyncio.get_running_loop().time()
        begin = max(now, self._last_stream_at + STREAM_INTERVAL_S)
        self._last_stream_at = begin
        await asyncio.sleep(begin - now)
        return True

    async def aclose(self) -> None:
        """Close all connections."""
        await self._pool.aclose()


class _BoundedBody(httpx2.AsyncByteStream):
    """The body of an answer, bounded: one message, or a stream of them."""

    def __init__(self, response: httpcore2.Response, *, is_events: bool) -> None:
        self._response, self._is_events = response, is_events
        self._size = self._message_bytes = self._message_parts = 0
        self._tail = b""
        self._due_at = 0.0  #: when all lines so far would have come, at the highest rate
        self.on_violation: Callable[[str], None] = lambda reason: None

    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            async for chunk in self._response.aiter_stream():
                self._check(chunk)
                if self._is_events:
                    await self._wait_turn(chunk)
                yield chunk
        except (httpcore2.TimeoutException, httpcore2.NetworkError, httpcore2.ProtocolError) as error:
            raise httpx2.StreamError(str(error)[:500] or type(error).__name__) from None

    def _check(self, chunk: bytes) -> None:
        self._size += len(chunk)
        begin = 0
        if self._is_events:
            window = self._tail + chunk
            ends = [at + len(each) for each in _BOUNDARIES if (at := window.rfind(each)) >= 0]
            begin = max(0, max(ends, default=0) - len(self._tail))
            self._tail = window[-3:]
        first = chunk[:begin] if begin else chunk
        self._message_bytes += len(first)
        self._message_parts += _parts(first)
        if self._message_bytes > MAX_MESSAGE_BYTES:
            self._violate(f"it sent a message above a bound: at most {MAX_MESSAGE_BYTES} bytes")
        if self._message_parts > MAX_PARTS:
            self._violate(f"it sent a message above a bound: at most {MAX_PARTS} parts")
        if begin:
            self._message_bytes, self._message_parts = len(chunk) - begin, _parts(chunk[begin:])
        if self._size > MAX_STREAM_BYTES:
            self._violate(f"it sent an answer above a bound: at most {MAX_STREAM_BYTES} bytes")

    def _violate(self, reason: str) -> None:
        self.on_violation(reason)
        raise httpx2.StreamError(reason)

    async def _wait_turn(self, chunk: bytes) -> None:
        """Leave what comes too fast at the server."""
        now = asyncio.get_running_loop().time()
        lines = 1 + chunk.count(b"\n") + chunk.count(b"\r")
        self._due_at = max(self._due_at, now - BURST_LINES / LINES_PER_S) + lines / LINES_PER_S
        if self._due_at > now:
            await asyncio.sleep(self._due_at - now)

    async def aclose(self) -> None:
        """Close the connection, unless all of the body was read."""
        await self._response.aclose()


def _parts(data: bytes) -> int:
    return data.count(b"[") + data.count(b"{") + data.count(b",")


def _message_of(request: httpx2.Request) -> Any:
    """Return the message of the client that a request carries, if any."""
    if request.method != "POST":
        return None
    try:
        return json.loads(request.content)
    except (ValueError, httpx2.RequestNotRead):
        return None
