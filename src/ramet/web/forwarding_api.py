"""The API of a server behind the page: requests go on to its socket or URL, with the operator's key.

The key stays in this process: the page has only its own token, in whose place the key is put. Streams are passed on
unbuffered, and end at the server when the browser leaves.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextlib import suppress
from http import HTTPStatus
from typing import Any, Final, Self
from urllib.parse import unquote

from starlette.types import Receive, Scope, Send

from ramet.core.errors import Denied, RametError
from ramet.services.client import requests
from ramet.services.client.requests import place_of
from ramet.services.client.transport import verify_peer
from ramet.services.http.responses import Refusal, wait_disconnect

MAX_BODY: Final = 16 * 1024 * 1024
CONNECT_S: Final = 10.0
API: Final = "/v1/"
#: The headers that are passed on. Others, such as those of proxies or of other methods, are not.
_REQUEST_HEADERS: Final = frozenset(
    (b"accept", b"content-type", b"last-event-id", b"idempotency-key", b"if-none-match", b"traceparent")
)
_ANSWER_HEADERS: Final = frozenset(
    (b"allow", b"cache-control", b"content-disposition", b"content-length", b"content-type", b"etag", b"retry-after")
)


class ForwardingApi:
    """An ASGI application that forwards requests, between `open` and `close`.

    `address` is the path of a server's socket, or a URL. Without a `key`, the operator's key is the one in the file
    beside the socket, as it is then.
    """

    def __init__(self, address: str, key: str | None = None) -> None:
        """Check the address. Raises InvalidValue."""
        self.address = self.name = address
        self._key = key
        self._place = place_of(address, key)
        self._http: Any = None

    async def __aenter__(self) -> Self:
        """Prepare the connections. Raises MissingExtra."""
        http = requests.http()
        is_encrypted = self._place.url.startswith("https://")
        # One stream per tab takes one connection: their number is bounded by those of browsers to this process.
        limits = http.Limits(max_connections=None, max_keepalive_connections=20)
        transport = http.AsyncHTTPTransport(uds=self._place.socket, trust_env=False, verify=is_encrypted, limits=limits)
        timeout = http.Timeout(CONNECT_S, read=None, pool=None)  # An act may wait for the end of many runs.
        self._http = http.AsyncClient(transport=transport, timeout=timeout, trust_env=False, follow_redirects=False)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._http.aclose()

    async def has_kernel(self) -> bool:
        """Return whether the server answers."""
        try:
            answer = await self._http.get(f"{self._place.url}/healthz", extensions={"trace": verify_peer})
        except (requests.http().TransportError, Denied):
            return False
        return bool(answer.status_code == HTTPStatus.OK)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Forward a request, and pass its answer on as it arrives. Raises Refusal before anything was sent."""
        path = checked_path(scope)
        body = await read_body(receive)
        await _unless_disconnected(self._forward(scope, path, body, send), receive)

    async def _forward(self, scope: Scope, path: bytes, body: bytes, send: Send) -> None:
        http, has_started = requests.http(), False
        key = (place_of(self.address, None) if self._key is None else self._place).key
        headers = [(name, value) for name, value in scope["headers"] if name in _REQUEST_HEADERS]
        headers.append((b"accept-encoding", b"identity"))
        if key:  # A socket may have no file with a key beside it: then the server says what is missing.
            headers.append((b"authorization", b"Bearer " + key.encode()))
        query = scope["query_string"]
        url = http.URL(self._place.url).copy_with(raw_path=path + (b"?" + query if query else b""))
        extensions = {"trace": verify_peer}
        try:
            async with self._http.stream(
                scope["method"], url, headers=headers, content=body or None, extensions=extensions
            ) as answer:
                raw = [(name.lower(), value) for name, value in answer.headers.raw]
                kept = [(name, value) for name, value in raw if name in _ANSWER_HEADERS]
                status = answer.status_code
                if status == HTTPStatus.UNAUTHORIZED:  # The page's own token is valid: the key of this process is not.
                    raise Refusal(HTTPStatus.BAD_GATEWAY, f"the server at {self.address} does not accept this key")
                has_started = True
                await send({"type": "http.response.start", "status": status, "headers": kept})
                async for piece in answer.aiter_raw():
                    await send({"type": "http.response.body", "body": piece, "more_body": True})
        except (http.TransportError, Denied) as problem:
            if has_started:  # Nothing more is sent: the answer breaks off, and its reader asks again.
                return
            raise Refusal(HTTPStatus.BAD_GATEWAY, f"no server answers at {self.address}: {_reason(problem)}") from None
        await send({"type": "http.response.body", "body": b""})


def checked_path(scope: Scope) -> bytes:
    """Return the path of a request to the API, as it was sent. Raises Refusal for one that may lead elsewhere."""
    path: bytes = scope["raw_path"]
    parts = [unquote(part) for part in path.decode("latin-1").split("/")]
    if not path.startswith(API.encode()) or any(each in (".", "..") or not each.isprintable() for each in parts):
        raise Refusal(HTTPStatus.NOT_FOUND, f"there is nothing at this path; the API is below {API}")
    return path


async def read_body(receive: Receive) -> bytes:
    """Return the body of a request. Raises Refusal if it is too large or does not arrive."""
    pieces, size = list[bytes](), 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise Refusal(HTTPStatus.BAD_REQUEST, "the body did not arrive")
        pieces.append(message.get("body", b""))
        size += len(pieces[-1])
        if size > MAX_BODY:
            raise Refusal(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"a body is at most {MAX_BODY} bytes")
        if not message.get("more_body"):
            return b"".join(pieces)


async def _unless_disconnected(work: Coroutine[Any, Any, None], receive: Receive) -> None:
    """Do work, and cancel it when the client leaves."""
    work_task, watch_task = asyncio.create_task(work), asyncio.create_task(wait_disconnect(receive))
    try:
        await asyncio.wait({work_task, watch_task}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        work_task.cancel()
        watch_task.cancel()
        await asyncio.wait({work_task, watch_task})
    with suppress(asyncio.CancelledError):
        work_task.result()


def _reason(problem: Exception) -> str:
    return str(problem) if isinstance(problem, RametError) else str(problem) or type(problem).__name__
