"""Tests of a line over breaking wires: every frame arrives once and in order, or both ends know that the line ended."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator

import pytest

from ramet.core.errors import Gone
from ramet.isolation.kubernetes.connect.attach_line import ReconnectingLine
from ramet.isolation.kubernetes.connect.packets import PacketReader, pack
from ramet.wire.frames import Frame

PATIENCE_S = 60.0


class Wire:
    """One-way connection that delivers bytes in pieces of any size, and may break after a number of bytes."""

    def __init__(self, dice: random.Random, breaks_after: int | None) -> None:
        self._dice, self._left = dice, breaks_after
        self._pieces: asyncio.Queue[bytes | None] = asyncio.Queue()

    async def write(self, packet: bytes) -> None:
        data = pack(1, packet)
        if self._left is not None:
            self._left -= len(data)
            if self._left < 0:
                self._pieces.put_nowait(data[: self._dice.randrange(len(data))])
                self._pieces.put_nowait(None)
                raise ConnectionResetError
        self._pieces.put_nowait(data)

    async def packets(self) -> AsyncIterator[bytes]:
        reader = PacketReader()
        while (piece := await self._pieces.get()) is not None:
            for packet in reader.feed(piece):
                yield packet.data


async def _carry_lines(one: ReconnectingLine, other: ReconnectingLine, there: Wire, back: Wire) -> None:
    async with asyncio.TaskGroup() as group:
        for line, into, out in ((one, there, back), (other, back, there)):

            async def carry(line: ReconnectingLine = line, into: Wire = into, out: Wire = out) -> None:
                with contextlib.suppress(ConnectionResetError):
                    await line.carry(out.packets(), into.write)
                into._pieces.put_nowait(None)

            group.create_task(carry())


@pytest.mark.parametrize("seed", range(5))
async def test_frames_over_breaking_wires_are_neither_lost_nor_repeated(seed: int) -> None:
    """Frames of all sizes pass concurrently in both directions."""
    dice = random.Random(seed)
    one, other = ReconnectingLine(PATIENCE_S), ReconnectingLine(PATIENCE_S)
    sent_frames = [Frame(b"%d" % at, dice.randbytes(dice.choice((0, 10, 100_000)))) for at in range(60)]

    async def talk(line: ReconnectingLine) -> list[Frame]:
        frames_received = list[Frame]()
        for frame in sent_frames:
            await line.send(frame)
            if dice.random() < 0.2:
                await asyncio.sleep(0)
        while len(frames_received) < len(sent_frames):
            next_one = await line.receive()
            assert next_one is not None
            frames_received.append(next_one)
        return frames_received

    async def wires() -> None:
        for attempt in range(1000):
            limit = dice.randrange(200_000) if attempt < 20 else None
            await _carry_lines(one, other, Wire(dice, limit), Wire(dice, None))

    async with asyncio.timeout(180):
        carrying = asyncio.ensure_future(wires())
        replies = await asyncio.gather(talk(one), talk(other))
        assert replies[0] == sent_frames
        assert replies[1] == sent_frames
        carrying.cancel()
        await asyncio.gather(carrying, return_exceptions=True)


async def test_the_end_of_a_line_arrives_after_every_frame() -> None:
    """The other end receives all frames, then None."""
    one, other = ReconnectingLine(PATIENCE_S), ReconnectingLine(PATIENCE_S)
    dice = random.Random(0)

    async with asyncio.timeout(180), asyncio.TaskGroup() as group:
        group.create_task(_carry_lines(one, other, Wire(dice, None), Wire(dice, None)))
        await one.send(Frame(b"hello"))
        await other.receive()
        await one.send(Frame(b"last"))
        await one.close()
        await one.close()
        assert await other.receive() == Frame(b"last")
        assert await other.receive() is None

    for line in (one, other):
        assert line.has_ended
        with pytest.raises(Gone):
            await line.send(Frame(b"more"))


async def test_a_failed_line_ends_waiting_senders_and_receivers() -> None:
    """A receiver gets None, and a sender that waits for room gets Gone."""
    line = ReconnectingLine(PATIENCE_S)
    receiving = asyncio.ensure_future(line.receive())
    sending = asyncio.ensure_future(_fill_line(line))
    await asyncio.sleep(0)

    line.fail("nobody came")

    assert await receiving is None
    with pytest.raises(Gone, match="nobody came"):
        await sending


async def test_a_lost_line_gives_the_receiver_the_reason() -> None:
    """The receiver gets ConnectionError after the frames that arrived before."""
    line = ReconnectingLine(PATIENCE_S)
    receiving = asyncio.ensure_future(line.receive())
    await asyncio.sleep(0)

    line.fail_line("nobody came")

    with pytest.raises(ConnectionError, match="nobody came"):
        await receiving


async def _fill_line(line: ReconnectingLine) -> None:
    while True:
        await line.send(Frame(b"x", bytes(1_000_000)))


async def test_a_silent_wire_counts_as_broken() -> None:
    """The line continues over another wire."""
    line = ReconnectingLine(0.05)

    async def nothing() -> AsyncIterator[bytes]:
        await asyncio.Event().wait()
        yield b""

    async def write(packet: bytes) -> None:
        """Drop the packet."""

    with pytest.raises(TimeoutError):
        await line.carry(nothing(), write)

    assert not line.has_ended
