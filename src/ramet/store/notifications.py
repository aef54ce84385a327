"""Notification of commits and other events: listeners, and callers that wait for the next event."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from typing import Generic, ParamSpec

from ramet.core.errors import StoreFailed

P = ParamSpec("P")
_log = logging.getLogger(__name__)


class Listeners(Generic[P]):
    """The listeners of one kind of event. Additions and removals during a notification take effect at the next."""

    def __init__(self) -> None:
        self._listeners: dict[object, Callable[P, None]] = {}

    def add(self, listener: Callable[P, None]) -> Callable[[], None]:
        """Add a listener; return a function that removes it, which may be called twice."""
        key = object()
        self._listeners[key] = listener

        def leave() -> None:
            self._listeners.pop(key, None)

        return leave

    def notify(self, *args: P.args, **kwargs: P.kwargs) -> None:
        """Call all listeners in order. An exception of a listener is logged, and the others are still called."""
        for listener in self:
            try:
                listener(*args, **kwargs)
            except Exception:
                _log.exception("a listener of a store failed")

    def clear(self) -> None:
        """Remove all listeners."""
        self._listeners.clear()

    def __iter__(self) -> Iterator[Callable[P, None]]:
        return iter(tuple(self._listeners.values()))

    def __len__(self) -> int:
        return len(self._listeners)


class Notifier:
    """The listeners and the waiting readers of one store, all on its event loop."""

    def __init__(self) -> None:
        self.head = 0  #: cursor of the newest committed event
        self._listeners: Listeners[[int]] = Listeners()
        self._waiting: dict[asyncio.Future[None], int] = {}
        self._newest = self._notified_ticket = 0
        self._is_notifying = False

    def reset(self, head: int) -> None:
        """Restart with tickets from 1; listeners stay registered."""
        self.head, self._newest, self._notified_ticket = head, 0, 0

    def listen(self, listener: Callable[[int], None]) -> Callable[[], None]:
        """Call `listener` with each newest ticket; return a function that stops this and may be called twice."""
        return self._listeners.add(listener)

    def notify(self, ticket: int, head: int) -> None:
        """Notify all of the newest ticket and cursor.

        An exception of a listener is logged, and the others are still called.
        """
        self.head = head
        if not (self._waiting or self._listeners):
            self._notified_ticket = ticket
            return
        for waiter, after in self._waiting.items():
            if after < head and not waiter.done():
                waiter.set_result(None)
        self._newest = ticket
        if self._is_notifying:
            # A listener appended something: all are notified of it after all have been notified of the earlier ticket.
            return
        self._is_notifying = True
        try:
            while (newest := self._newest) > self._notified_ticket:
                self._notified_ticket = newest
                for listener in self._listeners:
                    try:
                        listener(newest)
                    except Exception:
                        _log.exception("a listener for commits failed at ticket %d", newest)
        finally:
            self._is_notifying = False

    def fail(self, location: object, why: str) -> None:
        """Raise StoreFailed in every call that waits for an event."""
        for waiter in self._waiting:
            if not waiter.done():
                waiter.set_exception(StoreFailed(location, why))

    async def wait(self, after: int, timeout_s: float | None) -> bool:
        """Wait until there is an event after `after`, and return True; return False at the timeout."""
        if self.head > after:
            return True
        waiter = asyncio.get_running_loop().create_future()
        self._waiting[waiter] = after
        try:
            async with asyncio.timeout(timeout_s):
                await waiter
        except TimeoutError:
            return self.head > after
        finally:
            del self._waiting[waiter]
        return True
