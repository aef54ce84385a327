"""Packets on a stream of bytes that may lose any part of itself, and be cut and joined anew: whole ones, or none.

A packet goes as one line: its check sum, the number of the connection that it is said on, its bytes, without line ends.
What was torn, and what an earlier connection left under way, is passed over; `ramet.wire.resumable_stream` says it
again.
"""

from __future__ import annotations

import struct
import zlib
from typing import NamedTuple

from ramet.core.errors import ProtocolError
from ramet.wire.resumable_stream import MAX_PACKET

END = b"\n"
_head = struct.Struct("!II")
_MOST = 2 * (MAX_PACKET + _head.size)  #: of a line whose every byte had to be written as two


class StdioPacket(NamedTuple):
    """One packet, and on which connection it was said."""

    connection: int
    data: bytes


def pack(connection: int, data: bytes) -> bytes:
    """A packet as it goes, with a line end before it, too: what was torn ends there."""
    number = connection.to_bytes(4, "big")
    whole = zlib.crc32(data, zlib.crc32(number)).to_bytes(4, "big") + number + data
    return END + whole.replace(b"\x1b", b"\x1b\x01").replace(b"\n", b"\x1b\x02") + END


class PacketReader:
    """Takes bytes as they come and gives back the packets that are whole. Raises ProtocolError at a line too long."""

    __slots__ = ("_buffer", "_seen")

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._seen = 0  #: of the buffer, where no line ends

    def feed(self, data: bytes) -> list[StdioPacket]:
        """Take what has arrived; returns the packets that it completes."""
        self._buffer += data
        if (end := self._buffer.rfind(END, self._seen)) < 0:
            self._seen = len(self._buffer)
            if self._seen > _MOST:
                raise ProtocolError(f"a line of more than {_MOST} bytes came")
            return []
        lines = bytes(self._buffer[:end]).split(END)
        del self._buffer[: end + 1]
        self._seen = len(self._buffer)
        return [packet for line in lines if (packet := _unpacked(line)) is not None]


def _unpacked(line: bytes) -> StdioPacket | None:
    whole = line.replace(b"\x1b\x02", b"\n").replace(b"\x1b\x01", b"\x1b")
    if len(whole) <= _head.size:
        return None
    check, connection = _head.unpack_from(whole)
    if zlib.crc32(whole[4:]) != check:
        return None
    return StdioPacket(connection, whole[_head.size :])
