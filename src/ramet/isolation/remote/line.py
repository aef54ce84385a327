"""The connection between a kernel and a machine, over any transport: whole frames, in order, each exactly once."""

from __future__ import annotations

from typing import Protocol

from ramet.wire.frames import Frame


class Line(Protocol):
    """A connection with two ends. Its transport may break and reconnect; the user only notices a pause."""

    async def send(self, frame: Frame) -> None:
        """Send a frame; wait while too much is under way. Raises Gone once the line has ended."""

    async def receive(self) -> Frame | None:
        """Return the next frame; None once the line has ended permanently. One reader at a time.

        Raises OSError if the line ended for a reason, which is in the error.
        """

    async def close(self) -> None:
        """End the line; a waiting `receive` returns None. Idempotent."""
