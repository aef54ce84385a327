r"""Encode and decode frames on a program's stdin and stdout: a line of JSON, then as many bytes as its `size`.

    {"type": "chunk", "turn": 1, "size": 5}\\n
    hello

The module does no I/O. The line is an object; its `size` is 0 if absent. No byte separates a body from the next line.
Any language, including a shell, can read this format without a library, and a body passes unchanged. The messages are
in `ramet.wire.command_protocol`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from ramet.core.errors import ProtocolError
from ramet.wire.frames import Frame

MAX_LINE = 64 * 1024
MAX_BODY = 1024 * 1024  #: of a body from a program; a program splits larger data into several frames
_MAX_PREVIEW = 80  #: maximum number of characters shown of an invalid frame


class _Line(Struct):
    size: Annotated[int, Meta(ge=0)] = 0


class LineReader:
    """A reader that takes bytes and yields complete frames. It holds at most one frame and one read."""

    __slots__ = ("_buffer", "_line", "_mask", "_scanned_bytes", "_size")

    def __init__(self, mask: Callable[[str], str] = str) -> None:
        """Create a reader; `mask` removes from a line what an error must not show."""
        self._mask = mask
        self._buffer = bytearray()
        self._line: bytes | None = None  #: of the current frame, once it is complete
        self._size = 0
        self._scanned_bytes = 0  #: bytes of the buffer that contain no line end

    @property
    def is_partial(self) -> bool:
        return bool(self._buffer) or self._line is not None

    def feed(self, data: bytes) -> Iterator[Frame]:
        """Add received bytes; yield the completed frames. The caller must exhaust the iterator.

        Raises ProtocolError at an invalid frame, after yielding the frames before it; nothing may be fed afterwards.
        """
        self._buffer += data
        while (frame := self._next()) is not None:
            yield frame

    def _next(self) -> Frame | None:
        buffer = self._buffer
        if self._line is None:
            end = buffer.find(b"\n", self._scanned_bytes)
            if max(end, len(buffer) if end < 0 else 0) > MAX_LINE:
                raise ProtocolError(f"{_preview(buffer, self._mask)} has no end of a line within {MAX_LINE} bytes")
            if end < 0:
                self._scanned_bytes = len(buffer)
                return None
            self._line, self._size = bytes(buffer[:end]), _size(buffer[:end], self._mask)
            self._scanned_bytes = 0
            del buffer[: end + 1]
        if len(buffer) < self._size:
            return None
        frame = Frame(self._line, bytes(buffer[: self._size]))
        del buffer[: self._size]
        self._line = None
        return frame


def _size(line: bytearray, mask: Callable[[str], str]) -> int:
    try:
        size = msgspec.json.decode(line, type=_Line).size
    except (msgspec.DecodeError, UnicodeError, RecursionError) as problem:
        raise ProtocolError(
            f"{_preview(line, mask)} arrived where a frame must begin: a line of JSON ({problem})"
        ) from None
    if size > MAX_BODY:
        raise ProtocolError(f"a frame announces {size} bytes; at most {MAX_BODY} are accepted")
    return size


def _preview(data: bytes | bytearray, mask: Callable[[str], str]) -> str:
    """Return the beginning of a line. The whole line is masked first, because masking does not find partial secrets."""
    text = mask(bytes(data[:MAX_LINE]).decode(errors="replace"))
    return repr(text[:_MAX_PREVIEW] + "…" if len(text) > _MAX_PREVIEW else text)
