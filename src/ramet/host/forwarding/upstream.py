"""The providers: their addresses, keys and connections, and the headers that pass in each direction.

A key is put on here and nowhere else. Of a program's headers only those of a list pass, and of a provider's as well:
no cookie, no credential, and nothing about the connection.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

from ramet.disk.installation import missing_extra
from ramet.models.wires.contract import RefusalKind, RequestRefused, Wire

if TYPE_CHECKING:
    import httpx2

#: Seconds to connect, to send a part of a request, and between two parts of a reply.
CONNECT_S, WRITE_S, READ_S = 10.0, 60.0, 600.0
#: Connections that stay open for the next request.
_KEPT_CONNECTIONS: Final = 20
_MAX_HEADER: Final = 8_192  #: characters of one value

#: Headers of any program that are forwarded; each wire adds its own.
_REQUEST_HEADERS: Final = frozenset({"accept", "user-agent"})
_REPLY_HEADERS: Final = frozenset(
    {
        "content-encoding",
        "content-type",
        "openai-processing-ms",
        "request-id",
        "retry-after",
        "retry-after-ms",
        "x-request-id",
        "x-should-retry",
    }
)
_REPLY_PREFIXES: Final = ("anthropic-ratelimit-", "x-ratelimit-")
_VALUE: Final = re.compile(r"[\x20-\x7e]*")


class Upstream(NamedTuple):
    """The address of a provider, and its key."""

    base_url: str
    key: str

    def __repr__(self) -> str:
        """Describe it without its key."""
        return f"Upstream({self.base_url!r})"


def find_upstream(wire: Wire, environ: Mapping[str, str]) -> Upstream:
    """Return the address and the key of a provider. Raises RequestRefused if the host has no key."""
    key = next((value for name in wire.key_variables if (value := environ.get(name, "").strip())), "")
    if not key:
        names = " or ".join(wire.key_variables)
        raise RequestRefused(RefusalKind.KEY, f"the host has no key for this provider: {names} is not set there")
    base_url = environ.get(wire.base_url_variable, "").strip() or wire.base_url
    return Upstream(base_url.rstrip("/"), key)


def request_headers(wire: Wire, headers: Mapping[str, str], upstream: Upstream, *, has_body: bool) -> dict[str, str]:
    """Return the headers that are sent to a provider."""
    names = _REQUEST_HEADERS | wire.request_headers
    passed = {
        name: value
        for name, value in headers.items()
        if name in names and len(value) <= _MAX_HEADER and _VALUE.fullmatch(value)
    }
    body = {"content-type": "application/json"} if has_body else {}
    return {**passed, **body, "accept-encoding": "identity", **wire.key_headers(upstream.key)}


def reply_headers(headers: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """Return the headers of a reply that the program gets."""
    return [
        (name.lower(), value)
        for name, value in headers
        if (name.lower() in _REPLY_HEADERS or name.lower().startswith(_REPLY_PREFIXES))
        and len(value) <= _MAX_HEADER
        and _VALUE.fullmatch(value)
    ]


class Connections:
    """The connections of one runtime to providers: opened by the first request."""

    def __init__(self) -> None:
        self._client: httpx2.AsyncClient | None = None

    @property
    def client(self) -> httpx2.AsyncClient:
        """The client. Raises MissingExtra if its package is not installed."""
        if self._client is None:
            try:
                import httpx2
            except ImportError:
                raise missing_extra("forwarding the model requests of a program", "server") from None
            self._client = httpx2.AsyncClient(
                follow_redirects=False,
                timeout=httpx2.Timeout(connect=CONNECT_S, write=WRITE_S, read=READ_S, pool=None),
                limits=httpx2.Limits(max_connections=None, max_keepalive_connections=_KEPT_CONNECTIONS),
                headers={"user-agent": "ramet"},
            )
        return self._client

    async def close(self) -> None:
        """Close all of them. Idempotent."""
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()


def is_unsent(error: Exception) -> bool:
    """Return whether no provider can have received the request."""
    names = {kind.__name__ for kind in type(error).__mro__}
    return not names.isdisjoint({"ConnectError", "ConnectTimeout", "InvalidURL", "ProxyError", "UnsupportedProtocol"})


def host_environ() -> Mapping[str, str]:
    return os.environ
