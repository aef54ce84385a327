"""A line over wires that break: every frame comes, once, in order, or both ends know that the line has ended."""

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
    """Bytes from one end to another, in pieces of any size; `lose` makes it break somewhere."""

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


async def _joined(one: ReconnectingLine, other: ReconnectingLine, there: Wire, back: Wire) -> None:
    async with asyncio.TaskGroup() as group:
        for line, into, out in ((one, there, back), (other, back, there)):

            async def carry(line: ReconnectingLine = line, into: Wire = into, out: Wire = out) -> None:
                with contextlib.suppress(ConnectionResetError):
                    await line.carry(out.packets(), into.write)
                into._pieces.put_nowait(None)

            group.create_task(carry())


@pytest.mark.parametrize("seed", range(5))
async def test_nothing_is_lost_or_repeated_over_wires_that_break(seed: int) -> None:
    """Both ways at once, with frames of all sizes."""
    dice = random.Random(seed)
    one, other = ReconnectingLine(PATIENCE_S), ReconnectingLine(PATIENCE_S)
    sent = [Frame(b"%d" % at, dice.randbytes(dice.choice((0, 10, 100_000)))) for at in range(60)]

    async def talk(line: ReconnectingLine) -> list[Frame]:
        heard = list[Frame]()
        for frame in sent:
            await line.send(frame)
            if dice.random() < 0.2:
                await asyncio.sleep(0)
        while len(heard) < len(sent):
            next_one = await line.receive()
            assert next_one is not None
            heard.append(next_one)
        return heard

    async def wires() -> None:
        for again in range(1000):
            limit = dice.randrange(200_000) if again < 20 else None
            await _joined(one, other, Wire(dice, limit), Wire(dice, None))

    async with asyncio.timeout(180):
        carrying = asyncio.ensure_future(wires())
        said = await asyncio.gather(talk(one), talk(other))
        assert said[0] == sent
        assert said[1] == sent
        carrying.cancel()
        await asyncio.gather(carrying, return_exceptions=True)


async def test_an_end_is_told_after_all_that_was_said() -> None:
    """The other end hears everything, and then that it is over."""
    one, other = ReconnectingLine(PATIENCE_S), ReconnectingLine(PATIENCE_S)
    dice = random.Random(0)

    async with asyncio.timeout(180), asyncio.TaskGroup() as group:
        group.create_task(_joined(one, other, Wire(dice, None), Wire(dice, None)))
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


async def test_who_waits_is_told_of_the_end() -> None:
    """Waiting to receive, or for room to send."""
    line = ReconnectingLine(PATIENCE_S)
    receiving = asyncio.ensure_future(line.receive())
    sending = asyncio.ensure_future(_fill(line))
    await asyncio.sleep(0)

    line.fail("nobody came")

    assert await receiving is None
    with pytest.raises(Gone, match="nobody came"):
        await sending


async def test_a_line_that_is_lost_says_why() -> None:
    """To who receives, once what had come before is received."""
    line = ReconnectingLine(PATIENCE_S)
    receiving = asyncio.ensure_future(line.receive())
    await asyncio.sleep(0)

    line.fail_line("nobody came")

    with pytest.raises(ConnectionError, match="nobody came"):
        await receiving


async def _fill(line: ReconnectingLine) -> None:
    while True:
        await line.send(Frame(b"x", bytes(1_000_000)))


async def test_a_wire_on_which_nothing_comes_is_broken() -> None:
    """Whatever it says of itself; the line goes on, over another one."""
    line = ReconnectingLine(0.05)

    async def nothing() -> AsyncIterator[bytes]:
        await asyncio.Event().wait()
        yield b""

    async def write(packet: bytes) -> None:
        """It goes nowhere."""

    with pytest.raises(TimeoutError):
        await line.carry(nothing(), write)

    assert not line.has_ended
