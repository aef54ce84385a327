"""Hearing that the writer's session has ended, also while nobody writes: with it went the lock of its kernel."""

from __future__ import annotations

import asyncio
import contextlib
import select
from collections.abc import Callable

#: The other end has hung up; POLLERR, POLLHUP and POLLNVAL (the descriptor is closed) are told without being asked for.
_HUNG_UP = getattr(select, "POLLRDHUP", 0)


class SessionMonitor:
    """Calls `lost` on the loop, once for each session that is watched, when its other end hangs up.

    It waits for nothing but that (EPOLLRDHUP), so the loop is not woken by what the writer's thread reads there. Where
    there is no epoll a lost session is noticed at the next write.
    """

    def __init__(self, lost: Callable[[], None]) -> None:
        self._lost = lost
        self._loop = asyncio.get_running_loop()
        self._line: int | None = None
        self._poll = select.epoll() if hasattr(select, "epoll") else None
        if self._poll is not None:
            self._loop.add_reader(self._poll.fileno(), self._look)

    def watch(self, line: int) -> None:
        """Watch a session, by its descriptor; whoever closes that ends this, too."""
        self._line = line
        if self._poll is not None:
            with contextlib.suppress(FileExistsError):
                self._poll.register(line, select.EPOLLRDHUP | select.EPOLLONESHOT)

    def has_hung_up(self) -> bool:
        """Whether the session that is watched has ended by now, as far as the system was told: one call, no waiting."""
        if self._line is None:
            return False
        now = select.poll()
        now.register(self._line, _HUNG_UP)
        return bool(now.poll(0))

    def stop(self) -> None:
        """Watch no more; idempotent."""
        self._line = None
        poll, self._poll = self._poll, None
        if poll is not None:
            self._loop.remove_reader(poll.fileno())
            poll.close()

    def _look(self) -> None:
        if self._poll is not None and self._poll.poll(0):
            self._lost()
