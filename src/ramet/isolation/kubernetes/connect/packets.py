"""Packets on a byte stream that may lose any part, and break and reconnect. A packet arrives whole, or not at all.

A packet is one line: its checksum, the number of its connection, and its bytes, without line ends. The reader skips
damaged packets and rests of an earlier connection; `ramet.wire.resumable_stream` sends the packets again.
"""

from __future__ import annotations

import struct
import zlib
from typing import NamedTuple

from ramet.core.errors import ProtocolError
from ramet.wire.resumable_stream import MAX_PACKET

END = b"\n"
_head = struct.Struct("!II")
_MOST = 2 * (MAX_PACKET + _head.size)  #: the length of a line in which every byte is escaped to two


class StdioPacket(NamedTuple):
    """A packet, and the number of its connection."""

    connection: int
    data: bytes


def pack(connection: int, data: bytes) -> bytes:
    """Encode a packet. A line end before it ends any damaged packet."""
    number = connection.to_bytes(4, "big")
    packet = zlib.crc32(data, zlib.crc32(number)).to_bytes(4, "big") + number + data
    return END + packet.replace(b"\x1b", b"\x1b\x01").replace(b"\n", b"\x1b\x02") + END


class PacketReader:
    """A decoder that takes bytes in any pieces and returns whole packets.

    Raises ProtocolError for a line that is too long.
    """

    __slots__ = ("_buffer", "_searched_length")

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._searched_length = 0  #: the length of the buffer's start that has no line end

    def feed(self, data: bytes) -> list[StdioPacket]:
        """Take received bytes; return the packets that they complete."""
        self._buffer += data
        if (end := self._buffer.rfind(END, self._searched_length)) < 0:
            self._searched_length = len(self._buffer)
            if self._searched_length > _MOST:
                raise ProtocolError(f"a line of more than {_MOST} bytes came")
            return []
        lines = bytes(self._buffer[:end]).split(END)
        del self._buffer[: end + 1]
        self._searched_length = len(self._buffer)
        return [packet for line in lines if (packet := _unpack(line)) is not None]


def _unpack(line: bytes) -> StdioPacket | None:
    packet = line.replace(b"\x1b\x02", b"\n").replace(b"\x1b\x01", b"\x1b")
    if len(packet) <= _head.size:
        return None
    check, connection = _head.unpack_from(packet)
    if zlib.crc32(packet[4:]) != check:
        return None
    return StdioPacket(connection, packet[_head.size :])
