"""A gate that lets the answers of a replay through in the order of the journal.

Runs of a tree work side by side, and one that ends, or sends mail, changes what another one reads next. So an answer is
given only when every recorded step before it has happened again. Then runs meet as they did.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections.abc import Iterable


class StepGate:
    """A gate over the numbers of steps; `changes` counts what happened, for a watch that looks for a standstill."""

    def __init__(self, steps: Iterable[int]) -> None:
        self._open = sorted(steps)
        self._next = 0
        self._done: set[int] = set()
        self._waiting: list[tuple[int, int, asyncio.Future[None]]] = []
        self._tie = itertools.count()
        self.changes = 0

    @property
    def first_missing(self) -> int | None:
        """The number of the first step that has not happened; None if all have."""
        return self._open[self._next] if self._next < len(self._open) else None

    def mark(self, step: int) -> None:
        """Note that a step has happened, and let through whoever waited for it."""
        self.changes += 1
        self._done.add(step)
        while (missing := self.first_missing) is not None and missing in self._done:
            self._done.discard(missing)
            self._next += 1
        while self._waiting and (missing is None or self._waiting[0][0] <= missing):
            _, _, waiting = heapq.heappop(self._waiting)
            if not waiting.done():
                waiting.set_result(None)

    async def wait_before(self, step: int) -> None:
        """Wait until every step before this one has happened."""
        self.changes += 1
        if (missing := self.first_missing) is None or step <= missing:
            return
        waiting = asyncio.get_running_loop().create_future()
        heapq.heappush(self._waiting, (step, next(self._tie), waiting))
        await waiting
