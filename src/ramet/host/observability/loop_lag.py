"""The lag of the event loop: the delay with which it starts due work, while other work holds it."""

from __future__ import annotations

import asyncio
from typing import Final

from ramet.host.observability.counters import Histogram

PERIOD_S: Final = 0.25  #: between two samples
BOUNDS_S: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)


class LoopLag:
    """A sampler of the lag of the running event loop, from `start` to `stop`. `seconds` are the samples."""

    def __init__(self, period_s: float = PERIOD_S) -> None:
        self.seconds = Histogram(BOUNDS_S)
        self._period_s = period_s
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Start sampling; idempotent."""
        if self._timer is None:
            self._arm(asyncio.get_running_loop())

    def stop(self) -> None:
        """Stop sampling; idempotent."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _arm(self, loop: asyncio.AbstractEventLoop) -> None:
        due = loop.time() + self._period_s
        self._timer = loop.call_at(due, self._sample, loop, due)

    def _sample(self, loop: asyncio.AbstractEventLoop, due: float) -> None:
        self.seconds.observe(max(0.0, loop.time() - due))
        self._arm(loop)
