"""The turns of one agent by their ids, until each is forgotten."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator

from ramet.concurrency.clock import Clock
from ramet.services.turns.turn import Turn


class KnownTurns:
    """The waiting, running and recently ended turns of one agent, by their ids.

    A turn is forgotten `keep_s` after its end, or when `limit` newer turns have ended; `on_forget` is called with it.
    After `stop`, no turn is forgotten because of its time.
    """

    def __init__(self, clock: Clock, keep_s: float, limit: int, name: str, on_forget: Callable[[Turn], None]) -> None:
        self._clock, self._keep_s, self._limit = clock, keep_s, limit
        self._name, self._on_forget = name, on_forget
        self._turns: dict[str, Turn] = {}
        self._ended_turns: deque[tuple[Turn, float]] = deque()  #: ended turns, with the time at which each is forgotten
        self._forget_task: asyncio.Task[None] | None = None
        self._is_closed = False

    def __iter__(self) -> Iterator[Turn]:
        return iter(self._turns.values())

    @property
    def ids(self) -> tuple[str, ...]:
        return tuple(self._turns)

    def find(self, id: str) -> Turn | None:
        return self._turns.get(id)

    def add(self, turn: Turn) -> None:
        self._turns[turn.id] = turn

    def mark_ended(self, turn: Turn) -> None:
        self._ended_turns.append((turn, self._clock.monotonic() + self._keep_s))
        while len(self._ended_turns) > self._limit:
            self._forget_oldest()
        if self._forget_task is None and not self._is_closed:
            self._forget_task = asyncio.create_task(self._forget(), name=self._name)

    def stop(self) -> None:
        """Stop forgetting turns because of their time: no client requests ended turns any more. Idempotent."""
        self._is_closed = True
        if self._forget_task is not None:
            self._forget_task.cancel()

    async def close(self) -> None:
        """Shut, and wait until the forgetting task has ended. Idempotent."""
        self.stop()
        if self._forget_task is not None:
            await asyncio.wait({self._forget_task})

    async def _forget(self) -> None:
        """Forget each ended turn when its time is over, until there is none."""
        try:
            while self._ended_turns:
                await self._clock.sleep(self._ended_turns[0][1] - self._clock.monotonic())
                while self._ended_turns and self._ended_turns[0][1] <= self._clock.monotonic() + 0.001:
                    self._forget_oldest()
        finally:
            self._forget_task = None

    def _forget_oldest(self) -> None:
        turn, _ = self._ended_turns.popleft()
        del self._turns[turn.id]
        self._on_forget(turn)
