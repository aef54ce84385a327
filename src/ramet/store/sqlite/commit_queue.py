"""The event loop's side of the writer: tickets, and the callers that wait for commits."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sqlite3
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

from ramet.core.errors import InvalidValue, StoreFailed
from ramet.store.contract import Entry
from ramet.store.notifications import Listeners, Notifier
from ramet.store.operations import QueuedChange
from ramet.store.sqlite.checkpoint import Checkpoints
from ramet.store.sqlite.database import plain
from ramet.store.sqlite.ownership import OwnershipLost
from ramet.store.sqlite.tables import Journal
from ramet.store.sqlite.writer import SqliteWriter
from ramet.store.validation import EntryValidator

T = TypeVar("T")
_log = logging.getLogger(__name__)
LINGER_S = 0.005  #: how long an event without a waiting caller is held to collect more


class Commits:
    """The commits of one writer, from start to end. Every waiting caller gets a commit, or StoreFailed."""

    def __init__(
        self,
        location: object,
        journal: Journal,
        checkpoints: Checkpoints,
        notifier: Notifier,
        losses: Listeners[[StoreFailed]],
    ) -> None:
        self.why: str | None = None  #: why nothing more can be written; None while writing works
        self.ticket = self.committed = 0
        self._location, self._notifier, self._losses = location, notifier, losses
        self._intake = EntryValidator()
        self._waiters: list[tuple[int, asyncio.Future[None]]] = []
        self._changes: set[QueuedChange] = set()
        self._loop = asyncio.get_running_loop()
        self._failure: str | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._ended_future = self._loop.create_future()
        self._writer = SqliteWriter(
            journal,
            checkpoints,
            on_written=partial(self._call_on_loop, self._on_written),
            on_ended=partial(self._call_on_loop, self._on_writer_ended),
        )

    def append(self, entry: Entry) -> int:
        """Queue an entry. Raises StoreFailed, and InvalidValue if the entry cannot be written."""
        if self.why is not None:
            raise StoreFailed(self._location, self.why)
        self._intake.check(entry)
        self._writer.add(entry)
        self.ticket = ticket = self.ticket + 1
        if self._timer is None:
            self._timer = self._loop.call_later(LINGER_S, self._send_now)
        return ticket

    def _send_now(self) -> None:
        """Write events that no caller waits for, after the linger time."""
        self._timer = None
        if self.committed < self.ticket:
            self._writer.hurry()

    async def durable(self, ticket: int) -> None:
        """Return once a ticket is committed. Raises StoreFailed, and InvalidValue if the ticket was never returned."""
        if ticket <= self.committed:
            return
        if ticket > self.ticket:
            raise InvalidValue("ticket", ticket, f"one that `append` returned: 1 to {self.ticket}")
        if self._failure is not None:
            raise StoreFailed(self._location, self._failure)
        waiter = self._loop.create_future()
        self._waiters.append((ticket, waiter))
        self._writer.hurry()
        await waiter

    async def change(self, change: Callable[[Journal], T], size: int) -> T:
        """Make a change after all earlier appends; return its answer. Raises StoreFailed and Conflict.

        `size` is the approximate number of bytes written.
        """
        if self.why is not None:
            raise StoreFailed(self._location, self.why)
        future: asyncio.Future[T] = self._loop.create_future()
        queued = QueuedChange(change, size, future)
        self._changes.add(queued)
        self._writer.add(queued)
        self._writer.hurry()
        return await future

    async def close(self, why: str) -> None:
        """Write every queued entry, and end. Raises StoreFailed if the writer had failed, or fails now."""
        if self.why is None:
            self.why = why
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._writer.close()
        try:
            await self._ended_future
        finally:
            self._writer.join()  # Even if we are cancelled: the file may only be released after the thread has ended.
        if self._failure is not None:
            raise StoreFailed(self._location, self._failure)

    # ---- in the writer's thread

    def _call_on_loop(self, callback: Callable[..., None], *args: object) -> None:
        with contextlib.suppress(RuntimeError):  # The loop was closed, but not the store: there is no one to notify.
            self._loop.call_soon_threadsafe(callback, *args)

    # ---- on the event loop

    def _on_written(self, count: int, head: int, changes: Sequence[QueuedChange]) -> None:
        """Finish a batch that is on disk: notify listeners first, then complete the waiting callers."""
        self.committed = count
        self._notifier.notify(count, head)
        waiters, self._waiters = self._waiters, []
        for ticket, waiter in waiters:
            if ticket > count:
                self._waiters.append((ticket, waiter))
            elif not waiter.done():
                waiter.set_result(None)
        for change in changes:
            self._changes.discard(change)
            change.finish()

    def _on_writer_ended(self, problem: Exception | None) -> None:
        """Fail every remaining waiter: the writer has ended."""
        if problem is not None:
            self.why = self._failure = _why(problem)
            self._report_loss(StoreFailed(self._location, self._failure))  # Before anything else acts on a failure.
            self._notifier.fail(self._location, self._failure)
            for waiter in (*(waiter for _, waiter in self._waiters), *(change.future for change in self._changes)):
                if waiter is not None and not waiter.done():
                    waiter.set_exception(StoreFailed(self._location, self._failure))
            self._waiters.clear()
            self._changes.clear()
        self._ended_future.set_result(None)

    def _report_loss(self, loss: StoreFailed) -> None:
        for listener in self._losses:
            try:
                listener(loss)
            except Exception:
                _log.exception("a listener for the loss of a store failed")


def _why(problem: Exception) -> str:
    if isinstance(problem, sqlite3.Error):
        return plain(problem)
    return str(problem) if isinstance(problem, OwnershipLost) else repr(problem)
