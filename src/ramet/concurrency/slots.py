"""Limit concurrent work. A run that waits for others holds no slot, so no slot limit can deadlock a tree."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

from ramet.core.errors import Bug

T = TypeVar("T")

#: True in code that waits for the sake of a run and is no work of it, so that the run's slot is not its concern.
is_outside_turn: ContextVar[bool] = ContextVar("ramet_is_outside_turn", default=False)


class Slots:
    """A bounded number of slots, granted in the order of requests. A capacity of None is no bound."""

    __slots__ = ("_queue", "capacity", "in_use")

    def __init__(self, capacity: int | None) -> None:
        self.capacity = capacity
        self.in_use = 0
        self._queue: deque[asyncio.Future[None]] = deque()

    @property
    def queue_length(self) -> int:
        return sum(not each.done() for each in self._queue)

    def try_acquire(self) -> bool:
        """Take a slot if one is free and no request waits; return whether it was taken."""
        if self.capacity is not None and (self.in_use >= self.capacity or self.queue_length):
            return False
        self.in_use += 1
        return True

    async def acquire(self) -> None:
        """Wait in line for a slot, and take it. A cancelled wait takes nothing."""
        if self.try_acquire():
            return
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queue.append(waiter)
        try:
            await waiter
        except BaseException:  # cancelled, or closed with its event loop
            if waiter.done() and not waiter.cancelled():
                self.release()  # The slot was granted at the same moment: pass it on.
            elif not waiter.done():
                self._queue.remove(waiter)
            raise

    def release(self) -> None:
        """Release a slot, directly to the first waiting request. Raises Bug if none is taken."""
        if not self.in_use:
            raise Bug("a slot was released that was not acquired")
        while self._queue:
            waiter = self._queue.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return
        self.in_use -= 1


class Slot:
    """The slot of one run: it is released while every active call only waits for other runs."""

    __slots__ = ("_acquire_lock", "_busy", "_slots", "_wait_count", "_waits_by_key", "is_held", "on_wait")

    def __init__(self, slots: Slots, on_wait: Callable[[bool], None] | None = None) -> None:
        self._slots = slots
        self.on_wait = on_wait  #: called with True when the run begins to wait for others, False when it works again
        self.is_held = False
        self._acquire_lock = asyncio.Lock()  #: one call of the run waits in the queue, for all calls of the run
        self._busy = 0
        self._wait_count = 0
        self._waits_by_key: dict[object, int] = {}

    async def acquire(self) -> None:
        """Take the slot, waiting in line if necessary. Returns at once if it is held.

        Takes nothing while every active call waits for other runs, as far as is known: those may need the slot.
        """
        if self.is_held:
            return
        async with self._acquire_lock:
            if self.is_held or self._only_waits():
                return
            await self._slots.acquire()
            if self._only_waits():
                self._slots.release()
                return
            self.is_held = True
            if self.on_wait is not None:
                self.on_wait(False)

    def release(self) -> None:
        """Release the slot; no error if it is not held."""
        if self.is_held:
            self.is_held = False
            self._slots.release()

    def begin_calls(self, count: int = 1) -> None:
        """Note `count` further active tool calls."""
        self._busy += count

    def end_call(self) -> None:
        """Note the end of a tool call."""
        self._busy -= 1
        self._settle()

    @contextmanager
    def calls(self, count: int) -> Iterator[Callable[[], None]]:
        """Note `count` active calls; the yielded function ends one of them, and leaving the context ends the rest."""
        remaining = count

        def end() -> None:
            nonlocal remaining
            remaining -= 1
            self.end_call()

        self.begin_calls(count)
        try:
            yield end
        finally:
            while remaining:
                end()

    def begin_wait(self, key: object = None) -> None:
        """Note that an active call waits for another run or a person; without a key the wait counts separately."""
        if key is not None:
            self._waits_by_key[key] = self._waits_by_key.get(key, 0) + 1
        if key is None or self._waits_by_key[key] == 1:
            self._wait_count += 1
        self._settle()

    def end_wait(self, key: object = None) -> None:
        """Note the end of a wait. The slot is taken again before the next step, not here."""
        if key is not None:
            remaining = self._waits_by_key.pop(key) - 1
            if remaining:
                self._waits_by_key[key] = remaining
                return
        self._wait_count -= 1

    async def while_waiting(self, awaitable: Awaitable[T], *, key: object = None) -> T:
        """Wait for another run or a person; the last of several waits takes the slot again, even after an exception.

        Waits with the same `key` belong to one call, which counts as waiting once.
        """
        continues = True
        self.begin_wait(key)
        try:
            return await awaitable
        except BaseException as error:
            continues = isinstance(error, Exception)  # A run that is being stopped needs no slot.
            raise
        finally:
            self.end_wait(key)
            if continues and not self._wait_count:
                await self.acquire()

    def _only_waits(self) -> bool:
        return 0 < self._busy <= self._wait_count

    def _settle(self) -> None:
        if self.is_held and self._only_waits():
            self.release()
            if self.on_wait is not None:
                self.on_wait(True)
