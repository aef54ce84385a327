"""The line to a pod, whose end waits a moment for the cluster to say why: it knows later than the line, and better."""

from __future__ import annotations

import asyncio

from ramet.isolation.kubernetes.pods.pod import Pod
from ramet.isolation.remote.line import Line
from ramet.wire.frames import Frame

_KNOWN_S = 5.0  #: from a program's end to the word of it; passed only where the API is away, or a program lies


class PodLine:
    """A `Line`: as the other, and as long as that."""

    def __init__(self, line: Line, pod: Pod) -> None:
        self._line, self._pod = line, pod

    async def send(self, frame: Frame) -> None:
        """See `Line`."""
        await self._line.send(frame)

    async def receive(self) -> Frame | None:
        """See `Line`. The pod's program has ended the line: that is told once the pod's trouble is, or not soon."""
        frame = await self._line.receive()
        if frame is None:
            await asyncio.wait((self._pod.troubled, self._pod.gone), timeout=_KNOWN_S, return_when="FIRST_COMPLETED")
        return frame

    async def close(self) -> None:
        """See `Line`."""
        await self._line.close()
