"""The channel for a guest's event loop: answers in any order, pieces, mail, ends of children, and one stop.

Only the caller of a request waits for a slow host. A report of the guest is written at once; a request waits until the
channel accepts it. If the host reads nothing at all, the channel is closed before the guest's memory is full.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncGenerator, Callable
from typing import Any, NamedTuple, Protocol, TypeVar

import msgspec

from ramet.core.errors import Aborted, ProtocolError
from ramet.wire import frames
from ramet.wire.error_codec import decode_error
from ramet.wire.frames import Frame, FrameReader
from ramet.wire.guest_protocol import guest_to_host, message_codec
from ramet.wire.guest_protocol.guest_to_host import GuestMessage, Request
from ramet.wire.guest_protocol.host_to_guest import Answer, ChildEnded, IncomingMail, Stop, StreamChunk

#: Bytes that wait for the host to read them, before requests wait too, and before the channel is closed.
HIGH_WATER, MAX_UNREAD = 8 * 1024 * 1024, 128 * 1024 * 1024
D = TypeVar("D")


class RawAnswer(NamedTuple):
    """The answer to a request."""

    data: msgspec.Raw
    body: bytes

    def as_(self, kind: type[D]) -> D:
        """Return the data as the type that belongs to the request.

        Raises ProtocolError if it has another type.
        """
        try:
            return msgspec.json.decode(self.data, type=kind)
        except msgspec.DecodeError as problem:
            raise ProtocolError(f"an answer that is not a {kind.__name__}: {problem}") from None


class End(NamedTuple):
    """The end of a child, with its value."""

    message: ChildEnded
    body: bytes


class Listener(Protocol):
    """A receiver of messages that are not answers."""

    def mail(self, mail: IncomingMail, text: str) -> None:
        """Receive mail for this run."""

    def stop(self, reason: str) -> None:
        """Receive a stop of the run, or the end of the host."""


class _Waiting(NamedTuple):
    """A request in progress."""

    answer: asyncio.Future[RawAnswer]
    on_piece: Callable[[bytes], None]


class AsyncChannel(asyncio.Protocol):
    """A guest's end of its channel, from `open` to `close`.

    When the host ends, all waiting requests fail.
    """

    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        self.loop = asyncio.get_running_loop()
        self._reader = FrameReader()
        self._transport: asyncio.Transport | None = None
        self._waiting: dict[int, _Waiting] = {}
        self._ends: dict[str, asyncio.Future[End]] = {}
        self._last_id = 0
        self._may_write = asyncio.Event()
        self._may_write.set()
        self._disconnection: asyncio.Future[None] = self.loop.create_future()
        self._close_reason: str | None = None  #: the reason that nothing can be requested any more

    async def open(self, channel: socket.socket) -> None:
        """Take over the channel."""
        await self.loop.create_connection(lambda: self, sock=channel)

    # ---- messages and requests

    def send(self, message: GuestMessage, body: bytes = b"") -> None:
        """Send a message that has no answer.

        Raises Aborted if the host has ended, or reads nothing.
        """
        if self._close_reason is not None or self._transport is None:
            raise Aborted(self._close_reason or "the channel is not open")
        self._transport.writelines(frames.pack(message_codec.encode(message), body))
        if self._transport.get_write_buffer_size() > MAX_UNREAD:
            self._fail(f"the host reads nothing: {MAX_UNREAD} bytes wait for it")
            self._transport.abort()

    async def ask(self, kind: type[Request], body: bytes = b"", **fields: Any) -> RawAnswer:
        """Send a request, and wait for the answer.

        Raises the host's error, or Aborted if the host has ended.
        """
        return await self._ask(kind, body, fields, lambda piece: None)

    async def ask_resettable(self, kind: type[Request], body: bytes = b"", **fields: Any) -> RawAnswer:
        """Send a request, and wait for the answer; if this is cancelled, the host ends its work.

        Raises the host's error, or Aborted if the host has ended.
        """
        return await self._ask(kind, body, fields, lambda piece: None, resets=True)

    async def pieces(self, kind: type[Request], body: bytes = b"", **fields: Any) -> AsyncGenerator[bytes | RawAnswer]:
        """Send a request; yield the pieces as they arrive, then the answer.

        A reply is bounded, so its pieces are.
        """
        queue: asyncio.Queue[bytes | None] = asyncio.Queue()
        request = asyncio.ensure_future(self._ask(kind, body, fields, queue.put_nowait))
        request.add_done_callback(lambda _: queue.put_nowait(None))
        try:
            while (piece := await queue.get()) is not None:
                yield piece
            yield await request
        finally:
            request.cancel()
            await asyncio.wait([request])
            if not request.cancelled():
                request.exception()  # Mark as retrieved, even if the reader left before it was raised.

    async def end_of(self, run: str) -> End:
        """Wait without a time limit for a child's end.

        Raises Aborted if the host has ended.
        """
        end = self._ends.get(run)
        if end is None:
            end = self._ends[run] = self.loop.create_future()
            self.send(guest_to_host.Watch(run=run))
        return await asyncio.shield(end)

    async def _ask(
        self,
        kind: type[Request],
        body: bytes,
        fields: dict[str, Any],
        on_piece: Callable[[bytes], None],
        *,
        resets: bool = False,
    ) -> RawAnswer:
        await self._may_write.wait()
        self._last_id += 1
        number = self._last_id
        waiting = self._waiting[number] = _Waiting(self.loop.create_future(), on_piece)
        try:
            self.send(kind(id=number, **fields), body)
            return await waiting.answer
        except asyncio.CancelledError:
            if resets:
                with contextlib.suppress(Aborted):
                    self.send(guest_to_host.ResetStream(request=number))
            raise
        finally:
            self._waiting.pop(number, None)

    # ---- the end

    async def flush(self) -> None:
        """Wait until all messages are on their way, or the host has ended."""
        if self._transport is not None:
            self._transport.set_write_buffer_limits(high=0)
            while not self._may_write.is_set() and self._close_reason is None:
                await self._may_write.wait()

    async def close(self) -> None:
        """Stop sending and receiving.

        Messages that are not on their way yet are dropped.
        """
        self._end("the channel was closed")
        if self._transport is not None:
            self._transport.abort()
            await self._disconnection

    def _end(self, reason: str) -> None:
        if self._close_reason is not None:
            return
        self._close_reason = reason
        self._may_write.set()
        futures: list[asyncio.Future[Any]] = [*(each.answer for each in self._waiting.values()), *self._ends.values()]
        for end in futures:
            if not end.done():
                end.set_exception(Aborted(reason))
                end.exception()  # Mark the exception as retrieved: not every caller still waits.

    # ---- called by asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        transport.set_write_buffer_limits(high=HIGH_WATER)
        self._transport = transport

    def pause_writing(self) -> None:
        self._may_write.clear()

    def resume_writing(self) -> None:
        self._may_write.set()

    def data_received(self, data: bytes) -> None:
        if self._close_reason is not None:
            return
        try:
            for frame in self._reader.feed(data):
                self._handle_frame(frame)
        except ProtocolError as error:
            self._fail(f"the host broke the rules of the channel: {error}")

    def connection_lost(self, problem: Exception | None) -> None:
        """Handle the end of the connection, by the host or by the guest."""
        if not self._disconnection.done():
            self._disconnection.set_result(None)
        self._fail(f"the host has ended ({problem})" if problem is not None else "the host has ended")

    def _fail(self, reason: str) -> None:
        if self._close_reason is None:
            self._end(reason)
            self._listener.stop(reason)

    def _handle_frame(self, frame: Frame) -> None:
        message = message_codec.from_host(frame.control)
        match message:
            case Answer():
                self._answer(message, frame.body)
            case StreamChunk():
                if message.id in self._waiting:
                    self._waiting[message.id].on_piece(frame.body)
            case ChildEnded():
                end = self._ends.get(message.run)
                if end is not None and not end.done():
                    end.set_result(End(message, frame.body))
            case IncomingMail():
                self._listener.mail(message, frame.body.decode("utf-8", "replace"))
            case Stop():
                self._listener.stop(message.reason)
            case _:
                raise ProtocolError(f"{type(message).__name__} is only accepted as the first message")

    def _answer(self, answer: Answer, body: bytes) -> None:
        waiting = self._waiting.get(answer.id)
        if waiting is None or waiting.answer.done():
            return  # No caller waits for it any more.
        if answer.error is None:
            waiting.answer.set_result(RawAnswer(answer.data, body))
        else:
            waiting.answer.set_exception(decode_error(answer.error, answer.fields))
