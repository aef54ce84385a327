"""A way between a kernel and a machine, whatever it is made of: whole frames, in order, each once."""

from __future__ import annotations

from typing import Protocol

from ramet.wire.frames import Frame


class Line(Protocol):
    """One connection of two ends. What it is made of may break and be made anew: whoever uses it notices a pause."""

    async def send(self, frame: Frame) -> None:
        """Send a frame; waits while too much is under way. Raises Gone once the line has ended."""

    async def receive(self) -> Frame | None:
        """The next frame; None once the line has ended for good, or OSError with the reason. One reader at a time."""

    async def close(self) -> None:
        """End it; who waits in `receive` gets None. Idempotent."""
