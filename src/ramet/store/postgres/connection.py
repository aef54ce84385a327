"""An open journal on PostgreSQL: sessions, threads, and queued writes."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import logging
from collections.abc import Callable
from typing import TypeVar

from ramet.concurrency.clock import seconds_with_suspends
from ramet.core.errors import OwnedElsewhere, StoreFailed
from ramet.store.postgres.commit_queue import Batch, Batches
from ramet.store.postgres.dsn import Place
from ramet.store.postgres.notify import Listener
from ramet.store.postgres.ownership import TreeOwnership
from ramet.store.postgres.peer_monitor import PeerMonitor
from ramet.store.postgres.reader import PostgresReader
from ramet.store.postgres.session_monitor import SessionMonitor
from ramet.store.postgres.thread import Worker, mark_retrieved
from ramet.store.postgres.writer import PostgresWriter

T = TypeVar("T")

_log = logging.getLogger(__name__)
_AT_MOST_S = 5.0  #: maximum time to block a thread that cannot await
SURE_S = 1.0  #: how long after the server's last confirmation a kernel assumes that it still has its lock


class OpenStore:
    """An open store, from `open` to `close`. Without a kernel it only reads.

    `on_failure` is called when writing has failed permanently, `on_tree_loss` for each tree that became another
    kernel's, and `on_kernel_change` when the kernels have changed.
    """

    def __init__(
        self,
        place: Place,
        kernel: str | None,
        patience_s: float,
        *,
        on_failure: Callable[[BaseException], None],
        on_tree_loss: Callable[[OwnedElsewhere], None],
        on_kernel_change: Callable[[], None],
    ) -> None:
        self._place, self._patience_s, self._on_failure, self._on_tree_loss = (
            place,
            patience_s,
            on_failure,
            on_tree_loss,
        )
        self.new_events = asyncio.Event()  #: set and replaced by a new event when there may be something new
        self.batches = Batches(self._send)
        self.reader = PostgresReader(place, patience_s)
        self._writer = None if kernel is None else PostgresWriter(place, kernel, patience_s)
        self._read = Worker("ramet-postgres-reader")
        self._write = Worker("ramet-postgres-writer")
        self._watch_kernels = PeerMonitor(
            place,
            kernel or "",
            look=lambda: self.run_in_reader(self.reader.kernels),
            listen=self.listen,
            listener=on_kernel_change,
        )
        self._listener = Listener(
            place.schema,
            self.wake_waiters,
            own_pid=lambda: self._writer.pid if self._writer is not None else 0,
            kernels=self._watch_kernels.notify,
        )
        self._listening: asyncio.Task[None] | None = None
        self._session_monitor = SessionMonitor(self._on_session_loss)
        self._resume_count = 0  #: value of the writer's count when the watched session began
        self._is_over = False

    async def begin(self) -> None:
        """Take the lock first, so that a second kernel changes nothing, then open the reader."""
        if self._writer is not None:
            await self._write.call(self._writer.open)
            self._watch(self._writer)
        await self._read.call(self.reader.open)
        if self._writer is not None:
            self._watch_kernels.start()

    @property
    def ownership(self) -> TreeOwnership:
        """Return the ownership record of this kernel's trees. Only for a store that writes."""
        assert self._writer is not None
        return self._writer.ownership

    @property
    def is_away(self) -> bool:
        """Return whether the session has ended and no other has begun."""
        return self._writer is not None and self._writer.is_away

    @property
    def is_in_doubt(self) -> bool:
        """Return whether another kernel may hold the lock: the session ended, or this process was suspended.

        A suspension counts since the last confirmation by the server. Callers ask this after an intent was recorded,
        and before they act on it: earlier information may be out of date.
        """
        if self._writer is None:
            return False
        is_old = seconds_with_suspends() - self._writer.confirmed_at > SURE_S
        is_replaced = (
            self._writer.resume_count != self._resume_count
        )  # and what the new session found is not reported yet
        return is_old or self._writer.is_away or is_replaced or self._session_monitor.has_hung_up()

    async def confirm_ownership(self) -> None:
        """Ask the server whether the lock and which trees are still this kernel's. Raises StoreFailed.

        Lost trees have been reported when this returns.
        """
        await self.batches.change(lambda _: None)

    def watch_kernels(self) -> None:
        """Watch for kernels that begin and end, also while nothing is written."""
        self._watch_kernels.start()

    async def settle(self) -> None:
        """Do the parts of closing that need the server: write what is queued, release the lock. Raises StoreFailed."""
        settling = asyncio.ensure_future(self._settle())
        while not settling.done():
            count_before = self.batches.count
            await asyncio.wait({settling}, timeout=self._patience_s)
            if not settling.done() and self.batches.count == count_before:
                self.reader.sever()
                if self._writer is not None:
                    self._writer.sever()
                await asyncio.wait({settling})
        settling.result()

    async def end(self) -> None:
        """End the sessions, the lock's last, and the threads."""
        self._is_over = True
        self.reader.give_up()
        await self._watch_kernels.stop()
        if self._listening is not None:
            await asyncio.wait({self._listening})
        self._listener.stop()
        self._session_monitor.stop()
        await self._read.call(self.reader.close)
        if self._writer is not None:
            await self._write.call(self._writer.close)
        self._read.stop()
        self._write.stop()

    def wake_waiters(self) -> None:
        """Wake every caller that waits for new events."""
        event, self.new_events = self.new_events, asyncio.Event()
        event.set()

    async def listen(self) -> None:
        """Make sure that commits of other processes are received."""
        if self._listener.is_listening:
            return
        if self._listening is None or self._listening.done():
            self._listening = asyncio.create_task(self._listen())  # for all waiting callers; `end` waits for it
            self._listening.add_done_callback(mark_retrieved)
        await asyncio.shield(self._listening)

    async def run_in_reader(self, work: Callable[[], T]) -> T:
        """Run `work` in the reading thread. Raises StoreFailed if the store was closed meanwhile.

        A kernel that can no longer read gives its lock back, because it could not continue its work.
        """
        if self._is_over:
            raise self._place.make_failure("it is closed")
        try:
            return await self._read.call(work)
        except StoreFailed as error:
            if self.reader.gave_up and self._writer is not None and not self._is_over:
                _log.error("nothing can be read any more, so this kernel gives up: %s", error)
                self._writer.sever()
                self.batches.check_writer()
            raise

    def reading_now(self, work: Callable[[], T]) -> T:
        """Run `work` in the reading thread, and block the calling thread.

        Raises StoreFailed if the server is too slow.
        """
        if self._is_over:
            raise self._place.make_failure("it is closed")
        answer: concurrent.futures.Future[T] = concurrent.futures.Future()

        def do() -> None:
            if answer.set_running_or_notify_cancel():
                try:
                    answer.set_result(work())
                except BaseException as error:
                    answer.set_exception(error)

        self._read.post(do, lambda _, error: None)
        try:
            return answer.result(min(self._patience_s, _AT_MOST_S))
        except TimeoutError:
            answer.cancel()
            raise self._place.make_failure("the server did not answer in time") from None

    async def _settle(self) -> None:
        await self.batches.drain()
        if self._writer is not None:
            await self._write.call(self._writer.release)
        await self._read.call(lambda: None)

    async def _listen(self) -> None:
        listener, reader = self._listener, self.reader
        connection = await self.run_in_reader(lambda: reader.with_retries(lambda: listener.connect(reader.connect)))
        listener.start(connection)

    def _send(self, batch: Batch) -> None:
        writer = self._writer
        assert writer is not None
        self._write.post(lambda: writer.commit(batch), lambda _, error: self._finish_batch(batch, error))

    def _finish_batch(self, batch: Batch, error: BaseException | None) -> None:
        if self._is_over:
            return
        if error is not None:
            self._on_failure(error)
            return
        assert self._writer is not None
        if self._writer.resume_count != self._resume_count:
            _log.warning("%s: the session and its lock were lost; both are restored", self._place.location)
            self._watch(self._writer)
        for each in self._writer.ownership.take_losses():
            self._on_tree_loss(each)
        self.batches.on_written(batch)
        self.wake_waiters()

    def _watch(self, writer: PostgresWriter) -> None:
        """Watch for the end of the session, also while nothing is written. The writer is idle now."""
        self._resume_count = writer.resume_count
        with contextlib.suppress(StoreFailed, OSError):  # The session has ended again: the next write notices.
            self._session_monitor.watch(writer.line)

    def _on_session_loss(self) -> None:
        """Check at once whether the lock, which was lost with the session, can be taken again or has another holder."""
        _log.warning(
            "%s: the session of this kernel has ended; no new work begins before it is restored", self._place.location
        )
        self.batches.check_writer()
