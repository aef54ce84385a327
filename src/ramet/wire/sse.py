"""Encode and decode server-sent events exactly: `Parser` returns what `encode` received, for any division into reads.

The lines of such an event are text, ended by LF, CR or both. A body that these lines cannot represent (it contains a CR
or is not UTF-8) is sent as base64, and its event is named `<event>-base64`.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from ramet.core.errors import ProtocolError

BASE64 = "-base64"
#: A line that readers ignore: it shows readers and proxies that the sender is alive.
HEARTBEAT = b":\n\n"
MAX_EVENT = 64 * 1024 * 1024


class ServerSentEvent(NamedTuple):
    """An event. A reader resumes after its `id`."""

    event: str
    data: bytes
    id: str = ""


def encode(event: str, data: bytes, id: str = "") -> bytes:
    """Return one event as bytes; names and ids must not contain line ends."""
    if b"\r" in data or not _is_text(data):
        event, data = event + BASE64, base64.b64encode(data)
    head = f"id: {id}\nevent: {event}\ndata: " if id else f"event: {event}\ndata: "
    return b"%s%s\n\n" % (head.encode(), data.replace(b"\n", b"\ndata: ") if b"\n" in data else data)


def encode_numbered(event: str, bodies: Sequence[bytes], prefix: str, first: int) -> bytes:
    """Return events as `encode` does, one after the other, whose ids are the prefix with `first` and its followers."""
    text = b"".join(bodies)
    if not text.isascii() or b"\r" in text or b"\n" in text:
        return b"".join([encode(event, each, f"{prefix}{number}") for number, each in enumerate(bodies, first)])
    head, middle = f"id: {prefix}".encode(), f"\nevent: {event}\ndata: ".encode()
    return b"".join([b"%s%d%s%s\n\n" % (head, number, middle, each) for number, each in enumerate(bodies, first)])


def _is_text(data: bytes) -> bool:
    if data.isascii():
        return True
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


class Parser:
    """A parser that takes bytes and returns complete events."""

    def __init__(self, max_event: int = MAX_EVENT) -> None:
        """Create a parser; `max_event` bounds the bytes of one event."""
        self._max = max_event
        self._partial_line = bytearray()  #: bytes of a line whose end has not arrived
        self._after_cr = False
        self._event, self._id = "", ""
        self._data: list[bytes] = []
        self._size = 0

    def feed(self, data: bytes) -> Iterator[ServerSentEvent]:
        """Yield the events that end in these bytes. Raises ProtocolError if one is too large or is invalid base64."""
        for line in self._lines(data):
            if line:
                self._parse_line(line)
            elif self._data:
                yield self._build_event(b"\n".join(self._data))
                self._clear()
            else:
                self._clear()

    def _lines(self, data: bytes) -> Iterator[bytes]:
        if self._after_cr and data:
            data = data.removeprefix(b"\n")
            self._after_cr = False
        for line in data.splitlines(keepends=True):  # bytes split at LF, CR and CRLF only
            self._partial_line += line
            if len(self._partial_line) + self._size > self._max:
                raise ProtocolError(f"an event of more than {self._max} bytes")
            if line.endswith((b"\n", b"\r")):
                complete_line = bytes(self._partial_line).rstrip(b"\r\n")
                self._partial_line.clear()
                yield complete_line
        self._after_cr = data.endswith(b"\r") if data else self._after_cr

    def _parse_line(self, line: bytes) -> None:
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        match name:
            case b"data":
                self._data.append(value)
                self._size += len(line)
                if self._size > self._max:
                    raise ProtocolError(f"an event of more than {self._max} bytes")
            case b"event":
                self._event = value.decode(errors="replace")
            case b"id":
                self._id = value.decode(errors="replace")

    def _build_event(self, data: bytes) -> ServerSentEvent:
        if not self._event.endswith(BASE64):
            return ServerSentEvent(self._event or "message", data, self._id)
        try:
            data = base64.b64decode(data, validate=True)
        except binascii.Error:
            raise ProtocolError("an event that is not base64") from None
        return ServerSentEvent(self._event.removesuffix(BASE64), data, self._id)

    def _clear(self) -> None:
        self._event, self._size = "", 0
        self._data.clear()
