"""A guest's end of the channel: what is asked, told and heard, in whatever order, and what if nobody listens."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import msgspec
import pytest

from ramet.core.errors import Aborted, BudgetExceeded, ProtocolError, Unknown
from ramet.core.outcome import ErrorInfo
from ramet.guest import async_channel as link_module
from ramet.guest.async_channel import Answered, AsyncChannel
from ramet.wire import frames, guest_protocol
from ramet.wire.error_codec import encode_error
from ramet.wire.frames import FrameReader
from ramet.wire.guest_protocol import (
    Answer,
    AskModel,
    ChildEnded,
    HostMessage,
    IncomingMail,
    ListRuns,
    Note,
    Send,
    Stop,
    StreamChunk,
    Text,
)
from tests.support.waiting import eventually


class Host:
    """The other end, by hand, and who listens to the guest's."""

    def __init__(self, end: socket.socket) -> None:
        self.end = end
        self._frames = FrameReader()
        self.mails: list[tuple[IncomingMail, str]] = []
        self.stops: list[str] = []
        self._heard: list[frames.Frame] = []

    def mail(self, mail: IncomingMail, text: str) -> None:
        """Mail came."""
        self.mails.append((mail, text))

    def stop(self, reason: str) -> None:
        """A stop came."""
        self.stops.append(reason)

    async def hear(self) -> guest_protocol.GuestMessage:
        """What the guest says next."""
        loop = asyncio.get_running_loop()
        while not self._heard:
            self._heard += self._frames.feed(await loop.sock_recv(self.end, 65536))
        return guest_protocol.from_guest(self._heard.pop(0).control)

    async def say(self, told: HostMessage, body: bytes = b"") -> None:
        """Anything of the vocabulary."""
        data = b"".join(bytes(piece) for piece in frames.pack(guest_protocol.encode(told), body))
        await asyncio.get_running_loop().sock_sendall(self.end, data)

    async def answer(self, number: int, text: str) -> None:
        """A text, to a request."""
        await self.say(Answer(id=number, data=msgspec.Raw(guest_protocol.encode(Text(text=text)))))


@asynccontextmanager
async def linked() -> AsyncIterator[tuple[AsyncChannel, Host]]:
    """A guest's link, and the host's end of it."""
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    host = Host(ours)
    link = AsyncChannel(host)
    await link.open(theirs)
    try:
        yield link, host
    finally:
        await link.close()
        ours.close()


async def test_answers_find_who_asked_in_any_order() -> None:
    """Numbers rise; an answer to nobody is passed over."""
    async with linked() as (link, host):
        one, two = (asyncio.create_task(link.ask(Send, to=to, text="")) for to in ("a", "b"))
        first, second = await host.hear(), await host.hear()
        assert isinstance(first, Send)
        assert isinstance(second, Send)
        assert (first.id, first.to, second.id, second.to) == (1, "a", 2, "b")
        await host.answer(99, "nobody's")
        await host.answer(2, "to b")
        await host.answer(1, "to a")

        assert (await one).as_(Text).text == "to a"
        assert (await two).as_(Text).text == "to b"


async def test_an_error_of_the_host_is_raised_as_what_it_was() -> None:
    """With the fields that its reader acts on."""
    async with linked() as (link, host):
        asking = asyncio.create_task(link.ask(ListRuns))
        await host.hear()
        info, fields = encode_error(BudgetExceeded("tokens", asked=9, left=1, scope="main"))
        await host.say(Answer(id=1, error=info, fields=fields))

        with pytest.raises(BudgetExceeded) as refused:
            await asking
        assert (refused.value.resource, refused.value.scope) == ("tokens", "main")


async def test_an_answer_of_another_kind_is_refused() -> None:
    """The host's word is typed, too."""
    async with linked() as (link, host):
        asking = asyncio.create_task(link.ask(ListRuns))
        await host.hear()
        await host.answer(1, "no listing")
        with pytest.raises(ProtocolError, match="an answer that is no Runs"):
            (await asking).as_(guest_protocol.Runs)


async def test_who_gives_up_waiting_is_forgotten() -> None:
    """The late answer hurts nobody, and the channel goes on."""
    async with linked() as (link, host):
        asking = asyncio.create_task(link.ask(Send, to="a", text=""))
        await host.hear()
        asking.cancel()
        with suppress(asyncio.CancelledError):
            await asking
        await host.answer(1, "late")
        again = asyncio.create_task(link.ask(Send, to="b", text=""))
        await host.hear()
        await host.answer(2, "in time")
        assert (await again).as_(Text).text == "in time"


