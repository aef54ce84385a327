"""A guest's asynchronous channel: requests, notes and messages in any order, and a host that does not read."""

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
from ramet.guest.async_channel import AsyncChannel, RawAnswer
from ramet.wire import frames
from ramet.wire.error_codec import encode_error
from ramet.wire.frames import FrameReader
from ramet.wire.guest_protocol import answer_data, guest_to_host, message_codec
from ramet.wire.guest_protocol.answer_data import Text
from ramet.wire.guest_protocol.guest_to_host import AskModel, ListRuns, Note, Send
from ramet.wire.guest_protocol.host_to_guest import Answer, ChildEnded, HostMessage, IncomingMail, Stop, StreamChunk
from tests.support.waiting import eventually


class Host:
    """The host's end by hand, and the listener of the guest's end."""

    def __init__(self, end: socket.socket) -> None:
        self.end = end
        self._frames = FrameReader()
        self.mails: list[tuple[IncomingMail, str]] = []
        self.stops: list[str] = []
        self._heard: list[frames.Frame] = []

    def mail(self, mail: IncomingMail, text: str) -> None:
        """Receive mail."""
        self.mails.append((mail, text))

    def stop(self, reason: str) -> None:
        """Receive a stop."""
        self.stops.append(reason)

    async def hear(self) -> guest_to_host.GuestMessage:
        """Return the guest's next message."""
        loop = asyncio.get_running_loop()
        while not self._heard:
            self._heard += self._frames.feed(await loop.sock_recv(self.end, 65536))
        return message_codec.from_guest(self._heard.pop(0).control)

    async def say(self, message: HostMessage, body: bytes = b"") -> None:
        """Send any message of the protocol."""
        data = b"".join(bytes(piece) for piece in frames.pack(message_codec.encode(message), body))
        await asyncio.get_running_loop().sock_sendall(self.end, data)

    async def answer(self, number: int, text: str) -> None:
        """Answer a request with a text."""
        await self.say(Answer(id=number, data=msgspec.Raw(message_codec.encode(Text(text=text)))))


@asynccontextmanager
async def open_link() -> AsyncIterator[tuple[AsyncChannel, Host]]:
    """Yield a guest's channel and the host's end of it."""
    our_end, their_end = socket.socketpair()
    our_end.setblocking(False)
    host = Host(our_end)
    link = AsyncChannel(host)
    await link.open(their_end)
    try:
        yield link, host
    finally:
        await link.close()
        our_end.close()


async def test_answers_reach_their_requests_in_any_order() -> None:
    """The numbers of requests rise; an answer without a request is ignored."""
    async with open_link() as (link, host):
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


async def test_an_error_of_the_host_is_raised_with_its_fields() -> None:
    """The type of the error is the same."""
    async with open_link() as (link, host):
        asking = asyncio.create_task(link.ask(ListRuns))
        await host.hear()
        info, fields = encode_error(BudgetExceeded("tokens", asked=9, left=1, scope="main"))
        await host.say(Answer(id=1, error=info, fields=fields))

        with pytest.raises(BudgetExceeded) as refusal:
            await asking
        assert (refusal.value.resource, refusal.value.scope) == ("tokens", "main")


async def test_an_answer_of_another_kind_is_refused() -> None:
    """Answers are typed."""
    async with open_link() as (link, host):
        asking = asyncio.create_task(link.ask(ListRuns))
        await host.hear()
        await host.answer(1, "no listing")
        with pytest.raises(ProtocolError, match="an answer that is not a Runs"):
            (await asking).as_(answer_data.Runs)


async def test_a_cancelled_request_is_forgotten() -> None:
    """A late answer has no effect, and the channel stays usable."""
    async with open_link() as (link, host):
        asking = asyncio.create_task(link.ask(Send, to="a", text=""))
        await host.hear()
        asking.cancel()
        with suppress(asyncio.CancelledError):
            await asking
        await host.answer(1, "late")
        second_ask = asyncio.create_task(link.ask(Send, to="b", text=""))
        await host.hear()
        await host.answer(2, "in time")
        assert (await second_ask).as_(Text).text == "in time"


