"""The part of WebSocket (RFC 6455) that ramet uses: the handshake, and complete binary messages. No I/O.

Both ends of a connection are ramet's, but intermediaries may not be. So ramet reads strictly and sends the simplest
form: no extension, no text, no subprotocol, each message in one frame. Messages that an intermediary split into
fragments are reassembled.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import struct
from collections.abc import Mapping
from typing import Final, NamedTuple

from ramet.core.errors import ProtocolError

MAX_HEAD: Final = 8 * 1024  #: bytes of the head of a request or response
BINARY: Final = 2
CLOSE: Final = 8
PING: Final = 9
PONG: Final = 10

_CONTINUED, _MAX_CONTROL = 0, 125
_GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"


class Head(NamedTuple):
    """The first line of a request or a response in its three parts, and its headers, names in lower case."""

    start: tuple[str, str, str]
    headers: Mapping[str, str]


def read_head(data: bytes) -> Head:
    """Parse a head, up to and including its empty line. Raises ProtocolError if the head is malformed or ambiguous."""
    if len(data) > MAX_HEAD or not data.endswith(b"\r\n\r\n") or not data.isascii():
        raise ProtocolError("not the head of an HTTP message")
    first, *lines = data[:-4].decode("ascii").split("\r\n")
    start = first.split(" ", 2)
    headers: dict[str, str] = {}
    for line in lines:
        name, colon, value = line.partition(":")
        if not colon or not name.replace("-", "").isalnum() or name.lower() in headers or "\0" in value:
            raise ProtocolError("a header has no name, or is repeated")
        headers[name.lower()] = value.strip(" \t")
    if len(start) != 3 or any(ord(each) < 32 for each in data[:-4].decode("ascii").replace("\r\n", "")):
        raise ProtocolError("a head does not begin with three words, or contains control characters")
    return Head((start[0], start[1], start[2]), headers)


def request(host: str, path: str, nonce: bytes, headers: Mapping[str, str]) -> bytes:
    """Return a client's handshake request; `nonce` is 16 random bytes."""
    return _head(
        f"GET {path} HTTP/1.1",
        {
            "Host": host,
            "Upgrade": "websocket",
            "Connection": "Upgrade",
            "Sec-WebSocket-Key": base64.b64encode(nonce).decode(),
            "Sec-WebSocket-Version": "13",
            **headers,
        },
    )


def nonce_of(head: Head) -> str | None:
    """Return the key that the answer must use; None if the request does not ask for a WebSocket."""
    nonce, headers = head.headers.get("sec-websocket-key", ""), head.headers
    is_upgrade = head.start[0] == "GET" and head.start[2] == "HTTP/1.1" and len(nonce) == 24
    is_upgrade = (
        is_upgrade and headers.get("sec-websocket-version") == "13" and _asks_upgrade(headers) and "host" in headers
    )
    return nonce if is_upgrade and "content-length" not in headers and "transfer-encoding" not in headers else None


def answer(nonce: str, headers: Mapping[str, str]) -> bytes:
    """Return a server's response that accepts the handshake."""
    handshake_headers = {"Upgrade": "websocket", "Connection": "Upgrade", "Sec-WebSocket-Accept": _accept(nonce)}
    return _head("HTTP/1.1 101 Switching Protocols", {**handshake_headers, **headers})


def check_answer(head: Head, nonce: bytes) -> None:
    """Check that the server accepted. Raises ProtocolError with its status otherwise."""
    if head.start[:2] != ("HTTP/1.1", "101"):
        raise ProtocolError(f"a WebSocket was refused: {head.start[1][:20]}")
    headers = head.headers
    expected = _accept(base64.b64encode(nonce).decode())
    if not _asks_upgrade(headers) or not hmac.compare_digest(headers.get("sec-websocket-accept", ""), expected):
        raise ProtocolError("the peer did not accept the WebSocket")
    if "sec-websocket-extensions" in headers or "sec-websocket-protocol" in headers:
        raise ProtocolError("a WebSocket was accepted with an extension or protocol that was not requested")


def _asks_upgrade(headers: Mapping[str, str]) -> bool:
    tokens = [each.strip().lower() for each in headers.get("connection", "").split(",")]
    return "upgrade" in tokens and headers.get("upgrade", "").lower() == "websocket"


def _accept(nonce: str) -> str:
    return base64.b64encode(hashlib.sha1(nonce.encode() + _GUID, usedforsecurity=False).digest()).decode()


