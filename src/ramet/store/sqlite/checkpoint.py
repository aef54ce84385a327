"""When the write-ahead log is moved into the file: beside the writer, never between an event and its ack."""

from __future__ import annotations

import contextlib
import sqlite3
from concurrent.futures import Future, ThreadPoolExecutor

_LARGE = 16 * 2**20  #: bytes of log after which it is moved even if nobody is idle
_EACH = 3 * 4096  #: what a commit writes at least: a page of events and one of each index
QUIET_S = 1.0  #: nothing to write for so long is being idle
_AGAIN_S = 30.0  #: until it is tried again to cut the log, where somebody who reads was in the way


class Checkpoints:
    """Moves the log with a connection and a thread of its own; the writer only moves what came meanwhile."""

    def __init__(self, own: sqlite3.Connection, writers: sqlite3.Connection) -> None:
        self._own, self._writers = own, writers
        self._pool = ThreadPoolExecutor(1, "ramet-store-checkpoint")
        # The thread starts now: later there may be no room for another one, and the writer must not fail for that.
        self._pool.submit(_start).result()
        own.execute("PRAGMA busy_timeout = 0")  # Whoever reads or writes just now is not waited for.
        self._under_way: Future[None] | None = None
        self._resting: Future[bool] | None = None  #: whether the log is empty now, once all of it was moved
        self._bytes = 0  #: about as much as is in the log

    @property
    def quiet_s(self) -> float | None:
        """How long the writer should wait for work before it calls `when_quiet`; None if there is no need to."""
        if self._bytes:
            return QUIET_S
        is_in_the_way = self._resting is not None and self._resting.done() and not self._resting.result()
        return _AGAIN_S if is_in_the_way else None

    def after(self, size: int) -> None:
        """A batch of so many bytes was committed."""
        self._bytes += size + _EACH
        if self._under_way is None:
            if self._bytes > _LARGE:
                self._under_way = self._pool.submit(_move, self._own)
        elif self._under_way.done():
            # The log begins anew with the next commit only if nothing is left in it: this is a little, and quick.
            self._under_way, self._bytes = None, 0
            _move(self._writers)

    def when_quiet(self) -> None:
        """Nobody waits for anything: move all of it, and cut the log, which is as long as it ever was otherwise."""
        self._bytes = 0
        if self._under_way is None or self._under_way.done():
            self._under_way = None
            self._resting = self._pool.submit(_move_and_cut, self._own)

    def close(self) -> None:
        """Wait for what is under way."""
        self._pool.shutdown(wait=True)
        self._own.close()


def _start() -> None:
    """Do nothing, in the thread that is there from now on."""


def _move(connection: sqlite3.Connection) -> None:
    # What cannot be moved now stays in the log, where it is as safe; a disk that is ill will fail the next commit.
    with contextlib.suppress(sqlite3.Error):
        connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()


def _move_and_cut(connection: sqlite3.Connection) -> bool:
    """Move the log, and cut it to nothing; False where somebody is in the way."""
    _move(connection)  # First without a lock: what is left to be done while the writer has to wait is little.
    try:
        (is_busy, _, _) = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    except sqlite3.Error:
        return False
    return not is_busy
