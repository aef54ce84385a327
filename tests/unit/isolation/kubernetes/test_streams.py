"""Tests of a line over the two descriptors of a pod's program: data is handled or left unread, and never piles up."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator

from ramet.isolation.kubernetes.connect.attach_line import ReconnectingLine
from ramet.isolation.kubernetes.connect.packets import PacketReader, pack
from ramet.isolation.kubernetes.entrypoint.stdio import StandardStreams
from ramet.wire.frames import Frame
from tests.support.lines import first_packet
from tests.support.waiting import eventually

PATIENCE_S = 60.0


class Pipe:
    """Other ends of a program's descriptors, as an attached kernel holds them."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def write(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    def hang_up(self) -> None:
        """Stop reading, so that a writer gets an error."""
        self.reader._transport.close()  # type: ignore[attr-defined]


@contextlib.asynccontextmanager
async def attached_program() -> AsyncIterator[tuple[StandardStreams, Pipe]]:
    """Yield a program's line, and the attached other end."""
    loop = asyncio.get_running_loop()
    read_end, into = os.pipe()
    out, write_end = os.pipe()
    reader = asyncio.StreamReader()
    with os.fdopen(read_end, "rb", 0), os.fdopen(write_end, "wb", 0):
        hearing, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(out, "rb", 0))
        protocol = asyncio.StreamReaderProtocol(asyncio.StreamReader())
        saying, _ = await loop.connect_write_pipe(lambda: protocol, os.fdopen(into, "wb", 0))
        wire = StandardStreams(read_end, write_end, PATIENCE_S)
        holding = asyncio.ensure_future(wire.wait_ended())
        try:
            yield wire, Pipe(reader, asyncio.StreamWriter(saying, protocol, None, loop))
        finally:
            holding.cancel()
            await asyncio.gather(holding, return_exceptions=True)
            saying.abort()
            hearing.close()
            await asyncio.sleep(0)


async def test_data_of_a_broken_connection_is_not_stored() -> None:
    """The connection is broken in one direction, and much data arrives from the other."""
    async with attached_program() as (wire, pipe):
        pipe.hang_up()
        await pipe.write(pack(1, first_packet()))
        await eventually(lambda: wire._carrying is not None and wire._carrying.done())

        for _ in range(1000):
            await pipe.write(pack(1, b"\x02" + bytes(10_000)))

        assert wire._packets.qsize() <= 1


async def test_both_ends_may_send_more_than_the_pipes_hold() -> None:
    """Every frame arrives once and in order, although both send more than one side may be ahead."""
    async with attached_program() as (wire, pipe), asyncio.timeout(180):
        sent_frames = [Frame(b"%d" % at, bytes(100_000)) for at in range(150)]
        line = ReconnectingLine(PATIENCE_S)

        async def come() -> AsyncIterator[bytes]:
            reader = PacketReader()
            while data := await pipe.reader.read(1 << 16):
                for packet in reader.feed(data):
                    yield packet.data

        async def say(line: ReconnectingLine) -> None:
            for frame in sent_frames:
                await line.send(frame)

        async def hear(line: ReconnectingLine) -> list[Frame | None]:
            return [await line.receive() for _ in sent_frames]

        carrying = asyncio.ensure_future(line.carry(come(), lambda packet: pipe.write(pack(1, packet))))
        try:
            _, _, received_here, received_there = await asyncio.gather(
                say(line), say(wire.line), hear(line), hear(wire.line)
            )
        finally:
            carrying.cancel()
            await asyncio.gather(carrying, return_exceptions=True)

        assert received_here == received_there == sent_frames


async def test_an_endless_line_ends_the_program() -> None:
    """The program reports the reason instead of waiting for a sender that it cannot understand."""
    async with attached_program() as (wire, pipe):
        receiving = asyncio.ensure_future(wire.line.receive())
        flooding = asyncio.ensure_future(pipe.write(bytes(17 << 20)))
        assert await receiving is None
        assert "a line of more than" in wire.line.end_reason
        flooding.cancel()
        await asyncio.gather(flooding, return_exceptions=True)
