"""A right on an agent that lasts as long as the client's key has it: streams opened with the right end with it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from ramet.concurrency.clock import Clock
from ramet.core.errors import NotYours
from ramet.services.contract import Right
from ramet.services.teams.agents import AgentEntry


class Grant:
    """A right that a key had when it was presented, and may have lost since."""

    def __init__(self, entry: AgentEntry, agent: str, requester: str, right: Right, clock: Clock) -> None:
        self.entry, self._agent, self._by, self._right, self._clock = entry, agent, requester, right, clock

    def check(self) -> None:
        """Raise NotYours if the key has lost the right."""
        if not self.entry.has_right(self._by, self._right):
            raise NotYours("agent", self._agent)

    @contextmanager
    def watch(self, on_lost: Callable[[], object]) -> Iterator[None]:
        """Call `on_lost` when the key loses the right, by a change of keys or because its time is over."""

        def look() -> None:
            if not self.entry.has_right(self._by, self._right):
                on_lost()

        async def look_later(seconds: float) -> None:
            remaining_s: float | None = seconds
            while remaining_s is not None and remaining_s > 0:
                await self._clock.sleep(remaining_s)
                remaining_s = self.entry.seconds_left(self._by)
            look()

        self.entry.watchers.add(look)
        validity_s = self.entry.seconds_left(self._by)
        timer = asyncio.create_task(look_later(validity_s), name="ramet key's time") if validity_s is not None else None
        try:
            yield
        finally:
            self.entry.watchers.discard(look)
            if timer is not None:
                timer.cancel()
