"""The queue of writes, and the callers that wait for them: the event loop's part of the group commit.

The writer has one batch at a time. The next batch is sent when the writer has returned the last one: at once if a
caller waits for it, otherwise within five milliseconds of its first event. So batches grow with the load, and no
waiting caller is delayed to collect more events. All state belongs to the loop; there are no locks.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import TypeVar

from ramet.core.errors import Bug, OwnedElsewhere, RametError
from ramet.store.contract import Entry
from ramet.store.notifications import Listeners
from ramet.store.operations import QueuedChange
from ramet.store.postgres.ownership import copy_of
from ramet.store.postgres.tables import PostgresTables

T = TypeVar("T")
LINGER_S = 0.005  #: how long events without a waiting caller are held to collect more
MAX_EVENTS, MAX_BYTES = 5_000, 8 * 2**20  #: of a batch; one event may be larger


class Batch:
    """A group of writes that become durable together. Its events are written before its changes."""

    def __init__(self, since: float) -> None:
        self.since = since
        self.events: list[Entry] = []
        self.changes: list[QueuedChange] = []
        self.size = 0  #: in bytes
        self.last = 0  #: newest ticket in the batch
        self.refusals: dict[int, OwnedElsewhere] = {}  #: tickets of events that were not written
        self.is_closed = False  #: later writes go into the next batch


class Batches:
    """The batches of an open store. `send` passes one to the writer, which answers with `on_written` or `fail`."""

    def __init__(self, send: Callable[[Batch], None]) -> None:
        self.newest = 0  #: last ticket given out
        self.committed = 0
        self.count = 0  #: number of written batches
        self.refusals: dict[int, OwnedElsewhere] = {}  #: tickets of events that were refused permanently
        self.listeners: Listeners[[int]] = Listeners()
        self._loop = asyncio.get_running_loop()
        self._send = send
        self._queue: deque[Batch] = deque()
        self._writing: Batch | None = None
        self._waiting: list[tuple[int, asyncio.Future[None]]] = []
        self._timer: asyncio.Handle | None = None
        self._is_scheduled = False

    def append(self, entry: Entry) -> int:
        """Add an event, and return its ticket."""
        batch = self._open()
        batch.events.append(entry)
        self.newest = batch.last = self.newest + 1
        batch.size += len(entry.data)
        if batch.size >= MAX_BYTES or len(batch.events) >= MAX_EVENTS:
            batch.is_closed = True
            self._send_soon()
        elif self._timer is None and self._writing is None:
            self._send_later(LINGER_S)
        return self.newest

    async def durable(self, ticket: int) -> None:
        """Return once this ticket is committed.

        Raises the error that stopped the writer, or that refused this event.
        """
        if ticket <= self.committed:
            if ticket in self.refusals:
                raise copy_of(self.refusals[ticket])
            return
        waiter = self._loop.create_future()
        self._waiting.append((ticket, waiter))
        self._send_soon()
        await waiter

    async def change(self, change: Callable[[PostgresTables], T], size: int = 0, *, closes_batch: bool = False) -> T:
        """Make a change after all earlier appends; return the answer once the change is durable.

        `closes_batch` keeps later appends out of its batch.
        """
        batch = self._open()
        future: asyncio.Future[T] = self._loop.create_future()
        batch.changes.append(QueuedChange(change, size, future))
        batch.size += size
        batch.is_closed = closes_batch or batch.size >= MAX_BYTES
        self._send_soon()
        return await future

    def check_writer(self) -> None:
        """Make the writer check whether it can still write, although nothing is queued."""
        self._open().changes.append(QueuedChange(lambda _: None))
        self._send_soon()

    async def drain(self) -> None:
        """Return once nothing is left to write. Raises the error that stopped the writer."""
        while self._writing is not None or self._queue:
            await self.change(lambda _: None)

    def on_written(self, batch: Batch) -> None:
        """Finish a written batch: call the listeners, then complete the waiting callers, then send the next batch."""
        self._writing = None
        self.count += 1
        if batch.events:
            self.committed = batch.last
            self.refusals.update(batch.refusals)
            for listener in self.listeners:
                try:
                    listener(self.committed)
                except Exception as error:
                    details = {"message": "a listener of the journal failed", "exception": error}
                    self._loop.call_exception_handler(details)
        for change in batch.changes:
            change.finish()
        pending: list[tuple[int, asyncio.Future[None]]] = []
        for each in self._waiting:
            if each[0] > self.committed:
                pending.append(each)
            elif each[1].done():
                continue
            elif each[0] in self.refusals:
                each[1].set_exception(copy_of(self.refusals[each[0]]))
            else:
                each[1].set_result(None)
        self._waiting = pending
        self._schedule_next()

    def fail(self, error: Callable[[], RametError]) -> None:
        """Fail every waiting caller: the writer has failed permanently."""
        batches = [*([self._writing] if self._writing else []), *self._queue]
        changes = (change.future for batch in batches for change in batch.changes)
        for waiter in (*(waiter for _, waiter in self._waiting), *changes):
            if waiter is not None and not waiter.done():
                waiter.set_exception(error())
        self._waiting, self._writing = [], None
        self._queue.clear()
        self._cancel_timer()

    def _open(self) -> Batch:
        if not self._queue or self._queue[-1].is_closed:
            self._queue.append(Batch(self._loop.time()))
        return self._queue[-1]

    def _send_soon(self) -> None:
        """Send the queued writes after the currently ready tasks have run: they may add more."""
        if self._writing is None and not self._is_scheduled:
            self._cancel_timer()
            self._is_scheduled = True
            self._timer = self._loop.call_soon(self._send_next)

    def _send_later(self, seconds: float) -> None:
        self._timer = self._loop.call_later(seconds, self._send_next)

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._is_scheduled = None, False

    def _send_next(self) -> None:
        self._timer, self._is_scheduled = None, False
        if self._writing is not None:
            raise Bug("two batches at once")
        if self._queue:
            self._writing = self._queue.popleft()
            self._writing.is_closed = True
            self._send(self._writing)

    def _schedule_next(self) -> None:
        """Send the next batch: at once if a caller waits or it is full, otherwise after the linger time."""
        if not self._queue:
            return
        first = self._queue[0]
        if self._waiting or first.changes or first.is_closed:
            self._send_soon()
        elif self._timer is None:
            self._send_later(max(0.0, first.since + LINGER_S - self._loop.time()))
