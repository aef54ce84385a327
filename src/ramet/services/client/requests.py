"""Requests of a client as data, and the address of a server."""

from __future__ import annotations

import os
import pathlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import NoneType
from typing import Any, Generic, TypeVar
from urllib.parse import quote, urlsplit

import msgspec

from ramet.core.errors import InvalidValue, ProtocolError
from ramet.disk.installation import missing_extra
from ramet.services.http.endpoints import Endpoint
from ramet.services.idempotency.attempts import HEADER
from ramet.services.idempotency.attempts import checked_key as checked_idempotency_key

T = TypeVar("T")
TOKEN = "operator-token"  #: the name of the key's file beside a server's socket


@dataclass(frozen=True)
class RequestSpec(Generic[T]):
    """A request to an endpoint, as it is sent."""

    endpoint: Endpoint[T]
    path: str
    body: bytes | None
    params: Mapping[str, Any]
    headers: Mapping[str, str]

    @property
    def is_repeatable(self) -> bool:
        """Return whether the request has an `Idempotency-Key`, so that repeating it has no further effect."""
        return HEADER in self.headers

    def answer(self, data: bytes) -> T:
        """Decode the body of an answer. Raises ProtocolError for an invalid body."""
        answers: Any = self.endpoint.answers
        value: Any = data
        try:
            if answers is not bytes:
                value = None if answers is NoneType else msgspec.json.decode(data, type=answers)
        except (msgspec.DecodeError, UnicodeError, RecursionError) as problem:
            raise ProtocolError(f"the answer to {self.endpoint.method} {self.path} is not valid: {problem}") from None
        return value  # type: ignore[no-any-return]  # of the type that the endpoint names


def request_to(
    endpoint: Endpoint[T], *path: str, body: bytes | None = None, idempotency_key: str | None = None, **values: Any
) -> RequestSpec[T]:
    """Return the request to an endpoint with the parts of its path. With an `idempotency_key`, it is executed once.

    `values` are the fields of its structure, or of its query if it takes no structure. Those that are None are left
    out, and empty ones of a query. `body` is a whole body.

    Raises InvalidValue.
    """
    parts, headers, params = iter(path), {}, {name: value for name, value in values.items() if value is not None}
    url = re.sub(r"{\w+}", lambda field: quote(next(parts), safe=""), endpoint.path)
    if endpoint.takes is not None and body is None:
        body, params = encode(params), {}
    elif endpoint.media:
        headers["content-type"] = endpoint.media
    if idempotency_key is not None:
        headers[HEADER] = checked_idempotency_key(idempotency_key)
    return RequestSpec(endpoint, url, body, {name: value for name, value in params.items() if value != ""}, headers)


def encode(value: Any) -> bytes:
    """Return plain data, structures, and any mappings and sequences of them as JSON. Raises TypeError."""
    return msgspec.json.encode(value, enc_hook=_plain)


def _plain(value: Any) -> Any:
    """Return a mapping or a sequence of another type as one that JSON has."""
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, Sequence):
        return list(value)
    raise TypeError(f"{type(value).__name__} has no form in JSON")


@dataclass(frozen=True)
class ServerAddress:
    """The address of a server: a socket or a URL."""

    url: str
    socket: str | None
    key: str


def place_of(address: str | os.PathLike[str], key: str | None) -> ServerAddress:
    """Parse the address of a server. Without a key, use the operator's key from beside a socket, if the file exists."""
    text = os.fspath(address)
    if text.startswith(("http://", "https://")):
        if not _is_address(text):
            raise InvalidValue("address", text, "a URL of http or https with a host, and a port if it has one")
        return ServerAddress(text.rstrip("/"), None, checked_key(key or ""))
    if "://" in text or not text:
        raise InvalidValue("address", text, "the path of a socket, or a URL of http or https")
    path = pathlib.Path(text.removeprefix("unix:")).absolute()
    if key is None:
        key = _operators(path.with_name(TOKEN))
    return ServerAddress("http://ramet", str(path), checked_key(key))


def checked_key(key: str) -> str:
    """Return a key that a header can hold. Raises InvalidValue, which does not show the key."""
    if not key.isascii() or not key.isprintable():
        raise InvalidValue("key", f"{len(key)} characters", "printable ones of ASCII")
    return key


def _operators(token: pathlib.Path) -> str:
    """Return the operator's key from its file; "" if this user cannot read it."""
    try:
        return token.read_text(encoding="ascii").strip() if token.is_file() else ""
    except (OSError, UnicodeError):
        return ""


def _is_address(url: str) -> bool:
    """Return whether a URL names a host, and a valid port if it has one."""
    try:
        parts = urlsplit(url)
        return bool(parts.hostname) and url.isprintable() and " " not in url and parts.port != 0
    except ValueError:
        return False


def http() -> Any:
    """Return the module of the HTTP client. Raises MissingExtra."""
    try:
        import httpx2
    except ImportError:
        raise missing_extra("a client of a server", "server") from None
    return httpx2
