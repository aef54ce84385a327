"""The guests' door: one per sandbox, at the host's end of its channel. Reads what a guest says, and lets it be done.

The guest is hostile: its frames are bounded and typed, its requests numbered, counted and slowed down, and none of its
words opens a path or runs code here. Over a bound the door stops reading; for a broken rule it closes.
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
from ramet.spawn.cpu_metering import metered
from ramet.spawn.sandbox.outbound import Body, Outbound
from ramet.wire import guest_protocol
from ramet.wire.frames import Frame, FrameReader
from ramet.wire.guest_protocol import Answer, Done, GuestMessage, HostMessage, PerformTask, Request, Spawn, Watch

#: Requests a second that a guest may make for ever, and how many at once after a rest.
RATE_PER_S, BURST = 200.0, 400.0
#: Requests being worked on; births have a bound of their own in the policy.
MAX_IN_FLIGHT = 64
#: Bytes of requests being worked on, unless a single request is larger; and what a request counts beside its bytes.
MAX_BYTES_IN_FLIGHT, REQUEST_BYTES = 16 * 1024 * 1024, 4 * 1024
#: Seconds of the event loop that a guest may take at once; for all that it takes, others have so many times as much.
AT_ONCE_S, OTHERS_SHARE = 0.1, 4


class Reply(NamedTuple):
    """What a request is answered with."""

    data: Any = None
    body: Body = b""


class LargeReply(NamedTuple):
    """A reply that may be much larger than its request: made when it can be sent, one at a time."""

    make: Callable[[], Awaitable[Reply]]


class Service(Protocol):
    """What is behind the door."""

    async def answer(self, request: Request, body: bytes) -> Reply | LargeReply:
        """Do what is asked. What it raises of ramet's own errors is told to the guest."""

    def hear(self, said: GuestMessage, body: bytes) -> Coroutine[Any, Any, None] | None:
        """Take what needs no answer, at once and in order. Raises ProtocolError.

        A coroutine that it returns goes on beside. Until that is done nothing more is read, unless it is of a `Watch`.
        """

    def failed(self, error: Exception) -> tuple[Any, dict[str, Any]]:
        """An error as the guest is told it."""


class FinalMessage(NamedTuple):
    """The last word of a guest, with its body."""

    done: Done
    body: bytes