async def test_chunks_come_before_the_answer() -> None:
    """The chunks come in order, and only those of the request."""
    async with open_link() as (link, host):

        async def read() -> list[bytes]:
            pieces = link.pieces(AskModel, b"{}", step="run-00:1", stream=True)
            return [piece.body if isinstance(piece, RawAnswer) else piece async for piece in pieces]

        reading = asyncio.create_task(read())
        await host.hear()
        for piece in (b"one", b"two"):
            await host.say(StreamChunk(id=1), piece)
        await host.say(StreamChunk(id=7), b"nobody's")
        await host.say(Answer(id=1), b"whole")
        assert await reading == [b"one", b"two", b"whole"]


async def test_the_end_of_a_child_is_watched_once_for_all_waiters() -> None:
    """A cancelled waiter does not end the others, and a late waiter gets the end too."""
    async with open_link() as (link, host):
        waits = [asyncio.create_task(link.end_of("run-01")) for _ in range(3)]
        watch = await host.hear()
        waits[0].cancel()
        await host.say(ChildEnded(run="run-01", status="completed", exit_code=0, json_size=2), b'"x"')

        assert watch == guest_to_host.Watch(run="run-01")
        assert [(await each).body for each in waits[1:]] == [b'"x"', b'"x"']
        assert (await link.end_of("run-01")).message.status == "completed"
        link.send(Note(text="after"))
        assert await host.hear() == Note(text="after")


async def test_mail_and_a_stop_are_received_without_a_request() -> None:
    """The listener gets them as they come."""
    async with open_link() as (_, host):
        mail = IncomingMail(mail_id="mail-1", sender="user", kind="user")
        await host.say(mail, b"Hello.")
        await host.say(Stop(reason="enough"))
        await eventually(lambda: host.stops)
        assert (host.mails, host.stops) == ([(mail, "Hello.")], ["enough"])


async def test_every_request_fails_when_the_host_leaves() -> None:
    """Later requests and notes fail too."""
    async with open_link() as (link, host):
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


async def test_a_host_that_breaks_the_protocol_is_abandoned() -> None:
    """No later message of the host is read."""
    async with open_link() as (link, host):
        asking = asyncio.create_task(link.ask(ListRuns))
        await host.hear()
        await asyncio.get_running_loop().sock_sendall(host.end, b"\xff" * 64)
        with pytest.raises(Aborted, match="broke the rules"):
            await asking
        assert len(host.stops) == 1


async def test_a_host_that_does_not_read_is_abandoned_at_a_bound(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The buffer is bounded: requests wait first, and further notes end the work."""
    monkeypatch.setattr(link_module, "HIGH_WATER", 100_000)
    monkeypatch.setattr(link_module, "MAX_UNREAD", 1_000_000)
    async with open_link() as (link, host):
        received_bytes = 0

        def tell_on() -> None:
            nonlocal received_bytes
            while received_bytes < 10_000_000:
                link.send(Note(text="x" * 10_000))
                received_bytes += 10_000

        while link._may_write.is_set():
            link.send(Note(text="x" * 10_000))
            received_bytes += 10_000
        asking = asyncio.create_task(link.ask(ListRuns))
        await asyncio.sleep(0)
        assert link._last_id == 0, "the request waits"
        with pytest.raises(Aborted, match="reads nothing"):
            tell_on()
        with pytest.raises(Aborted):
            await asking
        assert received_bytes < 3_000_000
        assert len(host.stops) == 1


async def test_sent_data_is_flushed_before_the_end() -> None:
    """A message longer than the channel's buffer arrives whole."""
    async with open_link() as (link, host):
        link.send(guest_to_host.Record(number=1), b"x" * 3_000_000)
        flushing = asyncio.create_task(link.flush())
        await asyncio.sleep(0)
        assert not flushing.done()
        assert await host.hear() == guest_to_host.Record(number=1)
        await flushing


async def test_unknown_errors_keep_their_name() -> None:
    """An error that is not ramet's still gives its type."""
    async with open_link() as (link, host):
        asking = asyncio.create_task(link.ask(ListRuns))
        await host.hear()
        await host.say(Answer(id=1, error=ErrorInfo(type="ValueError", message="odd")))
        with pytest.raises(Exception, match="ValueError: odd") as refusal:
            await asking
        assert not isinstance(refusal.value, Unknown)
