"""A line over successive connections: its user only notices a pause when one breaks."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from ramet.core.errors import Gone, ProtocolError
from ramet.wire.frames import Frame
from ramet.wire.resumable_stream import ResumableStream

_STEPS = 4


class Transport(Protocol):
    """A connection that keeps packet boundaries and their order, with one reader and one writer.

    It is never used again after an error.
    """

    @property
    def heard_at(self) -> float:
        """The event loop's time at which bytes last arrived."""

    async def send(self, packet: bytes) -> None:
        """Send a packet; wait while the other end is slow. Raises OSError once the connection has broken."""

    async def receive(self) -> bytes | None:
        """Return the next packet; None at the end.

        Raises OSError, TimeoutError, and ProtocolError for an invalid packet.
        """

    def abort(self) -> None:
        """Break the connection at once: a waiting `receive` or `send` returns. Idempotent."""


@dataclass(frozen=True, kw_only=True)
class LineTimeouts:
    """The timeouts of a line, in seconds."""

    heartbeat_s: float = 5.0  #: between keepalive packets, while there is nothing else to send
    silent_s: float = 15.0  #: after this silence a connection counts as broken: a half-open one reports no error
    give_up_s: float | None = 60.0  #: without a connection, the line has ended; None: never
    linger_s: float = 2.0  #: for what was sent to arrive, when the line is closed


