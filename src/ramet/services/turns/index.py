"""The turns of one agent that can be asked for: all that wait or are under way, and for a while those that are over."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator

from ramet.concurrency.clock import Clock
from ramet.services.turns.turn import Turn


class KnownTurns:
    """Turns by their ids, each until it has been over for `keep_s`, or `most` newer ones are.

    `gone` is told of each that is forgotten. Once this is `shut`, none is for its time.
    """

    def __init__(self, clock: Clock, keep_s: float, most: int, name: str, gone: Callable[[Turn], None]) -> None:
        self._clock, self._keep_s, self._most = clock, keep_s, most
        self._name, self._gone = name, gone
        self._turns: dict[str, Turn] = {}
        self._over: deque[tuple[Turn, float]] = deque()  #: with the time at which each is forgotten
        self._forgetting: asyncio.Task[None] | None = None
        self._is_shut = False

    def __iter__(self) -> Iterator[Turn]:
        return iter(self._turns.values())

    @property
    def ids(self) -> tuple[str, ...]:
        """Of all of them."""
        return tuple(self._turns)

    def find(self, id: str) -> Turn | None:
        """The turn of that id, if it is known."""
        return self._turns.get(id)

    def add(self, turn: Turn) -> None:
        """One that is not over."""
        self._turns[turn.id] = turn

    def over(self, turn: Turn) -> None:
        """One of them is over now."""
        self._over.append((turn, self._clock.monotonic() + self._keep_s))
        while len(self._over) > self._most:
            self._forget_oldest()
        if self._forgetting is None and not self._is_shut:
            self._forgetting = asyncio.create_task(self._forget(), name=self._name)

    def shut(self) -> None:
        """Nobody asks for a turn that is over any more. Idempotent."""
        self._is_shut = True
        if self._forgetting is not None:
            self._forgetting.cancel()

    async def close(self) -> None:
        """Shut, and return when nothing of that is under way. Idempotent."""
        self.shut()
        if self._forgetting is not None:
            await asyncio.wait({self._forgetting})

    async def _forget(self) -> None:
        """Forget each turn when its time is up, until there is none."""
        try:
            while self._over:
                await self._clock.sleep(self._over[0][1] - self._clock.monotonic())
                while self._over and self._over[0][1] <= self._clock.monotonic() + 0.001:
                    self._forget_oldest()
        finally:
            self._forgetting = None

    def _forget_oldest(self) -> None:
        turn, _ = self._over.popleft()
        del self._turns[turn.id]
        self._gone(turn)
