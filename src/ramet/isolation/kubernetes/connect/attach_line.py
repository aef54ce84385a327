"""A line over connections that break: frames wait, and are sent again, until one end gives up."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable

from ramet.core.errors import Gone, ProtocolError
from ramet.wire.frames import Frame
from ramet.wire.resumable_stream import ResumableStream, buffered_size

#: The longest interval in seconds between two packets of a side. A connection that is silent for SILENT such intervals
#: counts as broken, even if it reports no error.
ALIVE_S = 10.0
SILENT = 3
#: Bytes of received frames that are acknowledged at once, and not only with the next frame.
_ACK_BYTES = 256 * 1024
_PARTING_S = 2.0

Write = Callable[[bytes], Awaitable[None]]


class ReconnectingLine:
    """A `ramet.isolation.remote.line.Line` over successive connections that are given to `carry`.

    The owner calls `carry` with connections until the line has ended, or calls `fail` after its own timeout. Unlike a
    `ramet.isolation.transport.resuming.ResumingLine`, the line acknowledges in batches, because each packet costs the
    API server work. It also tells its reader why the line failed, and leaves it to its owner how to handle a silent
    connection.
    """

    def __init__(self, patience_s: float) -> None:
        """Create the line.

        `patience_s` is how long both ends wait for each other. Keepalive packets are far more frequent.
        """
        self._alive_s = min(ALIVE_S, patience_s / (SILENT + 2))
        self._session = ResumableStream()
        self._inbox: deque[tuple[int, Frame]] = deque()
        self._received_number, self._size = (
            0,
            0,
        )  #: number of the last received frame; bytes received but not acknowledged
        self._has_unsent = False  #: there may be frames that were not sent on this connection
        self.has_ended = False  #: nothing can be sent any more
        self._is_closing = self._is_lost = False
        self.end_reason = ""  #: empty before the end of the line
        self._has_frames, self._has_work, self._has_progress = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self._has_sent_end = asyncio.Event()
        self.heard_at = 0.0  #: the event loop's time of the last packet from the other end; 0: never

    async def send(self, frame: Frame) -> None:
        """Send a frame; wait while too much is under way.

        Raises Gone once the line has ended, and ProtocolError for a frame that is too large.
        """
        while not self._is_closing and not self._session.can_send(frame):
            self._has_progress.clear()
            await self._has_progress.wait()
        if self._is_closing:
            raise Gone(self.end_reason or "the line has ended")
        self._session.send(frame)
        self._has_unsent = True
        self._has_work.set()

    async def receive(self) -> Frame | None:
        """Return the next frame; None once the line has ended permanently.

        Raises ConnectionError if the line has failed.
        """
        while not self._inbox:
            if self._is_lost:
                raise ConnectionAbortedError(self.end_reason)
            if self.has_ended:
                return None
            self._has_frames.clear()
            await self._has_frames.wait()
        self._received_number, frame = self._inbox.popleft()
        self._size += buffered_size(frame)
        if self._size >= _ACK_BYTES:
            self._has_work.set()
        return frame

    async def close(self) -> None:
        """Send the end of the line if the other end was ever there, and end the line. Idempotent."""
        if not self._is_closing:
            self._is_closing = True
            self._session.end()
            self._has_work.set()
            if self.heard_at:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_PARTING_S):
                        await self._has_sent_end.wait()
        self.fail("the line was closed")

    def fail(self, reason: str) -> None:
        """End the line at once, because the other end is gone. Frames that have arrived can still be received."""
        if not self.has_ended:
            self.has_ended = self._is_closing = True
            self.end_reason = reason
        for event in (self._has_frames, self._has_work, self._has_progress, self._has_sent_end):
            event.set()

    def fail_line(self, reason: str) -> None:
        """End the line at once; `receive` raises an error with this reason."""
        self._is_lost = not self.has_ended
        self.fail(reason)

    async def carry(self, packets: AsyncIterator[bytes], write: Write) -> None:
        """Use a connection until it breaks or the line ends, by either end.

        Raises what `packets` and `write` raise, and TimeoutError if nothing arrives for too long. A violation of the
        session's protocol ends the line.
        """
        self._session.on_connected()
        self._has_unsent = True
        self._has_work.set()
        tasks = (asyncio.ensure_future(self._read(packets)), asyncio.ensure_future(self._write(write)))
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        for task in tasks:
            if not task.cancelled():
                task.result()

    async def _read(self, packets: AsyncIterator[bytes]) -> None:
        is_first = True
        while not self._session.has_ended:
            try:
                async with asyncio.timeout(SILENT * self._alive_s):
                    packet = await anext(packets)
            except StopAsyncIteration:
                return
            try:
                frame = self._session.feed(packet)
            except ProtocolError as error:
                return self.fail(str(error))
            if is_first:  # A hello: frames may be sent now.
                is_first = False
                self._has_work.set()
            self.heard_at = asyncio.get_running_loop().time()
            self._has_progress.set()
            if frame is not None:
                self._inbox.append((self._session.last_received, frame))
                self._has_frames.set()
        self.fail("the other end has ended the line")

    async def _write(self, write: Write) -> None:
        loop = asyncio.get_running_loop()
        alive_at = loop.time() + self._alive_s
        while True:
            self._has_work.clear()
            is_due = loop.time() >= alive_at
            if is_due or self._has_unsent or self._size >= _ACK_BYTES:
                self._session.acknowledge(self._received_number)
                self._size = 0
            packet = self._session.next_packet(alive=is_due)
            if packet is not None:
                await write(packet)
                alive_at = loop.time() + self._alive_s
            elif self.has_ended:
                return
            else:
                self._has_unsent = False
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout_at(max(alive_at, loop.time() + 0.1)):
                        await self._has_work.wait()
            if self._session.has_sent_end:
                return self._has_sent_end.set()
