"""The guests' door: one per sandbox, at the host's end of its channel. Reads what a guest says, and lets it be done.

The guest is hostile: its frames are bounded and typed, its requests numbered, counted and slowed down, and none of its
words opens a path or runs code here. Over a bound the door stops reading; for a broken rule it closes.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Coroutine
from typing import Any, NamedTuple, Protocol

from ramet.core.errors import InvalidValue, ProtocolError
from ramet.wire import frames, requests
from ramet.wire.frames import Frame, FrameReader
from ramet.wire.requests import Answer, Done, PerformTask, Request, Said, Spawn, Told

#: Requests a second that a guest may make for ever, and how many at once after a rest.
RATE_PER_S, BURST = 200.0, 400.0
#: Requests being worked on; births have a bound of their own in the policy.
MAX_IN_FLIGHT = 64
#: Bytes of bodies being worked on.
MAX_BYTES_IN_FLIGHT = frames.MAX_BODY
#: Bytes that wait for the guest to read them, before whoever has more to tell must wait.
MAX_OUTBOUND = 8 * 1024 * 1024


class Reply(NamedTuple):
    """What a request is answered with."""

    data: Any = None
    body: bytes = b""


class Service(Protocol):
    """What is behind the door."""

    async def answer(self, request: Request, body: bytes) -> Reply:
        """Do what is asked. What it raises of ramet's own errors is told to the guest."""

    def hear(self, said: Said, body: bytes) -> Coroutine[Any, Any, None] | None:
        """Take what needs no answer, at once and in order; what it returns goes on beside. Raises ProtocolError."""

    def failed(self, error: Exception) -> tuple[Any, dict[str, Any]]:
        """An error as the guest is told it."""


class Finished(NamedTuple):
    """The last word of a guest, with its body."""

    done: Done
    body: bytes


class Door(asyncio.Protocol):
    """Open from `open` to `close`. `over` is its end: the guest's last word, or None if it left without one."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._loop = asyncio.get_running_loop()
        self._reader = FrameReader()
        self._transport: asyncio.Transport | None = None
        self._channel: socket.socket | None = None
        self._over: asyncio.Future[Finished | None] = self._loop.create_future()
        self._over.add_done_callback(lambda over: over.cancelled() or over.exception())
        self._waiting: list[Frame] = []  #: arrived, not yet looked at: a bound was reached
        self._tasks: set[asyncio.Task[None]] = set()
        self._last_id = 0
        self._in_flight = self._bytes_in_flight = 0
        self._tokens, self._tokens_at = BURST, self._loop.time()
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._partial_since = 0.0
        self._may_write = asyncio.Event()
        self._may_write.set()
        self._writing = asyncio.Lock()

    async def open(self, channel: socket.socket) -> None:
        """Take over the host's end of a channel."""
        self._channel = channel
        await self._loop.create_connection(lambda: self, sock=channel)

    async def over(self) -> Finished | None:
        """Wait for the guest's last word; None if it left without. Raises ProtocolError for a broken rule."""
        return await asyncio.shield(self._over)

    async def close(self) -> None:
        """Hear nothing more, and end what is still being done for this guest."""
        for timer in self._timers.values():
            timer.cancel()
        self._end(None)
        if self._transport is not None:
            self._transport.abort()
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def tell(self, told: Told, body: bytes = b"") -> None:
        """Say something to the guest; waits while it does not read. To a guest that has left, nothing is said."""
        async with self._writing:
            await self._may_write.wait()
            if self._transport is not None and not self._transport.is_closing():
                self._transport.writelines(frames.pack(requests.encode(told), body))

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
        transport.set_write_buffer_limits(high=MAX_OUTBOUND)
        self._transport = transport

    def pause_writing(self) -> None:
        """The guest does not read."""
        self._may_write.clear()

    def resume_writing(self) -> None:
        """It reads again."""
        self._may_write.set()

    def data_received(self, data: bytes) -> None:
        """Bytes of the guest."""
        if self._over.done():
            return
        try:
            whole = self._reader.feed(data)
        except ProtocolError as broken:
            return self._end(broken)
        self._watch_partial(is_new=bool(whole))
        self._waiting += whole
        self._work_off()

    def connection_lost(self, problem: Exception | None) -> None:
        """The guest has left, or we have."""
        self._may_write.set()
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
            while at < len(self._waiting) and not self._over.done() and self._has_room():
                frame = self._waiting[at]
                at += 1
                self._take(frame)
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

    def _has_room(self) -> bool:
        now = self._loop.time()
        self._tokens = min(BURST, self._tokens + (now - self._tokens_at) * RATE_PER_S)
        self._tokens_at = now
        if self._tokens < 1:
            if "tokens" not in self._timers:
                self._timers["tokens"] = self._loop.call_later((1 - self._tokens) / RATE_PER_S, self._refilled)
            return False
        return self._in_flight < MAX_IN_FLIGHT and self._bytes_in_flight < MAX_BYTES_IN_FLIGHT

    def _refilled(self) -> None:
        self._timers.pop("tokens", None)
        self._work_off()

    def _take(self, frame: Frame) -> None:
        self._tokens -= 1
        said = requests.from_guest(frame.control)
        if isinstance(said, Done):
            self._end(Finished(said, frame.body))
        elif isinstance(said, Request):
            if said.id <= self._last_id:
                raise ProtocolError(f"request {said.id} came after request {self._last_id}; numbers must rise")
            self._last_id = said.id
            counted, size = int(not isinstance(said, Spawn | PerformTask)), len(frame.body)
            self._in_flight += counted
            self._bytes_in_flight += size

            def settle(_: asyncio.Task[None]) -> None:
                self._in_flight -= counted
                self._bytes_in_flight -= size
                if self._waiting:
                    self._loop.call_soon(self._work_off)

            self.beside(self._answer(said, frame.body)).add_done_callback(settle)
        else:
            work = self._service.hear(said, frame.body)
            if work is not None:
                self.beside(work)

    async def _answer(self, request: Request, body: bytes) -> None:
        try:
            reply = await self._service.answer(request, body)
        except ProtocolError as broken:
            return self._end(broken)
        except Exception as error:
            info, fields = self._service.failed(error)
            return await self.tell(Answer(id=request.id, error=info, fields=fields))
        try:
            await self.tell(Answer(id=request.id, data=requests.raw(reply.data)), reply.body)
        except ProtocolError as too_large:  # Ours: the guest broke no rule by asking.
            info, fields = self._service.failed(InvalidValue("answer", request.id, str(too_large)))
            await self.tell(Answer(id=request.id, error=info, fields=fields))

    def _done_beside(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._end(error if isinstance(error, ProtocolError) else _ours(error))

    def _end(self, how: Finished | Exception | None) -> None:
        if self._over.done():
            return
        if isinstance(how, Exception):
            self._over.set_exception(how)
        else:
            self._over.set_result(how)
        self._waiting.clear()
        if self._transport is not None:
            self._transport.pause_reading()


def _ours(problem: BaseException) -> ProtocolError:
    return ProtocolError(f"ours: {problem!r}")
