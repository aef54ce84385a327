"""The queue of messages to be sent on a line, in order, for senders that do not wait."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque

from ramet.core.errors import RametError
from ramet.isolation.remote.line import Line
from ramet.isolation.remote.messages import NodeMessage, encode
from ramet.wire.frames import Frame

#: Limit of bytes that wait to be sent, above which the reader pauses; the overhead that is counted for each frame.
MAX_WAITING, FRAME_BYTES = 8 * 1024 * 1024, 256


_log = logging.getLogger("ramet.remote")


class Outbox:
    """The queue that sends posted messages. Windows and open requests bound most of its size.

    `wait_room` bounds the answers to messages of the other side: the reader of these messages waits for it.
    """

    def __init__(self, line: Line) -> None:
        self._line = line
        self._frames: deque[Frame] = deque()
        self._queued_bytes = 0  #: bytes of all frames
        self._sent_count = 0  #: frames
        self._has_room = asyncio.Event()
        self._has_room.set()
        self._has_frames, self._empty = asyncio.Event(), asyncio.Event()
        self._empty.set()
        self._is_closed = False
        self._task = asyncio.get_running_loop().create_task(self._send())

    def post(self, message: NodeMessage, body: bytes = b"") -> None:
        """Queue a message; do nothing once the line has ended."""
        if not self._is_closed:
            frame = Frame(encode(message), body)
            self._frames.append(frame)
            self._queued_bytes += _weight(frame)
            if self._queued_bytes > MAX_WAITING:
                self._has_room.clear()
            self._has_frames.set()
            self._empty.clear()

    @property
    def is_full(self) -> bool:
        """Return whether more than MAX_WAITING bytes wait to be sent."""
        return not self._has_room.is_set()

    async def wait_room(self, within_s: float) -> None:
        """Wait until at most MAX_WAITING bytes wait.

        Raises TimeoutError if nothing was sent within `within_s`.
        """
        while not self._has_room.is_set():
            sent_before = self._sent_count
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(within_s):
                    await self._has_room.wait()
            if not self._has_room.is_set() and self._sent_count == sent_before:
                raise TimeoutError

    async def flush(self, within_s: float) -> None:
        """Wait until all posted messages are sent, or the line has ended, or `within_s` has passed."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                await self._empty.wait()

    async def close(self) -> None:
        """Stop sending. Idempotent."""
        self._drop()
        self._task.cancel()
        await asyncio.wait((self._task,))

    def _drop(self) -> None:
        self._is_closed = True
        self._frames.clear()
        self._queued_bytes = 0
        self._empty.set()
        self._has_room.set()

    async def _send(self) -> None:
        try:
            while True:
                await self._has_frames.wait()
                self._has_frames.clear()
                while self._frames:
                    await self._line.send(self._frames[0])
                    if self._frames:
                        self._queued_bytes -= _weight(self._frames.popleft())
                        self._sent_count += 1
                        if self._queued_bytes <= MAX_WAITING:
                            self._has_room.set()
                self._empty.set()
        except (RametError, OSError):
            await self._end()
        except Exception:  # A defect. Without an end of the line, both sides would wait forever.
            _log.exception("messages to a machine or a kernel can no longer be sent")
            await self._end()

    async def _end(self) -> None:
        self._drop()
        await self._line.close()  # The reader of the line sees its end.


def _weight(frame: Frame) -> int:
    return len(frame.control) + len(frame.body) + FRAME_BYTES
