"""Detect the end of the writer's session, also while nothing is written: the kernel's lock ends with it."""

from __future__ import annotations

import asyncio
import contextlib
import select
from collections.abc import Callable

#: The peer has hung up. POLLERR, POLLHUP and POLLNVAL (the descriptor is closed) are always reported.
_HUNG_UP = getattr(select, "POLLRDHUP", 0)


class SessionMonitor:
    """A monitor that calls `on_loss` on the loop, once per watched session, when the peer hangs up.

    It waits only for EPOLLRDHUP, so data read by the writer's thread does not wake the loop. Without epoll, a lost
    session is noticed at the next write.
    """

    def __init__(self, on_loss: Callable[[], None]) -> None:
        self._on_loss = on_loss
        self._loop = asyncio.get_running_loop()
        self._line: int | None = None
        self._poll = select.epoll() if hasattr(select, "epoll") else None
        if self._poll is not None:
            self._loop.add_reader(self._poll.fileno(), self._look)

    def watch(self, line: int) -> None:
        """Watch a session by its descriptor; closing the descriptor ends the watch."""
        self._line = line
        if self._poll is not None:
            with contextlib.suppress(FileExistsError):
                self._poll.register(line, select.EPOLLRDHUP | select.EPOLLONESHOT)

    def has_hung_up(self) -> bool:
        """Return whether the watched session has ended, as far as the system knows: one call, without waiting."""
        if self._line is None:
            return False
        now = select.poll()
        now.register(self._line, _HUNG_UP)
        return bool(now.poll(0))

    def stop(self) -> None:
        """Stop watching; idempotent."""
        self._line = None
        poll, self._poll = self._poll, None
        if poll is not None:
            self._loop.remove_reader(poll.fileno())
            poll.close()

    def _look(self) -> None:
        if self._poll is not None and self._poll.poll(0):
            self._on_loss()
