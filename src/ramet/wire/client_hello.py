"""Parse the first bytes of a tunnel: detect TLS and the requested server name (RFC 8446 §4.1.2).

The parser does no I/O. A message may be spread over several records, and a record over several reads. Bytes that begin
as TLS but cannot be parsed to the end are an error: the parser does not guess how a server would read them.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from ramet.core.errors import ProtocolError

#: Maximum number of buffered bytes, including record headers; current clients send hellos of 0.3 to 4 KiB.
MAX_HELLO = 64 * 1024

_CONTENT_TYPES = range(20, 25)  #: first byte of a record: change_cipher_spec, alert, handshake, data, heartbeat
_HANDSHAKE, _CLIENT_HELLO, _SERVER_NAME = 22, 1, 0
_MAX_RECORD = 2**14
_NAME = re.compile(rb"[A-Za-z0-9_.-]{1,254}")


class TunnelStart(NamedTuple):
    """The result of parsing the start of a tunnel."""

    is_tls: bool
    #: Lower case, without a trailing dot; None: not TLS, or the hello has no server name.
    server_name: str | None = None


class ClientHelloParser:
    """A parser of the first bytes of a tunnel; `buffer` has all bytes received so far."""

    __slots__ = ("_at", "_message", "buffer")

    def __init__(self) -> None:
        self.buffer = bytearray()
        self._at = 0  #: offset of the current record
        self._message = bytearray()

    def feed(self, data: bytes) -> TunnelStart | None:
        """Add received bytes; return None while more bytes are needed.

        Raises ProtocolError for TLS that cannot be parsed.
        """
        self.buffer += data
        if not self.buffer:
            return None
        if self.buffer[0] not in _CONTENT_TYPES:
            return TunnelStart(is_tls=False)
        while (record := self._record()) is not None:
            self._message += record
            if self._message[0] != _CLIENT_HELLO:
                raise ProtocolError("TLS does not begin with a ClientHello")
            end = 4 + int.from_bytes(self._message[1:4], "big")
            if len(self._message) >= max(end, 4):
                return TunnelStart(is_tls=True, server_name=_server_name(_Cursor(bytes(self._message[4:end]))))
        return None

    def _record(self) -> bytes | None:
        head = self.buffer[self._at : self._at + 5]
        if head and head[0] != _HANDSHAKE:
            raise ProtocolError("TLS does not begin with a ClientHello")
        if len(head) < 5:
            return None
        size = int.from_bytes(head[3:5], "big")
        if head[1] != 3 or not 1 <= size <= _MAX_RECORD:
            raise ProtocolError("a TLS record is malformed")
        start, end = self._at + 5, self._at + 5 + size
        if end > MAX_HELLO:
            raise ProtocolError(f"a TLS ClientHello takes more than {MAX_HELLO} bytes")
        if len(self.buffer) < end:
            return None
        self._at = end
        return bytes(self.buffer[start:end])


class _Cursor:
    """A reader of consecutive length-prefixed vectors."""

    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0

    def __bool__(self) -> bool:
        return self._at < len(self._data)

    def take(self, size: int) -> bytes:
        """Return the next `size` bytes. Raises ProtocolError if there are fewer."""
        end = self._at + size
        if end > len(self._data):
            raise ProtocolError("a TLS ClientHello is malformed")
        piece, self._at = self._data[self._at : end], end
        return piece

    def number(self, size: int) -> int:
        """Return the next big-endian number of `size` bytes."""
        return int.from_bytes(self.take(size), "big")

    def vector(self, size: int) -> bytes:
        """Return the next vector, whose length field has `size` bytes."""
        return self.take(self.number(size))

    def end(self) -> None:
        """Check that no bytes are left. Raises ProtocolError otherwise."""
        if self:
            raise ProtocolError("a TLS ClientHello is malformed")


def _server_name(hello: _Cursor) -> str | None:
    hello.take(2 + 32)  # version, random
    hello.vector(1)  # session id
    hello.vector(2)  # cipher suites
    hello.vector(1)  # compression methods
    if not hello:
        return None
    extensions = _Cursor(hello.vector(2))
    hello.end()
    server_names: list[bytes] = []
    while extensions:
        kind, data = extensions.number(2), extensions.vector(2)
        if kind == _SERVER_NAME:
            server_names.append(data)
    if len(server_names) > 1:
        raise ProtocolError("a TLS ClientHello names its server twice")
    return _single_name(_Cursor(server_names[0])) if server_names else None


def _single_name(extension: _Cursor) -> str:
    names = _Cursor(extension.vector(2))
    extension.end()
    kind, name = names.number(1), names.vector(2)
    names.end()
    if kind != 0 or not _NAME.fullmatch(name):
        raise ProtocolError("a TLS ClientHello has an invalid server name")
    return name.decode("ascii").lower().removesuffix(".")