def _head(start: str, headers: Mapping[str, str]) -> bytes:
    lines = [start, *(f"{name}: {value}" for name, value in headers.items())]
    if any(mark in line for line in lines for mark in "\r\n\0"):
        raise ProtocolError("a header contains a line break or NUL")
    return ("\r\n".join(lines) + "\r\n\r\n").encode("ascii")


# ---- messages -------------------------------------------------------------------------------------------------------


class Message(NamedTuple):
    """A complete message: BINARY, CLOSE, PING or PONG, and its data."""

    kind: int
    data: bytes


def pack(kind: int, data: bytes, mask: bytes | None = None) -> bytes:
    """Return a message as one frame. A client masks each frame with four new random bytes, a server never masks."""
    size = len(data)
    bit = 0x80 if mask is not None else 0
    if size < 126:
        head = struct.pack("!BB", 0x80 | kind, bit | size)
    elif size < 2**16:
        head = struct.pack("!BBH", 0x80 | kind, bit | 126, size)
    else:
        head = struct.pack("!BBQ", 0x80 | kind, bit | 127, size)
    return head + data if mask is None else b"".join((head, mask, _apply_mask(data, mask)))


class MessageReader:
    """A reader that takes bytes and returns complete messages. After a ProtocolError it must not be used.

    A length is checked before any of its bytes are kept. The reader holds at most one message and one read.
    """

    __slots__ = ("_buffer", "_is_server", "_max_size", "_parts", "_size", "announced_size")

    def __init__(self, *, is_server: bool, max_size: int) -> None:
        self._is_server, self._max_size = is_server, max_size
        self._buffer = bytearray()
        self._parts: list[bytes] = []  #: fragments of the current message
        self._size = 0  #: bytes of the fragments
        self.announced_size: int | None = None  #: known size in bytes of the current message; None: there is none

    def feed(self, data: bytes) -> list[Message]:
        """Add received bytes; return the messages that are now complete. Raises ProtocolError for an invalid frame."""
        messages: list[Message] = []
        buffer, at, self.announced_size = self._buffer, 0, None
        buffer += data
        while True:
            head = self._read_head(buffer, at)
            if head is None:
                break
            final, kind, begin, size, mask = head
            if len(buffer) < begin + size:
                self.announced_size = self._size + size
                break
            payload = bytes(buffer[begin : begin + size])
            at = begin + size
            if mask is not None:
                payload = _apply_mask(payload, mask)
            if kind >= CLOSE:
                messages.append(Message(kind, payload))
                continue
            self._parts.append(payload)
            self._size += size
            if final:
                messages.append(Message(BINARY, b"".join(self._parts)))
                self._parts, self._size = [], 0
        del buffer[:at]
        if self.announced_size is None and (buffer or self._parts):
            self.announced_size = self._size
        return messages

    def _read_head(self, buffer: bytearray, at: int) -> tuple[bool, int, int, int, bytes | None] | None:
        """Return whether a frame is final, its kind, payload offset, payload size and mask; None while incomplete."""
        if len(buffer) - at < 2:
            return None
        first, second = buffer[at], buffer[at + 1]
        final, kind, size = bool(first & 0x80), first & 0x0F, second & 0x7F
        data_kind = BINARY if not self._parts else _CONTINUED
        if first & 0x70 or kind not in (data_kind, CLOSE, PING, PONG) or bool(second & 0x80) != self._is_server:
            raise ProtocolError(f"a WebSocket frame begins with {first:#04x} {second:#04x}, which is not accepted")
        if kind >= CLOSE and (not final or size > _MAX_CONTROL):
            raise ProtocolError("a control frame of a WebSocket is too long, or fragmented")
        if len(self._parts) >= 1024:
            raise ProtocolError("a message of a WebSocket has more than 1024 fragments")
        at += 2
        if size >= 126:
            wide = "!H" if size == 126 else "!Q"
            if len(buffer) - at < struct.calcsize(wide):
                return None
            size = struct.unpack_from(wide, buffer, at)[0]
            at += struct.calcsize(wide)
            if size < (126 if wide == "!H" else 2**16):
                raise ProtocolError("the length of a WebSocket frame is longer than necessary")
        if kind < CLOSE and self._size + size > self._max_size:
            raise ProtocolError(
                f"a message of {self._size + size} bytes arrives; at most {self._max_size} are accepted"
            )
        if not self._is_server:
            return final, kind, at, size, None
        if len(buffer) - at < 4:
            return None
        return final, kind, at + 4, size, bytes(buffer[at : at + 4])


def _apply_mask(data: bytes, mask: bytes) -> bytes:
    size = len(data)
    key = int.from_bytes((mask * (size // 4 + 1))[:size], "little")
    return (int.from_bytes(data, "little") ^ key).to_bytes(size, "little")
