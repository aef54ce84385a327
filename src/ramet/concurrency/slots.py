"""Who may work at once. A run that waits for others holds no slot, so no number of slots can deadlock a tree."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from ramet.core.errors import Bug

T = TypeVar("T")


class Slots:
    """A bounded number of places, given in the order of asking. None is no bound."""

    __slots__ = ("_queue", "capacity", "taken")

    def __init__(self, capacity: int | None) -> None:
        self.capacity = capacity
        self.taken = 0
        self._queue: deque[asyncio.Future[None]] = deque()

    @property
    def queued(self) -> int:
        """How many wait for a place."""
        return sum(not each.done() for each in self._queue)

    def try_take(self) -> bool:
        """Take a place if one is free and nobody waits."""
        if self.capacity is not None and (self.taken >= self.capacity or self.queued):
            return False
        self.taken += 1
        return True

    async def take(self) -> None:
        """Take a place, waiting in line; cancelling leaves the line and takes nothing."""
        if self.try_take():
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queue.append(turn)
        try:
            await turn
        except BaseException:  # cancelled, or closed with its event loop
            if turn.done() and not turn.cancelled():
                self.give_back()  # The place was handed over in the same moment: pass it on.
            elif not turn.done():
                self._queue.remove(turn)
            raise

    def give_back(self) -> None:
        """Free a place, straight to the first in line. Raises Bug if none is taken."""
        if not self.taken:
            raise Bug("a place was given back that nobody had taken")
        while self._queue:
            turn = self._queue.popleft()
            if not turn.done():
                turn.set_result(None)
                return
        self.taken -= 1


class Slot:
    """One run's hold on a place: it is let go while every call in flight only waits for others."""

    __slots__ = ("_busy", "_held", "_in_line", "_keyed", "_slots", "_waiting", "on_wait")

    def __init__(self, slots: Slots, on_wait: Callable[[bool], None] | None = None) -> None:
        self._slots = slots
        self.on_wait = on_wait  #: told True when the run comes to wait for others, False when it works again
        self._held = False
        self._in_line = asyncio.Lock()  #: one of its calls stands in line for all of them
        self._busy = 0
        self._waiting = 0
        self._keyed: dict[object, int] = {}

    @property
    def held(self) -> bool:
        """Whether this run counts as working."""
        return self._held

    async def take(self) -> None:
        """Be among the working, waiting in line if need be. Returns at once if it already is.

        Takes nothing while, for all that is known here, every call in flight waits for others: they may need the place.
        """
        if self._held:
            return
        async with self._in_line:
            if self._held or self._only_waits():
                return
            await self._slots.take()
            if self._only_waits():
                self._slots.give_back()
                return
            self._held = True
            if self.on_wait is not None:
                self.on_wait(False)

    def let_go(self) -> None:
        """Stop counting as working; no error if it did not."""
        if self._held:
            self._held = False
            self._slots.give_back()

    def begin_calls(self, count: int = 1) -> None:
        """So many tool calls are in flight."""
        self._busy += count

    def end_call(self) -> None:
        """A tool call is answered."""
        self._busy -= 1
        self._settle()

    @contextmanager
    def calls(self, count: int) -> Iterator[Callable[[], None]]:
        """So many calls in flight, each ended by what is yielded; leaving ends those that never began."""
        left = count

        def end() -> None:
            nonlocal left
            left -= 1
            self.end_call()

        self.begin_calls(count)
        try:
            yield end
        finally:
            while left:
                end()

    def begin_wait(self, key: object = None) -> None:
        """One of the calls in flight waits for another run or a person; without a key it is one by itself."""
        if key is not None:
            self._keyed[key] = self._keyed.get(key, 0) + 1
        if key is None or self._keyed[key] == 1:
            self._waiting += 1
        self._settle()

    def end_wait(self, key: object = None) -> None:
        """That wait is over. The place is taken again before the next step, not here."""
        if key is not None:
            left = self._keyed.pop(key) - 1
            if left:
                self._keyed[key] = left
                return
        self._waiting -= 1

    async def while_waiting(self, awaitable: Awaitable[T], *, key: object = None) -> T:
        """Wait for another run or a person; the last of several such waits takes the place again, failed or not.

        Waits with one `key` belong to one call, which waits only once.
        """
        goes_on = True
        self.begin_wait(key)
        try:
            return await awaitable
        except BaseException as error:
            goes_on = isinstance(error, Exception)  # One that is being stopped needs no place.
            raise
        finally:
            self.end_wait(key)
            if goes_on and not self._waiting:
                await self.take()

    def _only_waits(self) -> bool:
        return 0 < self._busy <= self._waiting

    def _settle(self) -> None:
        if self._held and self._only_waits():
            self.let_go()
            if self.on_wait is not None:
                self.on_wait(True)
