"""The guests' channel, over a real socket: what a hostile guest may do to the host is nothing."""

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
from ramet.core.outcome import ErrorInfo
from ramet.spawn.sandbox import channel as doors
from ramet.spawn.sandbox import outbound
from ramet.spawn.sandbox.channel import GuestChannel, LargeReply, Reply
from ramet.spawn.sandbox.outbound import FileBody
from ramet.wire import frames, guest_protocol
from ramet.wire.frames import FrameReader
from ramet.wire.guest_protocol import Answer, Done, GuestMessage, ListRuns, LoadCheckpoint, Note, Request, Send, Text
from tests.support.waiting import eventually

LARGE = 3 * outbound.MAX_OUTBOUND
TURNS = 100  #: of the event loop: many more than a request needs


class Desk:
    """Answers `send` with its text, holds `list_runs` until told, and remembers what it was told."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.may_list = asyncio.Event()
        self.working = self.most = 0
        self.made = 0  #: large replies
        self.file: pathlib.Path | None = None

    async def large(self) -> Reply:
        self.made += 1
        if self.file is not None:
            return Reply(None, FileBody(fd=os.open(self.file, os.O_RDONLY), offset=3, size=LARGE))
        return Reply(None, bytes(LARGE))

    async def answer(self, request: Request, body: bytes) -> Reply | LargeReply:
        if isinstance(request, LoadCheckpoint):
            return LargeReply(self.large)
        self.working += 1
        self.most = max(self.most, self.working)
        try:
            if isinstance(request, ListRuns):
                await self.may_list.wait()
            if isinstance(request, Send) and request.to == "nobody":
                raise SpawnRefused("depth", "no")
            return Reply(Text(text=request.text if isinstance(request, Send) else "listed"), body)
        finally:
            self.working -= 1

    def receive(self, said: GuestMessage, body: bytes) -> Coroutine[Any, Any, None] | None:
        if isinstance(said, Note):
            if said.text == "break":
                raise ValueError("not foreseen")
            self.notes.append(said.text)
        return None

    def failed(self, error: Exception) -> tuple[ErrorInfo, dict[str, Any]]:
        return ErrorInfo(type=type(error).__name__, message=str(error)), {}


class Busy(Desk):
    """Takes 1 s of the processor for each request, by a clock of its own, before and after a wait."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, makes: bool = False) -> None:
        super().__init__()
        self.used_s, self.begun, self.makes = 0.0, 0, makes
        self.may_make = asyncio.Event()
        monkeypatch.setattr(time, "thread_time", lambda: self.used_s)

    async def answer(self, request: Request, body: bytes) -> Reply | LargeReply:
        self.begun += 1
        if self.makes:
            return LargeReply(self.large)
        self.may_make.set()
        return await self.large()

    async def large(self) -> Reply:
        await self.may_make.wait()
        self.made += 1
        self.used_s += 0.5
        await asyncio.sleep(0)
        self.used_s += 0.5
        return Reply(Text(text="done"))

    def has_made(self, count: int) -> bool:
        return self.made >= count

    def has_noted(self, notes: list[str]) -> bool:
        return len(self.notes) >= len(notes)

    def receive(self, said: GuestMessage, body: bytes) -> Coroutine[Any, Any, None] | None:
        self.used_s += 1
        return super().receive(said, body)


async def turns() -> None:
    """Let everything run that may run without time going by."""
    for _ in range(TURNS):
        await asyncio.sleep(0)


class Guest:
    """The other end, which says what it likes."""

    def __init__(self, end: socket.socket) -> None:
        end.setblocking(False)
        self._end, self._reader, self._got = end, FrameReader(), list[frames.Frame]()

    async def say(self, said: GuestMessage, body: bytes = b"") -> None:
        await self.send(b"".join(bytes(piece) for piece in frames.pack(guest_protocol.encode(said), body)))

    async def send(self, data: bytes) -> None:
        await asyncio.get_running_loop().sock_sendall(self._end, data)

    async def hear(self) -> tuple[Answer, bytes]:
        while not self._got:
            data = await asyncio.get_running_loop().sock_recv(self._end, 65536)
            if not data:
                raise EOFError
            self._got += self._reader.feed(data)
        control, body = self._got.pop(0)
        told = guest_protocol.from_host(control)
        assert isinstance(told, Answer)
        return told, body

    def leave(self) -> None:
        self._end.close()


