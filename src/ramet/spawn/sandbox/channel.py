"""The host's end of a guest's channel, one per sandbox: reads the guest's messages and has them executed.

The guest is hostile. Its frames are bounded and typed; its requests are numbered, counted and slowed down. None of its
texts opens a path or runs code here. Above a limit the channel stops reading; after a protocol violation it closes.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, NamedTuple, Protocol

from ramet.concurrency.clock import Clock, SystemClock
from ramet.core.errors import InvalidValue, ProtocolError
from ramet.spawn.cpu_metering import meter_cpu
from ramet.spawn.sandbox.outbound import Body, Outbound
from ramet.wire.error_codec import encode_error
from ramet.wire.frames import Frame, FrameReader
from ramet.wire.guest_protocol import message_codec
from ramet.wire.guest_protocol.guest_to_host import (
    ConnectMcpServer,
    Done,
    ForwardRequest,
    GuestMessage,
    PerformTask,
    Request,
    Spawn,
    Watch,
)
from ramet.wire.guest_protocol.host_to_guest import Answer, HostMessage

#: Requests per second that a guest may make continuously, and the number at once after a pause.
RATE_PER_S, BURST = 200.0, 400.0
#: Requests in progress; spawns have a bound of their own in the policy.
MAX_IN_FLIGHT = 64
#: Bytes of requests in progress, unless a single request is larger; and the fixed size that each request adds.
MAX_BYTES_IN_FLIGHT, REQUEST_BYTES = 16 * 1024 * 1024, 4 * 1024
#: Seconds of the event loop that a guest may take at once; for all its time, others get this many times as much.
AT_ONCE_S, OTHERS_SHARE = 0.1, 4


class Reply(NamedTuple):
    """The reply to a request."""

    data: Any = None
    body: Body = b""


class LargeReply(NamedTuple):
    """A reply that may be much larger than its request.

    It is made when it can be sent, one at a time.
    """

    produce: Callable[[], Awaitable[Reply]]


class Service(Protocol):
    """The service behind a channel."""

    async def answer(self, request: Request, body: bytes) -> Reply | LargeReply:
        """Execute a request.

        Errors that it raises are sent to the guest.
        """

    def receive(self, message: GuestMessage, body: bytes) -> Coroutine[Any, Any, None] | None:
        """Accept a message that needs no answer, at once and in order.

        Raises ProtocolError if the message is not allowed. A returned coroutine runs concurrently. Until it is done
        nothing more is read, unless it belongs to a `Watch`.
        """


class FinalMessage(NamedTuple):
    """The last message of a guest, with its body."""

    done: Done
    body: bytes


class GuestChannel(asyncio.Protocol):
    """A channel that is open from `open` to `close`.

    `wait_closed` returns its end: the guest's last message, or None if it left without one.
    """

    def __init__(self, service: Service, clock: Clock | None = None) -> None:
        self._service = service
        self._loop = asyncio.get_running_loop()
        self._clock = clock or SystemClock()
        self._outbound = Outbound(self._clock, on_room=self._schedule_work, on_end=self._end)
        self._reader = FrameReader()
        self._transport: asyncio.Transport | None = None
        self._channel: socket.socket | None = None
        self._end_future: asyncio.Future[FinalMessage | None] = self._loop.create_future()
        self._end_future.add_done_callback(lambda over: over.cancelled() or over.exception())
        self._waiting_frames: list[Frame] = []  #: received, not yet processed: a limit was reached
        self._tasks: set[asyncio.Task[None]] = set()
        self.received_bytes = 0
        self._last_id = 0
        self._in_flight = self._bytes_in_flight = self._held_slots = 0
        self._tokens, self._tokens_at = BURST, self._loop.time()
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._partial_since = 0.0
        self._is_frozen = False
        self._awaits_first_step = False  #: a request has not had its first step on the loop
        self._is_unpaused = asyncio.Event()
        self._is_unpaused.set()
        self._paused_until = 0.0  #: by the clock: when others have had their share of the loop

    async def open(self, channel: socket.socket) -> None:
        """Take over the host's end of a channel."""
        self._channel = channel
        await self._loop.create_connection(lambda: self, sock=channel)

    async def wait_closed(self) -> FinalMessage | None:
        """Wait for the guest's last message; None if it left without one.

        Raises ProtocolError if the guest broke the protocol.
        """
        return await asyncio.shield(self._end_future)

    @property
    def requests_in_progress(self) -> int:
        """The number of the guest's requests that have no answer yet."""
        return self._in_flight

    @property
    def is_throttled(self) -> bool:
        """Return whether received messages wait because of the host: for its rate limits, or for its record."""
        is_limited = not self._is_unpaused.is_set() or self._awaits_first_step or "tokens" in self._timers
        return bool(self._waiting_frames) and (is_limited or self._held_slots > 0)

    async def close(self) -> None:
        """Stop reading, and end all work in progress for this guest."""
        for timer in self._timers.values():
            timer.cancel()
        self._end(None)
        self._outbound.stop_watching()
        if self._transport is not None:
            self._transport.abort()
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def send(self, message: HostMessage, body: Body = b"") -> None:
        """Send a message to the guest; wait while the guest does not read.

        Nothing is sent to a guest that has left.
        """
        await self._outbound.send(message, body)

    async def run_in_order(self, work: Callable[[], Awaitable[None]]) -> None:
        """Make and send a large message, one at a time, once the guest has read the waiting data."""
        await self._outbound.run_in_order(work)

    def set_frozen(self, is_frozen: bool) -> None:
        """Set whether the guest is frozen: no time counts in which it cannot read or complete a message."""
        self._is_frozen = self._outbound.is_frozen = is_frozen
        self._watch_partial(is_new=True)

    def run_concurrently(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run a coroutine for this guest; it is cancelled when the channel closes."""
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._on_task_done)
        return task

    # ---- called by asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._outbound.attach(transport)

    def pause_writing(self) -> None:
        """Pause sending: the guest does not read."""
        self._outbound.pause()

    def resume_writing(self) -> None:
        """Resume sending: the guest reads again."""
        self._outbound.resume()

    def data_received(self, data: bytes) -> None:
        if self._end_future.done():
            return
        self.received_bytes += len(data)
        started_at = time.thread_time()
        try:
            frames = self._reader.feed(data)
        except ProtocolError as error:
            return self._end(error)
        finally:
            self._charge(time.thread_time() - started_at)
        self._watch_partial(is_new=bool(frames))
        self._waiting_frames += frames
        self._process_frames()

    def connection_lost(self, problem: Exception | None) -> None:
        """Handle the end of the connection, by the guest or by the host."""
        self._outbound.resume()
        if problem is not None and (unread := self._unread()):
            self.data_received(unread)
        if not self._waiting_frames:
            self._end(None)

    # ----

    def _unread(self) -> bytes:
        """Return the data that a guest sent before it left during a write.

        asyncio drops this data together with the error.
        """
        parts: list[bytes] = []
        with contextlib.suppress(OSError):
            while self._channel is not None and (chunk := self._channel.recv(256 * 1024)):
                parts.append(chunk)
        return b"".join(parts)

    def _watch_partial(self, *, is_new: bool) -> None:
        """Limit the time in which a started frame must be complete, however slowly it arrives."""
        timer = self._timers.pop("frame", None)
        if timer is not None:
            timer.cancel()
        if not self._reader.is_partial or self._is_frozen:
            return
        if is_new or timer is None:
            self._partial_since = self._loop.time()
        error = ProtocolError("a frame was started and not completed in time")
        self._timers["frame"] = self._loop.call_at(self._partial_since + self._reader.allowance_s, self._end, error)

    def _process_frames(self) -> None:
        """Process the received frames up to the limits; above the limits, stop reading."""
        at = 0
        try:
            while (
                at < len(self._waiting_frames)
                and not self._end_future.done()
                and self._has_room(self._waiting_frames[at])
            ):
                frame = self._waiting_frames[at]
                at += 1
                started_at = time.thread_time()
                try:
                    self._handle_frame(frame)
                finally:
                    self._charge(time.thread_time() - started_at)
        except ProtocolError as error:
            self._end(error)
        except Exception as problem:  # Waiters for this guest receive the error.
            self._end(_host_error(problem))
        del self._waiting_frames[:at]
        transport = self._transport
        if transport is None or transport.is_closing():
            if not self._waiting_frames:
                self._end(None)
        elif self._waiting_frames:
            transport.pause_reading()
        else:
            transport.resume_reading()

    def _has_room(self, frame: Frame) -> bool:
        if self._held_slots or self._outbound.is_full:
            return False
        if self._awaits_first_step or not self._is_unpaused.is_set():
            return False
        now = self._loop.time()
        self._tokens = min(BURST, self._tokens + (now - self._tokens_at) * RATE_PER_S)
        self._tokens_at = now
        if self._tokens < 1:
            if "tokens" not in self._timers:
                self._timers["tokens"] = self._loop.call_later((1 - self._tokens) / RATE_PER_S, self._on_refill)
            return False
        bytes_with_frame = self._bytes_in_flight + _weight(frame)
        return self._in_flight < MAX_IN_FLIGHT and (
            not self._bytes_in_flight or bytes_with_frame <= MAX_BYTES_IN_FLIGHT
        )

    def _on_refill(self) -> None:
        self._timers.pop("tokens", None)
        self._process_frames()

    def _handle_frame(self, frame: Frame) -> None:
        self._tokens -= 1
        message = message_codec.from_guest(frame.control)
        if isinstance(message, Done):
            self._end(FinalMessage(message, frame.body))
        elif isinstance(message, Request):
            if message.id <= self._last_id:
                raise ProtocolError(f"request {message.id} came after request {self._last_id}; numbers must rise")
            self._last_id = message.id
            count, size = int(not isinstance(message, Spawn | PerformTask)), _weight(frame)
            if isinstance(
                message, ForwardRequest | ConnectMcpServer
            ):  # It may wait for long, and has bounds of its own.
                count = size = 0
            self._in_flight += count
            self._bytes_in_flight += size

            def settle(_: asyncio.Task[None]) -> None:
                self._in_flight -= count
                self._bytes_in_flight -= size
                self._schedule_work()

            self.run_concurrently(self._serve(message, frame.body)).add_done_callback(settle)
            # asyncio calls in order: the request has its first step before `_on_first_step` is called.
            self._awaits_first_step = True
            self._loop.call_soon(self._on_first_step)
        else:
            coroutine = self._service.receive(message, frame.body)
            if coroutine is not None and isinstance(message, Watch):
                self.run_concurrently(coroutine)
            elif coroutine is not None:
                self._held_slots += 1
                self.run_concurrently(coroutine).add_done_callback(self._release)

    def _on_first_step(self) -> None:
        self._awaits_first_step = False
        if self._waiting_frames:
            self._process_frames()

    def _charge(self, used_s: float) -> None:
        """Count loop time that this guest took; above AT_ONCE_S at once, pause it so that others get their share."""
        now = self._clock.monotonic()
        self._paused_until = max(self._paused_until, now) + OTHERS_SHARE * used_s
        if (
            self._is_unpaused.is_set()
            and not self._end_future.done()
            and self._paused_until - now > OTHERS_SHARE * AT_ONCE_S
        ):
            self._is_unpaused.clear()
            self.run_concurrently(self._pause())

    async def _pause(self) -> None:
        while (left_s := self._paused_until - self._clock.monotonic()) > 0:
            await self._clock.sleep(left_s)
        self._is_unpaused.set()
        self._schedule_work()

    def _release(self, _: asyncio.Task[None]) -> None:
        self._held_slots -= 1
        self._schedule_work()

    def _schedule_work(self) -> None:
        if self._waiting_frames:
            self._loop.call_soon(self._process_frames)

    async def _serve(self, request: Request, body: bytes) -> None:
        await meter_cpu(self._answer(request, body), self._charge)

    async def _answer(self, request: Request, body: bytes) -> None:
        try:
            reply = await self._service.answer(request, body)
            if isinstance(reply, LargeReply):
                produce = reply.produce
                return await self.run_in_order(lambda: self._send_produced_reply(request, produce))
        except ProtocolError as problem:
            return self._end(problem)
        except Exception as error:
            info, fields = encode_error(error)
            return await self.send(Answer(id=request.id, error=info, fields=fields))
        return await self._send_reply(request, reply)

    async def _send_produced_reply(self, request: Request, produce: Callable[[], Awaitable[Reply]]) -> None:
        await self._is_unpaused.wait()
        await self._send_reply(request, await produce())

    async def _send_reply(self, request: Request, reply: Reply) -> None:
        try:
            await self.send(Answer(id=request.id, data=message_codec.raw(reply.data)), reply.body)
        except ProtocolError as error:  # The host's error: the guest broke no rule by its request.
            info, fields = encode_error(InvalidValue("answer", request.id, str(error)))
            await self.send(Answer(id=request.id, error=info, fields=fields))

    def _on_task_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._end(error if isinstance(error, ProtocolError) else _host_error(error))

    def _end(self, outcome: FinalMessage | Exception | None) -> None:
        if self._end_future.done():
            return
        if isinstance(outcome, Exception):
            self._end_future.set_exception(outcome)
        else:
            self._end_future.set_result(outcome)
        self._waiting_frames.clear()
        if self._transport is not None:
            self._transport.pause_reading()


def _weight(frame: Frame) -> int:
    return len(frame.control) + len(frame.body) + REQUEST_BYTES


def _host_error(problem: BaseException) -> ProtocolError:
    return ProtocolError(f"an error of the host: {problem!r}")
