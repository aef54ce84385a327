"""Encode and decode the channel's frames: a header of two lengths, a JSON control part, and a body of bytes.

    uint32 control length (1 … MAX_CONTROL) | uint32 body length (0 … MAX_BODY) | control | body

The module does no I/O. The control part is typed by `ramet.wire.guest_protocol`; the body is opaque here: values,
functions, files. The lengths are checked before any part of the frame is kept. Memory is allocated only for bytes that
have been received.
"""

from __future__ import annotations

import io
import struct
from typing import NamedTuple

from ramet.core.errors import ProtocolError

MAX_CONTROL = 1024 * 1024
MAX_BODY = 64 * 1024 * 1024
_HEADER = struct.Struct("!II")


class Frame(NamedTuple):
    control: bytes
    body: bytes = b""


def pack(control: bytes, body: bytes | bytearray | memoryview = b"") -> list[bytes | bytearray | memoryview]:
    """Return the parts of one frame, to be sent in order. Raises ProtocolError if a reader would refuse the frame."""
    header = head(control, len(body))
    return [header, body] if len(body) else [header]


def head(control: bytes, body_size: int) -> bytes:
    """Return the header and control part of one frame. Raises ProtocolError if a reader would refuse the frame."""
    _check(len(control), body_size)
    return _HEADER.pack(len(control), body_size) + control


class FrameReader:
    """A reader that takes bytes and returns complete frames. After a ProtocolError, every further call raises.

    The reader holds at most one frame and one read: frames before a bad header are returned first.
    """

    __slots__ = ("_body", "_buffer", "_control", "_is_broken", "_need")

    def __init__(self) -> None:
        self._buffer = bytearray()  #: received bytes that are not parsed yet
        self._need: tuple[int, int] | None = None  #: lengths of the current frame
        self._control = b""  #: control part of the frame whose body is incomplete
        self._body: io.BytesIO | None = None  #: collected in place: `getvalue` makes no copy
        self._is_broken = False

    @property
    def is_partial(self) -> bool:
        return bool(self._buffer) or self._body is not None

    @property
    def allowance_s(self) -> float:
        """Return how long the current frame may take: 10 s, plus 1 s for each MiB that its header announces."""
        return 10.0 + (sum(self._need) / 2**20 if self._need else 0.0)

    def feed(self, data: bytes) -> list[Frame]:
        """Add received bytes; return the frames that are now complete. Raises ProtocolError for a bad header."""
        if self._is_broken:
            raise ProtocolError("the channel was closed after a bad frame")
        frames: list[Frame] = []
        if self._body is not None and self._need is not None:
            missing = self._need[1] - self._body.tell()
            self._body.write(data[:missing])
            if len(data) < missing:
                return frames
            frames.append(Frame(self._control, self._body.getvalue()))
            self._control, self._body, self._need = b"", None, None
            data = data[missing:]
        self._buffer += data
        at, buffer = 0, self._buffer
        while len(buffer) - at >= _HEADER.size:
            if self._need is None:
                need = _HEADER.unpack_from(buffer, at)
                try:
                    _check(*need)
                except ProtocolError:
                    if frames:
                        break  # The next read meets this header first.
                    self._is_broken = True
                    self._buffer = bytearray()
                    raise
                self._need = need
            control = at + _HEADER.size
            body = control + self._need[0]
            end = body + self._need[1]
            if len(buffer) < body:
                break
            with memoryview(buffer) as view:
                if len(buffer) < end:
                    self._control, self._body = bytes(view[control:body]), io.BytesIO()
                    self._body.write(view[body:])
                    at = len(buffer)
                    break
                frames.append(Frame(bytes(view[control:body]), bytes(view[body:end])))
            at, self._need = end, None
        del buffer[:at]
        return frames


def _check(control: int, body: int) -> None:
    if not 1 <= control <= MAX_CONTROL:
        raise ProtocolError(f"a frame announces a control part of {control} bytes; 1 to {MAX_CONTROL} are accepted")
    if body > MAX_BODY:
        raise ProtocolError(f"a frame announces a body of {body} bytes; at most {MAX_BODY} are accepted")