@asynccontextmanager
async def opened(
    clock: FakeClock | None = None, desk: Desk | None = None
) -> AsyncIterator[tuple[GuestChannel, Guest, Desk]]:
    ours, theirs = socket.socketpair()
    desk = desk or Desk()
    door, guest = GuestChannel(desk, clock), Guest(theirs)
    await door.open(ours)
    try:
        yield door, guest, desk
    finally:
        await door.close()
        guest.leave()


async def test_what_nobody_foresaw_ends_it_and_says_so() -> None:
    """In words that need no answer, too: whoever waits for the guest does not wait for ever."""
    async with opened() as (door, guest, _):
        await guest.say(Note(text="break"))
        with pytest.raises(ProtocolError, match=r"an error of the host: .*not foreseen"):
            await door.wait_closed()


async def test_requests_are_answered_and_the_last_word_ends_it() -> None:
    """Each request gets the answer of its number, body included; `Done` is the end."""
    async with opened() as (door, guest, _):
        await guest.say(Send(id=3, to="x", text="hello"), b"bytes")
        answer, body = await guest.hear()
        assert (answer.id, bytes(answer.data), body) == (3, b'{"text":"hello"}', b"bytes")
        await guest.say(Done(ok=True, json_size=2), b"17")
        finished = await door.wait_closed()
        assert finished is not None
        assert finished.body == b"17"


async def test_a_refusal_is_told_as_data() -> None:
    """What is refused comes back under its number, with the error's type; the channel stays open."""
    async with opened() as (_, guest, _desk):
        await guest.say(Send(id=1, to="nobody", text=""))
        answer, _ = await guest.hear()
        assert answer.error is not None
        assert answer.error.type == "SpawnRefused"
        await guest.say(Send(id=2, to="x", text="still here"))
        assert (await guest.hear())[0].id == 2


async def test_a_guest_that_leaves_without_a_word_is_known_to_have_left() -> None:
    """The end of the connection is the end, without a result."""
    async with opened() as (door, guest, _):
        guest.leave()
        assert await door.wait_closed() is None


@pytest.mark.parametrize("number", [1, 0])
async def test_a_number_that_does_not_rise_breaks_the_rules(number: int) -> None:
    """A repeated or falling number cannot be answered twice: the channel is closed."""
    async with opened() as (door, guest, _):
        await guest.say(Send(id=1, to="x", text=""))
        await guest.hear()
        await guest.say(Send(id=number, to="x", text=""))
        with pytest.raises(ProtocolError, match="must rise"):
            await door.wait_closed()


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
    """Impossible lengths, bad JSON, unknown types, pickles: a typed end, and nothing else happens."""
    async with opened() as (door, guest, desk):
        await guest.send(data)
        with pytest.raises(ProtocolError):
            await door.wait_closed()
        assert desk.notes == []


async def test_only_so_many_requests_are_worked_on_at_once() -> None:
    """The rest waits unread; when those are answered, it is taken up, and every one gets its answer."""
    async with opened() as (_, guest, desk):
        count = doors.MAX_IN_FLIGHT * 3
        for number in range(1, count + 1):
            await guest.say(ListRuns(id=number))
        await eventually(lambda: desk.working >= doors.MAX_IN_FLIGHT)
        desk.may_list.set()
        assert sorted([(await guest.hear())[0].id for _ in range(count)]) == list(range(1, count + 1))
        assert desk.most == doors.MAX_IN_FLIGHT


