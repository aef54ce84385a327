"""The line to a pod. Its end waits briefly for the cluster's reason, which is better than the line's, but later."""

from __future__ import annotations

import asyncio

from ramet.isolation.kubernetes.pods.pod import Pod
from ramet.isolation.remote.line import Line
from ramet.wire.frames import Frame

_REPORT_S = 5.0  #: from a program's end to the report of it; exceeded only if the API is away, or a program lies


class PodLine:
    """A `Line` that wraps another line, and has the same lifetime."""

    def __init__(self, line: Line, pod: Pod) -> None:
        self._line, self._pod = line, pod

    async def send(self, frame: Frame) -> None:
        """See `Line`."""
        await self._line.send(frame)

    async def receive(self) -> Frame | None:
        """See `Line`. After the end of the line, wait up to 5 s for the pod's failure or removal."""
        frame = await self._line.receive()
        if frame is None:
            await asyncio.wait(
                (self._pod.failure_future, self._pod.removal), timeout=_REPORT_S, return_when="FIRST_COMPLETED"
            )
        return frame

    async def close(self) -> None:
        """See `Line`."""
        await self._line.close()
