"""Tests of `isolation/transport/resuming.py` over real sockets: a broken connection only pauses a line."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from ramet.core.errors import Gone, ProtocolError
from ramet.isolation.remote.line import Line
from ramet.isolation.transport.resuming import LineTimeouts, ResumingLine
from ramet.wire.frames import Frame
from ramet.wire.resumable_stream import MAX_BUFFERED, ResumableStream
from tests.support.stream_transport import StreamTransport
from tests.support.waiting import eventually

NO_TIMEOUT = LineTimeouts(give_up_s=None)


class Wire:
    """Connection of two lines, which can be cut."""

    def __init__(self, one: StreamTransport, other: StreamTransport) -> None:
        self.one, self.other = one, other

    def cut(self) -> None:
        self.one.abort()


@asynccontextmanager
async def connected_lines(one: ResumingLine, other: ResumingLine) -> AsyncIterator[Wire]:
    """Connect both lines by a pair of sockets."""
    transports = []
    for end in socket.socketpair():
        reader, writer = await asyncio.open_connection(sock=end)
        transports.append(StreamTransport(reader, writer))
    carrying = [asyncio.ensure_future(line.carry(each)) for line, each in zip((one, other), transports, strict=True)]
    await eventually(lambda: one.is_connected and other.is_connected)
    try:
        yield Wire(*transports)
    finally:
        for each in transports:
            each.abort()
        await asyncio.gather(*carrying)


def numbered_frame(number: int, size: int = 0) -> Frame:
    return Frame(b"%d" % number, bytes(size))


async def receive_numbers(line: ResumingLine, count: int) -> list[int]:
    numbers: list[int] = []
    while len(numbers) < count:
        frame = await line.receive()
        assert frame is not None
        numbers.append(int(frame.control))
    return numbers


async def test_frames_pass_both_ways_over_successive_connections() -> None:
    """Each connection breaks under load; each frame arrives once and in order, and senders only wait."""
    kernel: Line = (own_line := ResumingLine(patience=NO_TIMEOUT))
    machine = ResumingLine(patience=NO_TIMEOUT)

    async def send(line: Line) -> None:
        for number in range(400):
            await line.send(numbered_frame(number, 60_000))

    async with asyncio.TaskGroup() as group:
        sending = [group.create_task(send(line)) for line in (kernel, machine)]
        hearing = [group.create_task(receive_numbers(line, 400)) for line in (own_line, machine)]
        breaks = 0
        while not all(task.done() for task in (*sending, *hearing)):
            async with connected_lines(own_line, machine) as wire:
                enough = own_line._delivered_number + 40
                await eventually(lambda: own_line._delivered_number > enough or all(task.done() for task in hearing))  # noqa: B023
                wire.cut()
            breaks += 1

    assert [task.result() for task in hearing] == [list(range(400))] * 2
    assert breaks > 3
    await asyncio.gather(own_line.close(), machine.close())


async def test_a_new_connection_replaces_one_that_seems_alive() -> None:
    """The machine may notice a broken connection before the kernel."""
    kernel, machine = ResumingLine(patience=NO_TIMEOUT), ResumingLine(patience=NO_TIMEOUT)
    async with connected_lines(kernel, machine), connected_lines(kernel, machine):
        await machine.send(numbered_frame(1))
        assert await receive_numbers(kernel, 1) == [1]
    await asyncio.gather(kernel.close(), machine.close())


async def test_frames_sent_before_the_end_arrive_before_it() -> None:
    """Frames that the other side reads later arrive, too; later senders get Gone."""
    kernel, machine = ResumingLine(patience=NO_TIMEOUT), ResumingLine(patience=NO_TIMEOUT)
    async with connected_lines(kernel, machine):
        for number in range(50):
            await kernel.send(numbered_frame(number, 100_000))
        await kernel.close()
        assert kernel.has_ended

        assert await receive_numbers(machine, 50) == list(range(50))
        assert await machine.receive() is None
        with pytest.raises(Gone):
            await machine.send(numbered_frame(1))
        with pytest.raises(Gone):
            await kernel.send(numbered_frame(1))
        assert await kernel.receive() is None


async def test_a_line_ends_without_a_connection_after_its_patience() -> None:
    """A receiver gets None, and a waiting sender gets Gone."""
    line = ResumingLine(patience=LineTimeouts(give_up_s=0.05))
    await line.send(numbered_frame(1, MAX_BUFFERED - 1000))

    with pytest.raises(Gone):
        await line.send(numbered_frame(2, 1000))
    assert await line.receive() is None


async def test_a_silent_connection_counts_as_broken() -> None:
    """The other end is there and reads everything; `carry` returns."""
    line = ResumingLine(patience=LineTimeouts(give_up_s=None, heartbeat_s=0.01, silent_s=0.05))
    end, other = socket.socketpair()
    reader, writer = await asyncio.open_connection(sock=end)
    with other:
        await line.carry(StreamTransport(reader, writer))
    assert not line.is_connected
    assert not line.has_ended
    await line.close()


async def test_heartbeats_keep_an_idle_connection_alive() -> None:
    """The connection outlives the allowed silence, with heartbeats at a hundredth of it: a busy machine delays some."""
    patience = LineTimeouts(give_up_s=None, heartbeat_s=0.02, silent_s=2.0)
    kernel, machine = ResumingLine(patience=patience), ResumingLine(patience=patience)
    async with connected_lines(kernel, machine) as wire:
        since = wire.one.heard_at
        await eventually(lambda: wire.one.heard_at - since > 2.5 or not kernel.is_connected)
        assert kernel.is_connected
    await asyncio.gather(kernel.close(), machine.close())


async def test_a_sender_waits_for_a_reader_that_does_not_read() -> None:
    """The sender continues once the other side has received the earlier frame."""
    kernel, machine = ResumingLine(patience=NO_TIMEOUT), ResumingLine(patience=NO_TIMEOUT)
    async with connected_lines(kernel, machine):
        await machine.send(numbered_frame(1, MAX_BUFFERED - 1000))
        waiting = asyncio.ensure_future(machine.send(numbered_frame(2, 1000)))
        await eventually(lambda: kernel._session.last_received == 1)
        assert not waiting.done()
        assert await receive_numbers(kernel, 1) == [1]
        await waiting
    await asyncio.gather(kernel.close(), machine.close())


async def test_a_side_that_breaks_the_protocol_ends_the_line() -> None:
    """The reader gets the earlier frames, then ProtocolError, then None."""
    line = ResumingLine(patience=NO_TIMEOUT)
    end, other = socket.socketpair()
    reader, writer = await asyncio.open_connection(sock=end)
    with other:
        cheat = ResumableStream()
        cheat.on_connected()
        cheat.send(numbered_frame(1))
        hello = cheat.next_packet()
        assert hello is not None
        cheat.feed(hello)  # as if it were the other's
        frame = cheat.next_packet()
        assert frame is not None
        for packet in (hello, frame, frame):
            other.sendall(len(packet).to_bytes(4, "big") + packet)
        await line.carry(StreamTransport(reader, writer))

    assert await receive_numbers(line, 1) == [1]
    with pytest.raises(ProtocolError):
        await line.receive()
    assert await line.receive() is None
