"""The connection of a client to a server: requests, streams, retries, and the check of who listens."""

from __future__ import annotations

import os
import re
import socket
import struct
from collections.abc import AsyncGenerator, Callable, Mapping
from typing import Any, TypeVar

from ramet.core.errors import Denied, Gone, RametError
from ramet.services.client import requests
from ramet.services.client.errors import error_of
from ramet.services.client.requests import RequestSpec, ServerAddress, request_to
from ramet.services.client.retry import Lost, RetryingReader
from ramet.services.http.endpoints import Endpoint
from ramet.wire.sse import Parser, ServerSentEvent

T = TypeVar("T")
TIMEOUT_S = 60.0
#: The read timeout of a stream: more than twice a server's interval of keep-alive messages.
SILENCE_S = 40.0
_PEER = struct.Struct("3i")  #: process, user, group
_CONNECTED = "connection.connect_unix_socket.complete"


class Transport:
    """A connection to a server, once `open` was called. Every method takes a key, which replaces the address's own."""

    def __init__(self, address: ServerAddress) -> None:
        self._address = address
        self._http: Any = None

    async def open(self) -> None:
        """Prepare the connections. Raises MissingExtra."""
        http = requests.http()
        # Reading the certificates of this machine takes longer than a request, and only https needs them.
        verify = self._address.url.startswith("https://")
        transport = http.AsyncHTTPTransport(uds=self._address.socket, trust_env=False, verify=verify)
        timeout = http.Timeout(TIMEOUT_S, pool=None)
        self._http = http.AsyncClient(transport=transport, timeout=timeout, base_url=self._address.url, trust_env=False)
        self._transport_error = http.TransportError

    async def close(self) -> None:
        """Close all connections. Idempotent."""
        if self._http is not None:
            await self._http.aclose()
            self._http = None

    async def call(
        self,
        endpoint: Endpoint[T],
        *path: str,
        key: str | None = None,
        waits: bool = False,
        body: bytes | None = None,
        idempotency_key: str | None = None,
        **values: Any,
    ) -> T:
        """Send a request to an endpoint; see `request_to` and `send`."""
        ask = request_to(endpoint, *path, body=body, idempotency_key=idempotency_key, **values)
        return await self.send(ask, key, waits=waits)

    async def send(self, ask: RequestSpec[T], key: str | None = None, *, waits: bool = False) -> T:
        """Send any request. Set `waits` for a request without a time limit.

        A request with an `Idempotency-Key` is repeated after a lost answer, or while no server can answer.
        """
        reader = RetryingReader()
        while True:
            try:
                return await self._send_once(ask, key, waits)
            except RametError as problem:
                if not ask.is_repeatable:
                    raise
                await reader.wait_to_retry(problem)

    async def _send_once(self, ask: RequestSpec[T], key: str | None, waits: bool) -> T:
        options, http = {"timeout": None} if waits else {}, self._require_http()
        try:
            response = await http.request(**self._arguments(ask, key), **options)
        except self._transport_error as problem:
            raise self._unreachable(problem) from None
        if response.status_code >= 400:
            raise error_of(response.content, response.status_code)
        return ask.answer(response.content)

    async def stream(
        self,
        ask: RequestSpec[None],
        key: str | None = None,
        on_headers: Callable[[Mapping[str, str]], None] = lambda headers: None,
    ) -> AsyncGenerator[ServerSentEvent, None]:
        """Yield the events of any answer that is a stream. `on_headers` is called with the answer's headers."""
        http, timeout = self._require_http(), requests.http().Timeout(TIMEOUT_S, read=SILENCE_S, pool=None)
        try:
            async with http.stream(**self._arguments(ask, key), timeout=timeout) as response:
                if response.status_code >= 400:
                    raise error_of(await response.aread(), response.status_code)
                on_headers(response.headers)
                parser = Parser()
                async for piece in response.aiter_raw():
                    for event in parser.feed(piece):
                        yield event
        except self._transport_error as problem:
            raise self._unreachable(problem) from None

    def _arguments(self, ask: RequestSpec[Any], key: str | None) -> dict[str, Any]:
        """Return the arguments with which the HTTP client sends a request."""
        key_text = self._address.key if key is None else requests.checked_key(key)
        return {
            "method": ask.endpoint.method,
            "url": ask.path,
            "content": ask.body,
            "params": ask.params,
            "headers": {**ask.headers, **({"authorization": f"Bearer {key_text}"} if key_text else {})},
            "extensions": {"trace": verify_peer},
        }

    def _require_http(self) -> Any:
        if self._http is None:
            raise RametError("this client is not open: use `async with`")
        return self._http

    def _unreachable(self, problem: Exception) -> Gone:
        address = self._address.socket or self._address.url
        reason = re.sub(r"^\[Errno \d+\] ", "", str(problem)) or type(problem).__name__
        hint = "; is `ramet serve` running there?" if self._address.socket else ""
        return Lost(f"no server answers at {address}: {reason}{hint}")


async def verify_peer(event: str, info: dict[str, Any]) -> None:
    """Check each new connection of httpx2, as its extension `trace`, before any data is sent.

    A key is sent only to a process of this user or of root. Raises Denied if a process of another user listens at a
    Unix socket; the connection is closed then.
    """
    if event != _CONNECTED:
        return
    stream = info["return_value"]
    connection: socket.socket = stream.get_extra_info("socket")
    _, user, _ = _PEER.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size))
    if user not in (os.geteuid(), 0):
        await stream.aclose()
        raise Denied("a key for the server at this socket", f"a process of user {user} listens there, not of this one")
