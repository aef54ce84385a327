"""Tests of the channel of guests over a real socket: a hostile guest cannot harm the host."""

from __future__ import annotations

import asyncio
import os
import pathlib
import socket
import struct
import time
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest

from ramet.concurrency.clock import FakeClock
from ramet.core.errors import ProtocolError, SpawnRefused
from ramet.spawn.sandbox import channel as doors
from ramet.spawn.sandbox import outbound
from ramet.spawn.sandbox.channel import GuestChannel, LargeReply, Reply
from ramet.spawn.sandbox.outbound import FileBody
from ramet.wire import frames
from ramet.wire.frames import FrameReader
from ramet.wire.guest_protocol import message_codec
from ramet.wire.guest_protocol.answer_data import Text
from ramet.wire.guest_protocol.guest_to_host import Done, GuestMessage, ListRuns, LoadCheckpoint, Note, Request, Send
from ramet.wire.guest_protocol.host_to_guest import Answer
from tests.support.waiting import eventually

LARGE = 3 * outbound.MAX_OUTBOUND
TURNS = 100  #: of the event loop: many more than a request needs


class RecordingHandler:
    """Handler that answers `Send` with its text, holds `ListRuns` until allowed, and records notes."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.may_list = asyncio.Event()
        self.active_count = self.max_active = 0
        self.reply_count = 0  #: large replies
        self.file: pathlib.Path | None = None

    async def large(self) -> Reply:
        self.reply_count += 1
        if self.file is not None:
            return Reply(None, FileBody(fd=os.open(self.file, os.O_RDONLY), offset=3, size=LARGE))
        return Reply(None, bytes(LARGE))

    async def answer(self, request: Request, body: bytes) -> Reply | LargeReply:
        if isinstance(request, LoadCheckpoint):
            return LargeReply(self.large)
        self.active_count += 1
        self.max_active = max(self.max_active, self.active_count)
        try:
            if isinstance(request, ListRuns):
                await self.may_list.wait()
            if isinstance(request, Send) and request.to == "nobody":
                raise SpawnRefused("depth", "no")
            return Reply(Text(text=request.text if isinstance(request, Send) else "listed"), body)
        finally:
            self.active_count -= 1

    def receive(self, message: GuestMessage, body: bytes) -> Coroutine[Any, Any, None] | None:
        if isinstance(message, Note):
            if message.text == "break":
                raise ValueError("not foreseen")
            self.notes.append(message.text)
        return None


class BusyHandler(RecordingHandler):
    """Handler that uses 1 s of fake processor time for each request, before and after a wait."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, makes: bool = False) -> None:
        super().__init__()
        self.used_s, self.has_begun, self.makes = 0.0, 0, makes
        self.may_make = asyncio.Event()
        monkeypatch.setattr(time, "thread_time", lambda: self.used_s)

    async def answer(self, request: Request, body: bytes) -> Reply | LargeReply:
        self.has_begun += 1
        if self.makes:
            return LargeReply(self.large)
        self.may_make.set()
        return await self.large()

    async def large(self) -> Reply:
        await self.may_make.wait()
        self.reply_count += 1
        self.used_s += 0.5
        await asyncio.sleep(0)
        self.used_s += 0.5
        return Reply(Text(text="done"))

    def has_made(self, count: int) -> bool:
        return self.reply_count >= count

    def has_noted(self, notes: list[str]) -> bool:
        return len(self.notes) >= len(notes)

    def receive(self, message: GuestMessage, body: bytes) -> Coroutine[Any, Any, None] | None:
        self.used_s += 1
        return super().receive(message, body)


async def let_tasks_run() -> None:
    """Let every task run that can run without time passing."""
    for _ in range(TURNS):
        await asyncio.sleep(0)


class Guest:
    """Guest's end of the channel, which sends any message or bytes."""

    def __init__(self, end: socket.socket) -> None:
        end.setblocking(False)
        self._end, self._reader, self._got = end, FrameReader(), list[frames.Frame]()

    async def say(self, message: GuestMessage, body: bytes = b"") -> None:
        await self.send(b"".join(bytes(piece) for piece in frames.pack(message_codec.encode(message), body)))

    async def send(self, data: bytes) -> None:
        await asyncio.get_running_loop().sock_sendall(self._end, data)

    async def hear(self) -> tuple[Answer, bytes]:
        while not self._got:
            data = await asyncio.get_running_loop().sock_recv(self._end, 65536)
            if not data:
                raise EOFError
            self._got += self._reader.feed(data)
        control, body = self._got.pop(0)
        answer = message_codec.from_host(control)
        assert isinstance(answer, Answer)
        return answer, body

    def leave(self) -> None:
        self._end.close()


