"""Detect the end of other kernels: a session waits for the lock of one of them, the next by name.

So each live kernel is watched by one other, and the first kernel that sees a free lock notifies all. The watched kernel
changes when kernels begin and end, which they also announce. A kernel that ends unwatched is noticed by the next kernel
that reads the list, which notifies the others. Only the server's clock is used: it limits how long a kernel may be away
after the server itself restarted, when all locks are gone.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NamedTuple

import psycopg
from psycopg.abc import Params

from ramet.core.errors import StoreFailed
from ramet.store.contract import KernelInfo
from ramet.store.postgres.dsn import Connection, DatabaseSession, Place
from ramet.store.postgres.thread import Worker, mark_retrieved

_log = logging.getLogger(__name__)
_LATER_S = 1.0  #: after an unexpected error
_AGAIN_S = 0.05  #: between two attempts to cancel: a cancellation that arrives before the wait has begun is lost


class PeerKernel(NamedTuple):
    """A kernel as the database describes it."""

    info: KernelInfo
    lock: int  #: lock of its session; 0 after a clean end
    away_s: float | None  #: how long it may still be away, if the server restarted since the kernel was last seen
    has_trees: bool


class PeerMonitor(DatabaseSession):
    """A monitor from `start` to `stop`; `listener` is called on the loop when the set or state of kernels has changed.

    `look` returns the kernels' states. `listen` returns once notifications are received; `notify` reports the next of
    them. Either may raise StoreFailed: the store is then lost, and the monitor ends.
    """

    def __init__(
        self,
        place: Place,
        kernel: str,
        *,
        look: Callable[[], Awaitable[Sequence[PeerKernel]]],
        listen: Callable[[], Awaitable[None]],
        listener: Callable[[], None],
    ) -> None:
        super().__init__(place, f"ramet watch of {kernel}", writes=False)
        self._kernel = kernel
        self._look, self._listen, self._listener = look, listen, listener
        self._wakeup = asyncio.Event()
        self._worker: Worker | None = None
        self._serving: asyncio.Task[None] | None = None
        self._last_snapshot: list[tuple[KernelInfo, int, bool]] | None = None
        self._has_news = False  #: a kernel has ended, and possibly no one has notified the others

    def start(self) -> None:
        """Start watching; idempotent."""
        if self._serving is None:
            self._serving = asyncio.create_task(self._serve(), name="ramet kernels")

    def notify(self) -> None:
        """Note that the kernels have changed, or that notifications may have been missed."""
        self._wakeup.set()

    async def stop(self) -> None:
        """Stop watching, and wait for the end; idempotent."""
        self._given_up.set()
        serving, self._serving = self._serving, None
        if serving is not None:
            serving.cancel()
            self.sever()
            await asyncio.wait({serving})
        worker, self._worker = self._worker, None
        if worker is not None:
            await worker.call(self.close)
            worker.stop()

    async def _serve(self) -> None:
        has_failed = False
        while True:
            try:
                self._wakeup.clear()
                await self._listen()
                peers = await self._look()
                self._compare(peers)
                if self._has_news:
                    await self._pass_on()
                await self._wait(peers)
                has_failed = False
            except StoreFailed:  # The store reports the error to all its users.
                return
            except Exception:  # For example, no descriptor is left. Without a monitor, no lost kernel would be noticed.
                if not has_failed:
                    _log.exception("the other kernels cannot be watched for now")
                has_failed = True
                await asyncio.sleep(_LATER_S)

    def _compare(self, peers: Sequence[PeerKernel]) -> None:
        snapshot = [(each.info, each.lock, each.has_trees) for each in peers]
        if (
            snapshot != self._last_snapshot
        ):  # On the first pass too: a listener may have read the kernels before this look.
            self._listener()
        if self._last_snapshot is not None:  # No kernel waits for one that began and ended between two looks.
            known = {(info.name, lock) for info, lock, _ in self._last_snapshot if not info.alive}
            self._has_news |= any(not info.alive and (info.name, lock) not in known for info, lock, _ in snapshot)
        self._last_snapshot = snapshot

    async def _pass_on(self) -> None:
        """Notify all kernels; after a failure, try again after the next look."""
        notification = asyncio.ensure_future(self._thread().call(self._tell_all))
        notification.add_done_callback(mark_retrieved)
        await asyncio.wait({notification})
        self._has_news = notification.exception() is not None
        if self._has_news:
            await asyncio.sleep(_AGAIN_S)
            self._wakeup.set()

    def _thread(self) -> Worker:
        if self._worker is None:
            self._worker = Worker("ramet-postgres-watch")
        return self._worker

    async def _wait(self, peers: Sequence[PeerKernel]) -> None:
        """Wait until the next kernel ends, the grace period of an absent one is over, or a notification arrives."""
        next_peer = _next(self._kernel, peers)
        grace_periods_s = [
            each.away_s for each in peers if each.away_s is not None and each.away_s > 0 and each.info.alive
        ]
        if next_peer is None and not grace_periods_s:
            await self._wakeup.wait()
            return
        worker, lock = self._thread(), next_peer.lock if next_peer is not None else None
        waiting = asyncio.ensure_future(worker.call(lambda: self._block(lock, min(grace_periods_s, default=0.0))))
        waiting.add_done_callback(mark_retrieved)
        wakeup = asyncio.ensure_future(self._wakeup.wait())
        try:
            await asyncio.wait({waiting, wakeup}, return_when=asyncio.FIRST_COMPLETED)
            while not waiting.done():
                await asyncio.to_thread(self._interrupt)
                await asyncio.wait({waiting}, timeout=_AGAIN_S)
        finally:
            wakeup.cancel()
        if waiting.exception() is not None:  # The session was lost: the next one finds out why.
            await asyncio.sleep(_AGAIN_S)

    # ---- in the thread

    def _block(self, lock: int | None, most_s: float) -> None:
        """Wait until a lock is free, and notify all; at most `most_s` by the server's clock, without limit if 0."""
        try:
            connection = self._connect()
            connection.execute(
                "SELECT set_config('lock_timeout', %s, false)", [str(int(most_s * 1000) + 1 if most_s else 0)]
            )
            try:
                if lock is None:
                    connection.execute("SELECT pg_sleep(%s)", [most_s])
                else:
                    connection.execute("SELECT pg_advisory_xact_lock_shared(%s)", [lock])
            except (psycopg.errors.QueryCanceled, psycopg.errors.LockNotAvailable):
                # A cancellation may coincide with the release of the lock, and no other kernel waits for this one.
                if lock is None or not self._query_until_answer("SELECT pg_try_advisory_xact_lock_shared(%s)", [lock]):
                    return
        except psycopg.Error:
            self.close()
            raise
        self._tell_all()

    def _tell_all(self) -> None:
        try:
            self._query_until_answer(self._place.queries["tell_kernels"], {"channel": self._place.schema})
        except psycopg.Error:
            self.close()
            raise

    def _query_until_answer(self, query: str | bytes, params: Params) -> Any:
        """Return the first value of a short query, repeated each time it is cancelled. Raises psycopg.Error."""
        while True:
            with contextlib.suppress(psycopg.errors.QueryCanceled):
                cursor = self._connect().execute(query, params)
                row = cursor.fetchone() if cursor.description else None
                return row[0] if row is not None else None

    def _connect(self) -> Connection:
        if self._connection is None or self._connection.closed:
            self._connection = self.connect()
        if self._given_up.is_set():
            raise psycopg.OperationalError("it is over")
        return self._connection

    def _interrupt(self) -> None:
        connection = self._connection
        if connection is not None:
            with contextlib.suppress(psycopg.Error):
                connection.cancel_safe(timeout=2.0)


def _next(kernel: str, peers: Sequence[PeerKernel]) -> PeerKernel | None:
    """Return the kernel that this one watches: the next by name that holds a lock, after the last one the first."""
    candidates = [each for each in peers if each.info.alive and each.away_s is None and each.info.name != kernel]
    following = [each for each in candidates if each.info.name > kernel]
    return next(iter(following or candidates), None)
