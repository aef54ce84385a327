"""A line with both ends in one process."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator

from ramet.isolation.remote.line import Line
from ramet.isolation.remote.messages import NodeMessage, encode
from ramet.wire.frames import Frame
from ramet.wire.resumable_stream import ResumableStream
from tests.support.stream_line import StreamLine


@contextlib.asynccontextmanager
async def two_ends() -> AsyncIterator[tuple[StreamLine, StreamLine]]:
    """Yield the two ends of one line, and close both in the end."""
    ends = [StreamLine(*await asyncio.open_connection(sock=each)) for each in socket.socketpair()]
    try:
        yield ends[0], ends[1]
    finally:
        for end in ends:
            await end.close()


async def send_message(line: Line, word: NodeMessage, body: bytes = b"") -> None:
    """Send a message over a line."""
    await line.send(Frame(encode(word), body))


def first_packet() -> bytes:
    """Return the first packet that one end of a resumable stream sends on a connection."""
    session = ResumableStream()
    session.on_connected()
    packet = session.next_packet()
    assert packet is not None
    return packet