@asynccontextmanager
async def open_channel(
    clock: FakeClock | None = None, handler: RecordingHandler | None = None
) -> AsyncIterator[tuple[GuestChannel, Guest, RecordingHandler]]:
    our_end, their_end = socket.socketpair()
    handler = handler or RecordingHandler()
    channel, guest = GuestChannel(handler, clock), Guest(their_end)
    await channel.open(our_end)
    try:
        yield channel, guest, handler
    finally:
        await channel.close()
        guest.leave()


async def test_an_unexpected_error_of_the_host_closes_the_channel() -> None:
    """An error while handling a note also ends the wait for the guest."""
    async with open_channel() as (channel, guest, _):
        await guest.say(Note(text="break"))
        with pytest.raises(ProtocolError, match=r"an error of the host: .*not foreseen"):
            await channel.wait_closed()


async def test_requests_are_answered_and_done_ends_the_channel() -> None:
    """Each answer has the number of its request and a body; `Done` is the end."""
    async with open_channel() as (channel, guest, _):
        await guest.say(Send(id=3, to="x", text="hello"), b"bytes")
        answer, body = await guest.hear()
        assert (answer.id, bytes(answer.data), body) == (3, b'{"text":"hello"}', b"bytes")
        await guest.say(Done(ok=True, json_size=2), b"17")
        finish = await channel.wait_closed()
        assert finish is not None
        assert finish.body == b"17"


async def test_a_refusal_is_sent_as_an_answer() -> None:
    """The answer has the number of the request and the type of the error; the channel stays open."""
    async with open_channel() as (_, guest, _desk):
        await guest.say(Send(id=1, to="nobody", text=""))
        answer, _ = await guest.hear()
        assert answer.error is not None
        assert answer.error.type == "SpawnRefused"
        await guest.say(Send(id=2, to="x", text="still here"))
        assert (await guest.hear())[0].id == 2


async def test_a_guest_that_closes_the_connection_has_no_result() -> None:
    """The end of the connection ends the channel without a result."""
    async with open_channel() as (channel, guest, _):
        guest.leave()
        assert await channel.wait_closed() is None


@pytest.mark.parametrize("number", [1, 0])
async def test_a_request_number_that_does_not_rise_closes_the_channel(number: int) -> None:
    """A repeated or lower number raises ProtocolError."""
    async with open_channel() as (channel, guest, _):
        await guest.say(Send(id=1, to="x", text=""))
        await guest.hear()
        await guest.say(Send(id=number, to="x", text=""))
        with pytest.raises(ProtocolError, match="must rise"):
            await channel.wait_closed()


@pytest.mark.parametrize(
    "data",
    [
        struct.pack("!II", 0, 0),
        struct.pack("!II", 2**31, 0),
        struct.pack("!II", 2**32 - 1, 2**32 - 1),
        struct.pack("!II", 10, frames.MAX_BODY + 1),
        struct.pack("!II", 3, 0) + b"{]}",
        struct.pack("!II", 15, 0) + b'{"type":"root"}',
        b"\x80\x04\x95" * 20,
    ],
)
async def test_bytes_that_are_no_message_close_the_channel(data: bytes) -> None:
    """Impossible lengths, bad JSON, unknown types and pickles raise ProtocolError, and have no other effect."""
    async with open_channel() as (channel, guest, handler):
        await guest.send(data)
        with pytest.raises(ProtocolError):
            await channel.wait_closed()
        assert handler.notes == []


async def test_the_number_of_concurrent_requests_is_bounded() -> None:
    """Further requests wait unread, and every one is answered later."""
    async with open_channel() as (_, guest, handler):
        count = doors.MAX_IN_FLIGHT * 3
        for number in range(1, count + 1):
            await guest.say(ListRuns(id=number))
        await eventually(lambda: handler.active_count >= doors.MAX_IN_FLIGHT)
        handler.may_list.set()
        assert sorted([(await guest.hear())[0].id for _ in range(count)]) == list(range(1, count + 1))
        assert handler.max_active == doors.MAX_IN_FLIGHT