class GuestChannel(asyncio.Protocol):
    """Open from `open` to `close`. `over` is its end: the guest's last word, or None if it left without one."""

    def __init__(self, service: Service, clock: Clock | None = None) -> None:
        self._service = service
        self._loop = asyncio.get_running_loop()
        self._clock = clock or SystemClock()
        self._outbound = Outbound(self._clock, on_room=self._go_on, on_end=self._end)
        self._reader = FrameReader()
        self._transport: asyncio.Transport | None = None
        self._channel: socket.socket | None = None
        self._over: asyncio.Future[FinalMessage | None] = self._loop.create_future()
        self._over.add_done_callback(lambda over: over.cancelled() or over.exception())
        self._waiting: list[Frame] = []  #: arrived, not yet looked at: a bound was reached
        self._tasks: set[asyncio.Task[None]] = set()
        self._last_id = 0
        self._in_flight = self._bytes_in_flight = self._held = 0
        self._tokens, self._tokens_at = BURST, self._loop.time()
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._partial_since = 0.0
        self._begins = False  #: a request has not had its first turn of the loop
        self._rested = asyncio.Event()
        self._rested.set()
        self._rests_until = 0.0  #: by the clock: others have had their share of the loop then

    async def open(self, channel: socket.socket) -> None:
        """Take over the host's end of a channel."""
        self._channel = channel
        await self._loop.create_connection(lambda: self, sock=channel)

    async def over(self) -> FinalMessage | None:
        """Wait for the guest's last word; None if it left without. Raises ProtocolError for a broken rule."""
        return await asyncio.shield(self._over)

    async def close(self) -> None:
        """Hear nothing more, and end what is still being done for this guest."""
        for timer in self._timers.values():
            timer.cancel()
        self._end(None)
        self._outbound.close()
        if self._transport is not None:
            self._transport.abort()
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def tell(self, told: HostMessage, body: Body = b"") -> None:
        """Say something to the guest; waits while it does not read. To a guest that has left, nothing is said."""
        await self._outbound.send(told, body)

    async def in_turn(self, work: Callable[[], Awaitable[None]]) -> None:
        """Make and tell something large, one at a time, once the guest has read what waits for it."""
        await self._outbound.in_turn(work)

    def beside(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Do something for this guest, no longer than the door is open."""
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done_beside)
        return task

    # ---- what asyncio calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The channel is ours to read and write."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._outbound.attach(transport)

    def pause_writing(self) -> None:
        """The guest does not read."""
        self._outbound.pause()

    def resume_writing(self) -> None:
        """It reads again."""
        self._outbound.resume()

    def data_received(self, data: bytes) -> None:
        """Bytes of the guest."""
        if self._over.done():
            return
        began = time.thread_time()
        try:
            whole = self._reader.feed(data)
        except ProtocolError as broken:
            return self._end(broken)
        finally:
            self._charge(time.thread_time() - began)
        self._watch_partial(is_new=bool(whole))
        self._waiting += whole
        self._work_off()

    def connection_lost(self, problem: Exception | None) -> None:
        """The guest has left, or we have."""
        self._outbound.resume()
        if problem is not None and (rest := self._unread()):
            self.data_received(rest)
        if not self._waiting:
            self._end(None)

    # ----

    def _unread(self) -> bytes:
        """What a guest had said that left while something was being told to it: asyncio drops it with the error."""
        parts: list[bytes] = []
        with contextlib.suppress(OSError):
            while self._channel is not None and (part := self._channel.recv(256 * 1024)):
                parts.append(part)
        return b"".join(parts)

    def _watch_partial(self, *, is_new: bool) -> None:
        """A frame that has begun must come to its end in time, however slowly it trickles in."""
        timer = self._timers.pop("frame", None)
        if timer is not None:
            timer.cancel()
        if not self._reader.is_partial:
            return
        if is_new or timer is None:
            self._partial_since = self._loop.time()
        late = ProtocolError("a frame was begun and not ended in time")
        self._timers["frame"] = self._loop.call_at(self._partial_since + self._reader.allowance_s, self._end, late)

    def _work_off(self) -> None:
        """Look at what has arrived, as far as the bounds let us; beyond them, read no further."""
        at = 0
        try:
            while at < len(self._waiting) and not self._over.done() and self._has_room(self._waiting[at]):
                frame = self._waiting[at]
                at += 1
                began = time.thread_time()
                try:
                    self._take(frame)
                finally:
                    self._charge(time.thread_time() - began)
        except ProtocolError as broken:
            self._end(broken)
        except Exception as problem:  # Whoever waits for this guest hears of it.
            self._end(_ours(problem))
        del self._waiting[:at]
        transport = self._transport
        if transport is None or transport.is_closing():
            if not self._waiting:
                self._end(None)
        elif self._waiting:
            transport.pause_reading()
        else:
            transport.resume_reading()

    def _has_room(self, frame: Frame) -> bool:
        if self._held or self._outbound.is_full:
            return False
        if self._begins or not self._rested.is_set():
            return False
        now = self._loop.time()
        self._tokens = min(BURST, self._tokens + (now - self._tokens_at) * RATE_PER_S)
        self._tokens_at = now
        if self._tokens < 1:
            if "tokens" not in self._timers:
                self._timers["tokens"] = self._loop.call_later((1 - self._tokens) / RATE_PER_S, self._refilled)
            return False
        bytes_then = self._bytes_in_flight + _weight(frame)
        return self._in_flight < MAX_IN_FLIGHT and (not self._bytes_in_flight or bytes_then <= MAX_BYTES_IN_FLIGHT)

    def _refilled(self) -> None:
        self._timers.pop("tokens", None)
        self._work_off()

    def _take(self, frame: Frame) -> None:
        self._tokens -= 1
        said = guest_protocol.from_guest(frame.control)
        if isinstance(said, Done):
            self._end(FinalMessage(said, frame.body))
        elif isinstance(said, Request):
            if said.id <= self._last_id:
                raise ProtocolError(f"request {said.id} came after request {self._last_id}; numbers must rise")
            self._last_id = said.id
            counted, size = int(not isinstance(said, Spawn | PerformTask)), _weight(frame)
            self._in_flight += counted
            self._bytes_in_flight += size

            def settle(_: asyncio.Task[None]) -> None:
                self._in_flight -= counted
                self._bytes_in_flight -= size
                self._go_on()

            self.beside(self._serve(said, frame.body)).add_done_callback(settle)
            self._begins = True  # asyncio calls in order: the request has its first turn before `_has_begun` is called.
            self._loop.call_soon(self._has_begun)
        else:
            work = self._service.hear(said, frame.body)
            if work is not None and isinstance(said, Watch):
                self.beside(work)
            elif work is not None:
                self._held += 1
                self.beside(work).add_done_callback(self._release)

    def _has_begun(self) -> None:
        self._begins = False
        if self._waiting:
            self._work_off()

    def _charge(self, used_s: float) -> None:
        """Count time that this guest took of the event loop; beyond AT_ONCE_S at once, let others have their share."""
        now = self._clock.monotonic()
        self._rests_until = max(self._rests_until, now) + OTHERS_SHARE * used_s
        if self._rested.is_set() and not self._over.done() and self._rests_until - now > OTHERS_SHARE * AT_ONCE_S:
            self._rested.clear()
            self.beside(self._rest())

    async def _rest(self) -> None:
        while (left_s := self._rests_until - self._clock.monotonic()) > 0:
            await self._clock.sleep(left_s)
        self._rested.set()
        self._go_on()

    def _release(self, _: asyncio.Task[None]) -> None:
        self._held -= 1
        self._go_on()

    def _go_on(self) -> None:
        if self._waiting:
            self._loop.call_soon(self._work_off)

    async def _serve(self, request: Request, body: bytes) -> None:
        await metered(self._answer(request, body), self._charge)

    async def _answer(self, request: Request, body: bytes) -> None:
        try:
            reply = await self._service.answer(request, body)
            if isinstance(reply, LargeReply):
                make = reply.make
                return await self.in_turn(lambda: self._make(request, make))
        except ProtocolError as broken:
            return self._end(broken)
        except Exception as error:
            info, fields = self._service.failed(error)
            return await self.tell(Answer(id=request.id, error=info, fields=fields))
        return await self._tell_reply(request, reply)

    async def _make(self, request: Request, make: Callable[[], Awaitable[Reply]]) -> None:
        await self._rested.wait()
        await self._tell_reply(request, await make())

    async def _tell_reply(self, request: Request, reply: Reply) -> None:
        try:
            await self.tell(Answer(id=request.id, data=guest_protocol.raw(reply.data)), reply.body)
        except ProtocolError as too_large:  # Ours: the guest broke no rule by asking.
            info, fields = self._service.failed(InvalidValue("answer", request.id, str(too_large)))
            await self.tell(Answer(id=request.id, error=info, fields=fields))

    def _done_beside(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._end(error if isinstance(error, ProtocolError) else _ours(error))

    def _end(self, how: FinalMessage | Exception | None) -> None:
        if self._over.done():
            return
        if isinstance(how, Exception):
            self._over.set_exception(how)
        else:
            self._over.set_result(how)
        self._waiting.clear()
        if self._transport is not None:
            self._transport.pause_reading()


def _weight(frame: Frame) -> int:
    return len(frame.control) + len(frame.body) + REQUEST_BYTES


def _ours(problem: BaseException) -> ProtocolError:
    return ProtocolError(f"ours: {problem!r}")
