"""Who is told that something was committed: listeners, and those who wait for the next event."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from ramet.core.errors import StoreFailed
from ramet.store.listeners import Listeners

_log = logging.getLogger(__name__)


class News:
    """The listeners and the waiting readers of one store, all on its event loop."""

    def __init__(self) -> None:
        self.head = 0  #: the cursor of the newest committed event
        self._listeners: Listeners[[int]] = Listeners()
        self._waiting: dict[asyncio.Future[None], int] = {}
        self._newest = self._told = 0
        self._is_telling = False

    def begin(self, head: int) -> None:
        """Start anew, with tickets from 1; whoever listens goes on listening."""
        self.head, self._newest, self._told = head, 0, 0

    def listen(self, heard: Callable[[int], None]) -> Callable[[], None]:
        """Have `heard` called with each newest ticket; returns the way out, which may be called twice."""
        return self._listeners.add(heard)

    def tell(self, ticket: int, head: int) -> None:
        """Tell all of the newest ticket and cursor. A listener that raises is logged and hinders nobody."""
        self.head = head
        if not (self._waiting or self._listeners):
            self._told = ticket
            return
        for waiter, after in self._waiting.items():
            if after < head and not waiter.done():
                waiter.set_result(None)
        self._newest = ticket
        if self._is_telling:
            return  # A listener appended something: all are told when all have heard of what came before.
        self._is_telling = True
        try:
            while (told := self._newest) > self._told:
                self._told = told
                for heard in self._listeners:
                    try:
                        heard(told)
                    except Exception:
                        _log.exception("a listener for commits failed at ticket %d", told)
        finally:
            self._is_telling = False

    def fail(self, where: object, why: str) -> None:
        """Whoever waits for an event gets StoreFailed."""
        for waiter in self._waiting:
            if not waiter.done():
                waiter.set_exception(StoreFailed(where, why))

    async def wait(self, after: int, timeout_s: float | None) -> bool:
        """Return True once there is an event behind `after`, False when the time is up."""
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