async def test_a_flood_of_messages_is_slowed_down_and_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a burst the channel reads no faster than its rate, and drops no message."""
    monkeypatch.setattr(doors, "BURST", 10.0)
    monkeypatch.setattr(doors, "RATE_PER_S", 1_000.0)
    async with open_channel() as (channel, guest, handler):
        loop = asyncio.get_running_loop()
        start_time = loop.time()  # The channel reads while the guest still speaks.
        for number in range(100):
            await guest.say(Note(text=str(number)))
        await guest.say(Done(ok=True))
        assert await channel.wait_closed() is not None
        assert loop.time() - start_time > 0.05  # 91 messages beyond the burst at 1,000 a second: slower, never faster
        assert handler.notes == [str(number) for number in range(100)]


async def test_requests_take_a_fifth_of_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """The channel waits 4 s after a request that took 1 s of the loop, and loses no request."""
    clock, handler = FakeClock(), BusyHandler(monkeypatch)
    async with open_channel(clock, handler) as (_, guest, _desk):
        for number in range(1, 4):
            await guest.say(Send(id=number, to="x", text=""))
        for number in range(1, 4):
            await eventually(partial(handler.has_made, number))
            await let_tasks_run()
            assert handler.reply_count == number
            await clock.advance(3)
            await let_tasks_run()
            assert handler.reply_count == number
            await clock.advance(1)
        assert [(await guest.hear())[0].id for _ in range(3)] == [1, 2, 3]


async def test_large_replies_take_a_fifth_of_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """Large replies are made later and one at a time, with the same waits, however many requests have begun."""
    clock, handler = FakeClock(), BusyHandler(monkeypatch, makes=True)
    async with open_channel(clock, handler) as (_, guest, _desk):
        for number in range(1, 4):
            await guest.say(Send(id=number, to="x", text=""))
        await eventually(lambda: handler.has_begun == 3)
        handler.may_make.set()
        for number in range(1, 4):
            await eventually(partial(handler.has_made, number))
            await let_tasks_run()
            assert handler.reply_count == number
            await clock.advance(3)
            await let_tasks_run()
            assert handler.reply_count == number
            await clock.advance(1)


async def test_notes_take_a_fifth_of_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every message is charged alike, and `Done` arrives after the wait."""
    clock, handler = FakeClock(), BusyHandler(monkeypatch)
    async with open_channel(clock, handler) as (channel, guest, _):
        await guest.say(Note(text="1"))
        await guest.say(Note(text="2"))
        await guest.say(Done(ok=True))
        closing = asyncio.ensure_future(channel.wait_closed())
        for notes in (["1"], ["1", "2"]):
            await eventually(partial(handler.has_noted, notes))
            await let_tasks_run()
            assert handler.notes == notes
            assert not closing.done()
            await clock.advance(4)
        assert await closing is not None


