"""Frames on a program's stdin and stdout as bytes, without any I/O: a line of JSON, and as many bytes as it says.

    {"type": "chunk", "turn": 1, "size": 5}\\n
    hello

The line is an object; its `size` is 0 where there is none, and nothing stands between a body and the next line. So any
language reads it without a library, a shell included, and a body passes byte for byte. What the lines say is in
`ramet.wire.command_protocol`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from ramet.core.errors import ProtocolError
from ramet.wire.frames import Frame

MAX_LINE = 64 * 1024
MAX_BODY = 1024 * 1024  #: of what a program says; whoever has more says more frames
_SHOWN = 80  #: characters of what is no frame


class _Line(Struct):
    size: Annotated[int, Meta(ge=0)] = 0


class LineReader:
    """Takes bytes as they come and gives back whole frames. It never holds more than one frame and one read."""

    __slots__ = ("_buffer", "_line", "_masked", "_seen", "_size")

    def __init__(self, masked: Callable[[str], str] = str) -> None:
        """`masked` takes out of a line what an error must not show of it."""
        self._masked = masked
        self._buffer = bytearray()
        self._line: bytes | None = None  #: of the frame under way, once it is whole
        self._size = 0
        self._seen = 0  #: bytes of the buffer in which there is no end of a line

    @property
    def is_partial(self) -> bool:
        """Whether a frame has begun and not ended."""
        return bool(self._buffer) or self._line is not None

    def feed(self, data: bytes) -> Iterator[Frame]:
        """Take what has arrived; gives the frames that it completes, to be read to the end.

        Raises ProtocolError where a frame is none, behind those before it; from then on nothing more may be fed.
        """
        self._buffer += data
        while (frame := self._next()) is not None:
            yield frame

    def _next(self) -> Frame | None:
        buffer = self._buffer
        if self._line is None:
            end = buffer.find(b"\n", self._seen)
            if max(end, len(buffer) if end < 0 else 0) > MAX_LINE:
                raise ProtocolError(f"{_shown(buffer, self._masked)} has no end of a line within {MAX_LINE} bytes")
            if end < 0:
                self._seen = len(buffer)
                return None
            self._line, self._size = bytes(buffer[:end]), _size(buffer[:end], self._masked)
            self._seen = 0
            del buffer[: end + 1]
        if len(buffer) < self._size:
            return None
        frame = Frame(self._line, bytes(buffer[: self._size]))
        del buffer[: self._size]
        self._line = None
        return frame


def _size(line: bytearray, masked: Callable[[str], str]) -> int:
    try:
        size = msgspec.json.decode(line, type=_Line).size
    except (msgspec.DecodeError, UnicodeError, RecursionError) as problem:
        raise ProtocolError(f"{_shown(line, masked)} came where a frame begins: a line of JSON ({problem})") from None
    if size > MAX_BODY:
        raise ProtocolError(f"a frame announces {size} bytes; at most {MAX_BODY} are accepted")
    return size


def _shown(data: bytes | bytearray, masked: Callable[[str], str]) -> str:
    """The beginning of a line; it is masked as a whole, as a part of what is to be masked is not found."""
    text = masked(bytes(data[:MAX_LINE]).decode(errors="replace"))
    return repr(text[:_SHOWN] + "…" if len(text) > _SHOWN else text)