async def test_a_flood_is_slowed_down_and_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond the burst the channel reads as fast as the rate says: nothing is dropped, and nothing else waits."""
    monkeypatch.setattr(doors, "BURST", 10.0)
    monkeypatch.setattr(doors, "RATE_PER_S", 1_000.0)
    async with opened() as (door, guest, desk):
        loop = asyncio.get_running_loop()
        began = loop.time()  # The channel reads while the guest still speaks.
        for number in range(100):
            await guest.say(Note(text=str(number)))
        await guest.say(Done(ok=True))
        assert await door.wait_closed() is not None
        assert loop.time() - began > 0.05  # 91 messages beyond the burst at 1,000 a second: slower, never faster
        assert desk.notes == [str(number) for number in range(100)]


async def test_requests_take_a_fifth_of_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """A request that took 1 s of the loop is followed by 4 s without the next one; none is lost."""
    clock, desk = FakeClock(), Busy(monkeypatch)
    async with opened(clock, desk) as (_, guest, _desk):
        for number in range(1, 4):
            await guest.say(Send(id=number, to="x", text=""))
        for number in range(1, 4):
            await eventually(partial(desk.has_made, number))
            await turns()
            assert desk.made == number
            await clock.advance(3)
            await turns()
            assert desk.made == number
            await clock.advance(1)
        assert [(await guest.hear())[0].id for _ in range(3)] == [1, 2, 3]


async def test_large_replies_take_a_fifth_of_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replies that are made later, one at a time, wait likewise, however many requests have begun before."""
    clock, desk = FakeClock(), Busy(monkeypatch, makes=True)
    async with opened(clock, desk) as (_, guest, _desk):
        for number in range(1, 4):
            await guest.say(Send(id=number, to="x", text=""))
        await eventually(lambda: desk.begun == 3)
        desk.may_make.set()
        for number in range(1, 4):
            await eventually(partial(desk.has_made, number))
            await turns()
            assert desk.made == number
            await clock.advance(3)
            await turns()
            assert desk.made == number
            await clock.advance(1)


async def test_words_without_an_answer_take_a_fifth_of_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever a guest says is charged alike, and its last word comes after it has waited."""
    clock, desk = FakeClock(), Busy(monkeypatch)
    async with opened(clock, desk) as (door, guest, _):
        await guest.say(Note(text="1"))
        await guest.say(Note(text="2"))
        await guest.say(Done(ok=True))
        over = asyncio.ensure_future(door.wait_closed())
        for notes in (["1"], ["1", "2"]):
            await eventually(partial(desk.has_noted, notes))
            await turns()
            assert desk.notes == notes
            assert not over.done()
            await clock.advance(4)
        assert await over is not None


async def test_requests_begin_one_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests that arrive together do not take the loop together: others have a turn after each beginning."""
    order: list[str] = []

    class Noting(Desk):
        async def answer(self, request: Request, body: bytes) -> Reply | LargeReply:
            order.append("request")
            asyncio.get_running_loop().call_soon(order.append, "other")
            return Reply()

    async with opened(desk=Noting()) as (_, guest, _desk):
        said = [guest_protocol.encode(Send(id=number, to="x", text="")) for number in range(1, 11)]
        await guest.send(b"".join(bytes(piece) for each in said for piece in frames.pack(each)))
        for _ in range(10):
            await guest.hear()
        await eventually(lambda: len(order) == 20)
        assert order == ["request", "other"] * 10


async def test_a_frame_that_is_begun_and_not_ended_closes_the_channel(monkeypatch: pytest.MonkeyPatch) -> None:
    """One byte now and then does not hold a frame open: its time counts from its beginning."""
    monkeypatch.setattr(FrameReader, "allowance_s", property(lambda _: 0.05))
    async with opened() as (door, guest, _):
        await guest.send(struct.pack("!II", 100, 0))
        trickling = asyncio.create_task(_trickle(guest))
        try:
            with pytest.raises(ProtocolError, match="not completed in time"):
                await asyncio.wait_for(door.wait_closed(), 10)
        finally:
            trickling.cancel()
            await asyncio.wait([trickling])


async def _trickle(guest: Guest) -> None:
    for _ in range(90):
        await guest.send(b" ")
        await asyncio.sleep(0.01)