async def test_requests_begin_one_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other tasks run after the beginning of each of ten requests that arrive together."""
    order: list[str] = []

    class Noting(RecordingHandler):
        async def answer(self, request: Request, body: bytes) -> Reply | LargeReply:
            order.append("request")
            asyncio.get_running_loop().call_soon(order.append, "other")
            return Reply()

    async with open_channel(handler=Noting()) as (_, guest, _desk):
        messages = [message_codec.encode(Send(id=number, to="x", text="")) for number in range(1, 11)]
        await guest.send(b"".join(bytes(piece) for each in messages for piece in frames.pack(each)))
        for _ in range(10):
            await guest.hear()
        await eventually(lambda: len(order) == 20)
        assert order == ["request", "other"] * 10


async def test_an_unfinished_frame_closes_the_channel(monkeypatch: pytest.MonkeyPatch) -> None:
    """The time of a frame counts from its first byte, so single bytes do not hold it open."""
    monkeypatch.setattr(FrameReader, "allowance_s", property(lambda _: 0.05))
    async with open_channel() as (channel, guest, _):
        await guest.send(struct.pack("!II", 100, 0))
        trickling = asyncio.create_task(_trickle(guest))
        try:
            with pytest.raises(ProtocolError, match="not completed in time"):
                await asyncio.wait_for(channel.wait_closed(), 180)
        finally:
            trickling.cancel()
            await asyncio.wait([trickling])


async def _trickle(guest: Guest) -> None:
    for _ in range(90):
        await guest.send(b" ")
        await asyncio.sleep(0.01)


async def test_sending_waits_for_a_guest_that_does_not_read() -> None:
    """The outbound buffer is bounded, and the guest gets all messages once it reads again."""
    async with open_channel() as (channel, guest, _):
        big = bytes(1024 * 1024)
        telling = [asyncio.create_task(channel.send(Answer(id=number), big)) for number in range(30)]
        for _ in range(100):
            await asyncio.sleep(0)
        assert sum(task.done() for task in telling) <= outbound.MAX_OUTBOUND // len(big) + 2
        for number in range(30):
            answer, body = await guest.hear()
            assert (answer.id, len(body)) == (number, len(big))
        await asyncio.wait(telling)


async def test_large_replies_are_made_one_at_a_time() -> None:
    """The host makes one reply for a guest that does not read, and each of the others in order once it reads."""
    async with open_channel() as (_, guest, handler):
        for number in range(1, 31):
            await guest.say(LoadCheckpoint(id=number))
        await eventually(lambda: handler.reply_count)
        for _turn in range(100):
            await asyncio.sleep(0)
        assert handler.reply_count == 1
        for number in range(1, 31):
            answer, body = await guest.hear()
            assert (answer.id, len(body)) == (number, LARGE)
        assert handler.reply_count == 30


async def test_a_body_is_sent_from_a_file(tmp_path: pathlib.Path) -> None:
    """The channel sends the whole body from its offset in the file."""
    async with open_channel() as (_, guest, handler):
        content = bytes(range(256)) * (LARGE // 256 + 1)
        handler.file = tmp_path / "large"
        handler.file.write_bytes(content)
        await guest.say(LoadCheckpoint(id=1))
        _, body = await guest.hear()
        assert body == content[3 : 3 + LARGE]


async def test_a_file_that_is_too_short_ends_the_channel(tmp_path: pathlib.Path) -> None:
    """A message that is cut short is followed by no other message, which the guest would take for the rest."""
    async with open_channel() as (channel, guest, handler):
        handler.file = tmp_path / "short"
        handler.file.write_bytes(bytes(1000))
        await guest.say(LoadCheckpoint(id=1))
        with pytest.raises(ProtocolError, match="too early"):
            await channel.wait_closed()


async def test_no_message_is_handled_while_the_guest_does_not_read() -> None:
    """Notes that follow unread replies are handled once the guest reads."""
    async with open_channel() as (_, guest, handler):
        await guest.say(LoadCheckpoint(id=1))
        await eventually(lambda: handler.reply_count)
        for _turn in range(100):
            await asyncio.sleep(0)
        await guest.say(Note(text="behind"))
        for _turn in range(100):
            await asyncio.sleep(0)
        assert handler.notes == []
        await guest.hear()
        await eventually(lambda: handler.notes == ["behind"])


async def test_a_guest_that_does_not_read_for_300_s_is_closed() -> None:
    """The channel closes after MAX_UNREAD_S and not earlier, with the reason."""
    clock = FakeClock()
    async with open_channel(clock) as (channel, guest, handler):
        await guest.say(LoadCheckpoint(id=1))
        await eventually(lambda: clock.sleeping)
        closing = asyncio.ensure_future(channel.wait_closed())
        await clock.advance(outbound.MAX_UNREAD_S - 1)
        assert not closing.done()
        await clock.advance(1)
        with pytest.raises(ProtocolError, match="did not read its channel for 300 s"):
            await closing
        assert handler.reply_count == 1


async def test_a_frozen_guest_that_does_not_read_stays_connected() -> None:
    """The time in which it is frozen does not count; thawed, it has all of MAX_UNREAD_S."""
    clock = FakeClock()
    async with open_channel(clock) as (channel, guest, _):
        await guest.say(LoadCheckpoint(id=1))
        await eventually(lambda: clock.sleeping)
        closing = asyncio.ensure_future(channel.wait_closed())
        channel.set_frozen(True)
        await clock.advance(3 * outbound.MAX_UNREAD_S)
        assert not closing.done()
        channel.set_frozen(False)
        await clock.advance(outbound.MAX_UNREAD_S - 1)
        assert not closing.done()
        await clock.advance(1)
        with pytest.raises(ProtocolError, match="did not read its channel for 300 s"):
            await closing


async def test_a_frozen_guest_has_its_time_for_a_message_when_it_is_thawed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A message that was begun before a freeze may be completed after it."""
    monkeypatch.setattr(FrameReader, "allowance_s", 0.0)
    async with open_channel() as (channel, guest, _):
        channel.set_frozen(True)
        await guest.send(b"\0")
        await eventually(lambda: channel.received_bytes)
        await let_tasks_run()
        closing = asyncio.ensure_future(channel.wait_closed())
        await let_tasks_run()
        assert not closing.done()
        channel.set_frozen(False)
        with pytest.raises(ProtocolError, match="not completed in time"):
            await closing


async def test_a_guest_that_reads_slowly_stays_connected() -> None:
    """Each read within the time limit begins the limit anew."""
    clock = FakeClock()
    async with open_channel(clock) as (channel, guest, _):
        for number in range(1, 4):
            await guest.say(LoadCheckpoint(id=number))
        closing = asyncio.ensure_future(channel.wait_closed())
        for number in range(1, 4):
            await eventually(lambda: clock.sleeping)
            await clock.advance(outbound.MAX_UNREAD_S * 0.8)
            assert (await guest.hear())[0].id == number
        assert not closing.done()
        closing.cancel()


async def test_a_guest_that_waits_for_an_answer_stays_connected() -> None:
    """No time limit runs while nothing waits to be read."""
    clock = FakeClock()
    async with open_channel(clock) as (_, guest, handler):
        await guest.say(ListRuns(id=1))
        await eventually(lambda: handler.active_count)
        await clock.advance(100 * outbound.MAX_UNREAD_S)
        handler.may_list.set()
        assert (await guest.hear())[0].id == 1