class ResumingLine:
    """A side of a line (`ramet.isolation.remote.line.Line`), without a connection at first.

    `carry` provides one connection at a time. A frame that `receive` returns is acknowledged by that; the other side
    may be 8 MiB ahead.
    """

    def __init__(self, *, patience: LineTimeouts = LineTimeouts()) -> None:
        self._session, self._patience = ResumableStream(), patience
        self._delivered_number = 0  #: the number of the last frame that `receive` returned
        self.connections = 0  #: so far, on which a valid packet of the other side has arrived
        self._inbox: deque[Frame] = deque()
        self._transport: Transport | None = None
        self._is_closing = False
        self.has_ended = False  #: no connection is of use
        self._failure: ProtocolError | None = None  #: to be raised to the reader
        self._send_lock = asyncio.Lock()  #: held by the sender of the next frame
        self._has_room, self._has_new_frames, self._writable, self._has_disconnected, self._has_greeted = (
            asyncio.Event() for _ in range(5)
        )
        self._loop = asyncio.get_running_loop()
        self._giving_up: asyncio.TimerHandle | None = None
        self._wait_for_connection()

    # ---- frames -----------------------------------------------------------------------------------------------------

    async def send(self, frame: Frame) -> None:
        """Send a frame; wait while too much is under way.

        Raises Gone once the line has ended, and ProtocolError for a frame that is larger than any line accepts.
        """
        async with self._send_lock:
            while not self._is_over and not self._session.can_send(frame):
                self._has_room.clear()
                await self._has_room.wait()
            if self._is_over:
                raise Gone("the line has ended")
            self._session.send(frame)
            self._writable.set()

    async def receive(self) -> Frame | None:
        """Return the next frame; None once the line has ended permanently. One reader at a time.

        Raises ProtocolError, once, if the other side broke the rules.
        """
        while not self._inbox:
            if (failure := self._failure) is not None:
                self._failure = None
                raise failure
            if self._is_over:
                return None
            self._has_new_frames.clear()
            await self._has_new_frames.wait()
        self._delivered_number += 1
        self._session.acknowledge(self._delivered_number)
        self._writable.set()
        return self._inbox.popleft()

    async def close(self) -> None:
        """End the line after the frames that were sent; end it for the other side, too, if there is a connection.

        Idempotent.
        """
        self._is_closing = True
        self._inbox.clear()
        self._session.end()
        self._wake()
        if self._transport is not None and not self.has_ended:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._patience.linger_s):
                    await self._has_disconnected.wait()
        self._end()

    def give_up(self) -> None:
        """End the line at once, without notice: the other side is gone. Idempotent.

        Frames that have arrived can still be received.
        """
        self._end()

    # ---- connections ------------------------------------------------------------------------------------------------

    @property
    def is_connected(self) -> bool:
        """Return whether there is a connection that is not known to be broken."""
        return self._transport is not None

    async def wait_connected(self) -> None:
        """Wait until the first valid packet of the other side has arrived, or the line has ended."""
        await self._has_greeted.wait()

    @property
    def is_disconnected(self) -> bool:
        """Return whether the other side has announced its end."""
        return self._session.has_ended

    async def carry(self, transport: Transport, *, on_greeting: Callable[[], None] | None = None) -> None:
        """Use a connection until it breaks, another replaces it, or the line ends; then abort it.

        `on_greeting` is called when the other side's first packet was valid.
        """
        if self.has_ended:
            transport.abort()
            return
        if self._transport is not None:
            self._transport.abort()
        self._transport = transport
        if self._giving_up is not None:
            self._giving_up.cancel()
        self._session.on_connected()
        self._has_disconnected.clear()
        tasks = [
            self._loop.create_task(work)
            for work in (self._read(transport, on_greeting), self._write(transport), self._watch(transport))
        ]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            transport.abort()
            for task in tasks:
                task.cancel()
            if self._transport is transport:
                self._transport = None
                self._has_disconnected.set()
                self._wait_for_connection()
            ends = await asyncio.gather(*tasks, return_exceptions=True)
        for end in ends:
            if isinstance(end, ProtocolError):
                self._failure = self._failure or end
                self._end()
            elif isinstance(end, Exception) and not isinstance(end, OSError):  # TimeoutError is one
                raise end

    async def _read(self, transport: Transport, on_greeting: Callable[[], None] | None) -> None:
        is_greeted = False
        while (packet := await transport.receive()) is not None and self._transport is transport:
            frame = self._session.feed(packet)
            if not is_greeted:
                self.connections, is_greeted = self.connections + 1, True
                self._has_greeted.set()
                if on_greeting is not None:
                    on_greeting()
            if frame is not None and not self._is_closing:
                self._inbox.append(frame)
            self._wake()
            if self._session.has_ended:
                self._end()
                return

    async def _write(self, transport: Transport) -> None:
        alive = False
        while self._transport is transport:
            self._writable.clear()
            while (packet := self._session.next_packet(alive=alive)) is not None:
                alive = False
                await transport.send(packet)
                if self._transport is not transport:
                    return
            try:
                async with asyncio.timeout(self._patience.heartbeat_s):
                    await self._writable.wait()
            except TimeoutError:
                alive = True

    async def _watch(self, transport: Transport) -> None:
        """Return when nothing has arrived for too long.

        The time is checked in several steps, so that a delay of the event loop counts as one step only.
        """
        silent = 0
        while silent < _STEPS:
            last_heard_at = transport.heard_at
            await asyncio.sleep(self._patience.silent_s / _STEPS)
            silent = silent + 1 if transport.heard_at == last_heard_at else 0

    # ---- its end ----------------------------------------------------------------------------------------------------

    @property
    def _is_over(self) -> bool:
        return self._is_closing or self.has_ended

    def _wait_for_connection(self) -> None:
        if self._giving_up is not None:
            self._giving_up.cancel()
        if not self._is_over and self._patience.give_up_s is not None:
            self._giving_up = self._loop.call_later(self._patience.give_up_s, self._end)

    def _end(self) -> None:
        self.has_ended = True
        if self._giving_up is not None:
            self._giving_up.cancel()
        if self._transport is not None:
            self._transport.abort()
        self._has_disconnected.set()
        self._has_greeted.set()
        self._wake()

    def _wake(self) -> None:
        for waited_for in (self._has_room, self._has_new_frames, self._writable):
            waited_for.set()