async def test_what_is_told_waits_for_a_guest_that_does_not_read() -> None:
    """A guest that stops reading holds up who talks to it, bounded, and gets all of it when it reads again."""
    async with opened() as (door, guest, _):
        big = bytes(1024 * 1024)
        telling = [asyncio.create_task(door.send(Answer(id=number), big)) for number in range(30)]
        for _ in range(100):
            await asyncio.sleep(0)
        assert sum(task.done() for task in telling) <= outbound.MAX_OUTBOUND // len(big) + 2
        for number in range(30):
            answer, body = await guest.hear()
            assert (answer.id, len(body)) == (number, len(big))
        await asyncio.wait(telling)


async def test_large_replies_are_made_one_at_a_time() -> None:
    """A guest that reads none of them has the host make one; once it reads, it gets each, in order."""
    async with opened() as (_, guest, desk):
        for number in range(1, 31):
            await guest.say(LoadCheckpoint(id=number))
        await eventually(lambda: desk.made)
        for _turn in range(100):
            await asyncio.sleep(0)
        assert desk.made == 1
        for number in range(1, 31):
            answer, body = await guest.hear()
            assert (answer.id, len(body)) == (number, LARGE)
        assert desk.made == 30


async def test_a_body_is_sent_from_a_file(tmp_path: pathlib.Path) -> None:
    """From its place in the file, and whole."""
    async with opened() as (_, guest, desk):
        content = bytes(range(256)) * (LARGE // 256 + 1)
        desk.file = tmp_path / "large"
        desk.file.write_bytes(content)
        await guest.say(LoadCheckpoint(id=1))
        _, body = await guest.hear()
        assert body == content[3 : 3 + LARGE]


async def test_a_file_that_is_too_short_ends_the_channel(tmp_path: pathlib.Path) -> None:
    """A part of a message is followed by no other message: the guest would take that for the rest."""
    async with opened() as (door, guest, desk):
        desk.file = tmp_path / "short"
        desk.file.write_bytes(bytes(1000))
        await guest.say(LoadCheckpoint(id=1))
        with pytest.raises(ProtocolError, match="too early"):
            await door.wait_closed()


async def test_nothing_is_begun_while_the_guest_does_not_read() -> None:
    """Notes that come behind unread replies are taken once the guest reads."""
    async with opened() as (_, guest, desk):
        await guest.say(LoadCheckpoint(id=1))
        await eventually(lambda: desk.made)
        for _turn in range(100):
            await asyncio.sleep(0)
        await guest.say(Note(text="behind"))
        for _turn in range(100):
            await asyncio.sleep(0)
        assert desk.notes == []
        await guest.hear()
        await eventually(lambda: desk.notes == ["behind"])


async def test_a_guest_that_reads_nothing_for_long_is_given_up() -> None:
    """Only once MAX_UNREAD_S have gone by, and with the reason."""
    clock = FakeClock()
    async with opened(clock) as (door, guest, desk):
        await guest.say(LoadCheckpoint(id=1))
        await eventually(lambda: clock.sleeping)
        over = asyncio.ensure_future(door.wait_closed())
        await clock.advance(outbound.MAX_UNREAD_S - 1)
        assert not over.done()
        await clock.advance(1)
        with pytest.raises(ProtocolError, match="did not read its channel for 300 s"):
            await over
        assert desk.made == 1


async def test_a_guest_that_reads_slowly_is_not_given_up() -> None:
    """Whatever it reads within the time begins the time anew."""
    clock = FakeClock()
    async with opened(clock) as (door, guest, _):
        for number in range(1, 4):
            await guest.say(LoadCheckpoint(id=number))
        over = asyncio.ensure_future(door.wait_closed())
        for number in range(1, 4):
            await eventually(lambda: clock.sleeping)
            await clock.advance(outbound.MAX_UNREAD_S * 0.8)
            assert (await guest.hear())[0].id == number
        assert not over.done()
        over.cancel()


async def test_a_guest_that_waits_for_an_answer_is_not_given_up() -> None:
    """Where nothing waits to be read no time runs: a request may take as long as it takes."""
    clock = FakeClock()
    async with opened(clock) as (_, guest, desk):
        await guest.say(ListRuns(id=1))
        await eventually(lambda: desk.working)
        await clock.advance(100 * outbound.MAX_UNREAD_S)
        desk.may_list.set()
        assert (await guest.hear())[0].id == 1
