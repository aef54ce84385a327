"""The outbound side of a guest's channel: messages are written in pieces, and at most MAX_OUTBOUND bytes wait.

A guest that does not read makes senders wait. The channel is ended once the guest has read nothing for MAX_UNREAD_S.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from ramet.concurrency.clock import Clock
from ramet.concurrency.threads import in_thread
from ramet.core.errors import ProtocolError
from ramet.isolation.workspace.checkpoint import OpenCheckpoint
from ramet.wire import frames
from ramet.wire.guest_protocol import message_codec
from ramet.wire.guest_protocol.host_to_guest import HostMessage

#: Bytes that wait for the guest to read them. Above this nothing is sent, and no request is begun.
MAX_OUTBOUND = 1024 * 1024
#: A body is written, and read from its file, in pieces of this size.
PIECE = 256 * 1024
#: Seconds that a guest may read nothing while the outbound side is full.
MAX_UNREAD_S = 300.0
_STEPS = 10  #: number of checks in that time: a late check, on a slow machine, counts as one


@dataclass(frozen=True, kw_only=True)
class FileBody:
    """The body of a message that is read from an open file while it is sent. The outbound side closes the file."""

    fd: int
    offset: int
    size: int

    def close(self) -> None:
        os.close(self.fd)


Body = bytes | FileBody


F = TypeVar("F", FileBody, OpenCheckpoint)


async def open_body(find: Callable[[], F | None]) -> F | None:
    """Call `find` in a thread. A caller that is cancelled meanwhile leaves no file open."""
    search = in_thread(find, name="ramet-channel")
    try:
        return await asyncio.shield(search)
    except asyncio.CancelledError:
        search.add_done_callback(_close_unused_file)
        raise


def open_artifact(path: str) -> FileBody | None:
    """Open the host's copy of a child's file; return None if it does not exist any more."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return None
    return FileBody(fd=fd, offset=0, size=os.fstat(fd).st_size)


def _close_unused_file(search: asyncio.Future[Any]) -> None:
    if search.exception() is None and (file := search.result()) is not None:
        os.close(file.fd)


class Outbound:
    """A sender of messages to one guest, in the order of the calls."""

    def __init__(self, clock: Clock, *, on_room: Callable[[], None], on_end: Callable[[ProtocolError], None]) -> None:
        """Call `on_room` when the guest reads again, and `on_end` when the channel must end."""
        self._clock, self._on_room, self._on_end = clock, on_room, on_end
        self._transport: asyncio.Transport | None = None
        self._has_room = asyncio.Event()
        self._has_room.set()
        self._sending, self._large = asyncio.Lock(), asyncio.Lock()
        self._watching: asyncio.Task[None] | None = None
        self.is_frozen = False  #: the guest cannot read now
        self._is_truncated = False  #: a message was begun and not completed

    def attach(self, transport: asyncio.Transport) -> None:
        transport.set_write_buffer_limits(high=MAX_OUTBOUND)
        self._transport = transport

    @property
    def is_full(self) -> bool:
        """True if the guest must read before more is sent."""
        return not self._has_room.is_set()

    def pause(self) -> None:
        """Stop sending until `resume`: MAX_OUTBOUND bytes wait."""
        self._has_room.clear()
        if self._watching is None:
            self._watching = asyncio.get_running_loop().create_task(self._watch())

    def resume(self) -> None:
        """Resume sending: the guest has read, or it has left. Idempotent."""
        self.stop_watching()
        if not self._has_room.is_set():
            self._has_room.set()
            self._on_room()

    def stop_watching(self) -> None:
        """Stop watching whether the guest reads. Idempotent."""
        if self._watching is not None:
            self._watching.cancel()
            self._watching = None

    async def send(self, message: HostMessage, body: Body = b"") -> None:
        """Send a message; wait while the guest does not read.

        Nothing is sent to a guest that has left. Raises ProtocolError if the message is larger than any reader accepts.
        """
        try:
            control = message_codec.encode(message)
            size = body.size if isinstance(body, FileBody) else len(body)
            head = frames.head(control, size)
            async with self._sending:
                await self._send(head, body, size)
        finally:
            if isinstance(body, FileBody):
                body.close()

    async def run_in_order(self, work: Callable[[], Awaitable[None]]) -> None:
        """Make and send a large message: one at a time, and not before the guest has read."""
        async with self._large:
            await self._has_room.wait()
            await work()

    async def _send(self, head: bytes, body: Body, size: int) -> None:
        if isinstance(body, bytes) and size <= PIECE:
            return await self._write(head + body if size else head)
        await self._write(head)
        is_whole = False
        try:
            for at in range(0, size, PIECE):
                await self._write(body[at : at + PIECE] if isinstance(body, bytes) else await _read(body, at))
            is_whole = True
        except (OSError, EOFError) as problem:
            self._on_end(ProtocolError(f"an error of the host: a file could not be sent: {problem}"))
        finally:
            # After a part of a message, another message would be taken for its rest.
            self._is_truncated |= not is_whole
        return None

    async def _write(self, data: bytes) -> None:
        await self._has_room.wait()
        if self._transport is not None and not self._is_truncated and not self._transport.is_closing():
            self._transport.write(data)

    async def _watch(self) -> None:
        """End the channel once the guest has read nothing between `_STEPS` consecutive checks."""
        assert self._transport is not None, "only a transport pauses"
        unread, checks = self._transport.get_write_buffer_size(), 0
        while checks < _STEPS:
            await self._clock.sleep(MAX_UNREAD_S / _STEPS)
            remaining = self._transport.get_write_buffer_size()
            checks = checks + 1 if remaining == unread and not self.is_frozen else 0
            unread = remaining
        self._watching = None
        self._on_end(
            ProtocolError(f"the guest did not read its channel for {MAX_UNREAD_S:g} s, while {unread} bytes waited")
        )


async def _read(body: FileBody, at: int) -> bytes:
    size = min(PIECE, body.size - at)
    piece = await in_thread(lambda: os.pread(body.fd, size, body.offset + at), name="ramet-channel")
    if len(piece) < size:
        raise EOFError(f"it ends {size - len(piece)} bytes too early")
    return piece