async def test_pieces_come_before_the_answer() -> None:
    """In their order, and to who asked for them."""
    async with linked() as (link, host):

        async def read() -> list[bytes]:
            pieces = link.pieces(AskModel, b"{}", step="run-00:1", stream=True)
            return [piece.body if isinstance(piece, Answered) else piece async for piece in pieces]

        reading = asyncio.create_task(read())
        await host.hear()
        for piece in (b"one", b"two"):
            await host.say(StreamChunk(id=1), piece)
        await host.say(StreamChunk(id=7), b"nobody's")
        await host.say(Answer(id=1), b"whole")
        assert await reading == [b"one", b"two", b"whole"]


async def test_an_end_is_watched_once_and_heard_by_all_who_wait() -> None:
    """Whoever gives up waiting does not end it for the others, and who comes late hears it, too."""
    async with linked() as (link, host):
        waits = [asyncio.create_task(link.end_of("run-01")) for _ in range(3)]
        watch = await host.hear()
        waits[0].cancel()
        await host.say(ChildEnded(run="run-01", status="completed", exit_code=0, json_size=2), b'"x"')

        assert watch == guest_protocol.Watch(run="run-01")
        assert [(await each).body for each in waits[1:]] == [b'"x"', b'"x"']
        assert (await link.end_of("run-01")).message.status == "completed"
        link.send(Note(text="after"))
        assert await host.hear() == Note(text="after")


async def test_mail_and_a_stop_are_heard_unasked() -> None:
    """As they come."""
    async with linked() as (_, host):
        mail = IncomingMail(mail_id="mail-1", sender="user", kind="user")
        await host.say(mail, b"Hello.")
        await host.say(Stop(reason="enough"))
        await eventually(lambda: host.stops)
        assert (host.mails, host.stops) == ([(mail, "Hello.")], ["enough"])


async def test_when_the_host_goes_everything_that_waits_fails() -> None:
    """And so does everything that comes after."""
    async with linked() as (link, host):
        asking, waiting = asyncio.create_task(link.ask(ListRuns)), asyncio.create_task(link.end_of("run-01"))
        await host.hear()
        host.end.close()

        for each in (asking, waiting):
            with pytest.raises(Aborted, match="the host has ended"):
                await each
        with pytest.raises(Aborted):
            link.send(Note(text="x"))
        with pytest.raises(Aborted):
            await link.ask(ListRuns)
        assert len(host.stops) == 1


async def test_a_host_that_breaks_the_rules_is_given_up() -> None:
    """Nothing it says afterwards is heard."""
    async with linked() as (link, host):
        asking = asyncio.create_task(link.ask(ListRuns))
        await host.hear()
        await asyncio.get_running_loop().sock_sendall(host.end, b"\xff" * 64)
        with pytest.raises(Aborted, match="broke the rules"):
            await asking
        assert len(host.stops) == 1


async def test_a_host_that_does_not_read_makes_requests_wait_and_is_given_up_at_last(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What waits for it is bounded: first requests wait, then, if more is told all the same, the work ends."""
    monkeypatch.setattr(link_module, "HIGH_WATER", 100_000)
    monkeypatch.setattr(link_module, "MAX_UNREAD", 1_000_000)
    async with linked() as (link, host):
        told = 0

        def tell_on() -> None:
            nonlocal told
            while told < 10_000_000:
                link.send(Note(text="x" * 10_000))
                told += 10_000

        while link._may_write.is_set():
            link.send(Note(text="x" * 10_000))
            told += 10_000
        asking = asyncio.create_task(link.ask(ListRuns))
        await asyncio.sleep(0)
        assert link._last_id == 0, "the request waits"
        with pytest.raises(Aborted, match="reads nothing"):
            tell_on()
        with pytest.raises(Aborted):
            await asking
        assert told < 3_000_000
        assert len(host.stops) == 1


async def test_what_was_said_is_flushed_before_the_end() -> None:
    """A last word that is longer than the channel holds arrives whole."""
    async with linked() as (link, host):
        link.send(guest_protocol.Record(number=1), b"x" * 3_000_000)
        flushing = asyncio.create_task(link.flush())
        await asyncio.sleep(0)
        assert not flushing.done()
        assert await host.hear() == guest_protocol.Record(number=1)
        await flushing


async def test_unknown_errors_keep_their_name() -> None:
    """An error of the host's that is not ramet's own still says what it was."""
    async with linked() as (link, host):
        asking = asyncio.create_task(link.ask(ListRuns))
        await host.hear()
        await host.say(Answer(id=1, error=ErrorInfo(type="ValueError", message="odd")))
        with pytest.raises(Exception, match="ValueError: odd") as raised:
            await asking
        assert not isinstance(raised.value, Unknown)
