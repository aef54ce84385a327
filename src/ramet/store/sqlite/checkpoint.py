"""Move the write-ahead log into the database file: concurrently with the writer, never between an event and its ack."""

from __future__ import annotations

import contextlib
import sqlite3
from concurrent.futures import Future, ThreadPoolExecutor

_LARGE = 16 * 2**20  #: bytes of log after which it is moved even under load
_COMMIT_BYTES = 3 * 4096  #: minimum bytes that a commit writes: a page of events and one of each index
QUIET_S = 1.0  #: time without writes after which the writer counts as idle
_AGAIN_S = 30.0  #: pause between attempts to truncate the log while a reader blocks them


class Checkpoints:
    """The checkpoints of a log, with a separate connection and thread; the writer moves only what was added since."""

    def __init__(self, own: sqlite3.Connection, writers: sqlite3.Connection) -> None:
        self._own, self._writers = own, writers
        self._pool = ThreadPoolExecutor(1, "ramet-store-checkpoint")
        # The thread starts now: later the system may have no thread left, and the writer must not fail for that.
        self._pool.submit(lambda: None).result()
        own.execute("PRAGMA busy_timeout = 0")  # Never wait for current readers or writers.
        self._moving: Future[None] | None = None
        self._truncating: Future[bool] | None = None  #: whether the log is empty now, after a complete move
        self._bytes = 0  #: approximate bytes in the log

    @property
    def quiet_s(self) -> float | None:
        """Return how long the writer should wait for work before it calls `when_quiet`; None if no call is needed."""
        if self._bytes:
            return QUIET_S
        is_in_the_way = self._truncating is not None and self._truncating.done() and not self._truncating.result()
        return _AGAIN_S if is_in_the_way else None

    def after(self, size: int) -> None:
        """Note a committed batch of `size` bytes; start or finish a checkpoint if the log is large."""
        self._bytes += size + _COMMIT_BYTES
        if self._moving is None:
            if self._bytes > _LARGE:
                self._moving = self._pool.submit(_move, self._own)
        elif self._moving.done():
            # The log restarts with the next commit only if it is empty; the rest is small and moves quickly.
            self._moving, self._bytes = None, 0
            _move(self._writers)

    def when_quiet(self) -> None:
        """Move the whole log and truncate it while the writer is idle; otherwise it keeps its greatest length."""
        self._bytes = 0
        if self._moving is None or self._moving.done():
            self._moving = None
            self._truncating = self._pool.submit(_move_and_cut, self._own)

    def close(self) -> None:
        """Wait for the current checkpoint, and close."""
        self._pool.shutdown(wait=True)
        self._own.close()


def _move(connection: sqlite3.Connection) -> None:
    # What cannot be moved now stays safely in the log; a failing disk will fail the next commit.
    with contextlib.suppress(sqlite3.Error):
        connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()


def _move_and_cut(connection: sqlite3.Connection) -> bool:
    """Move and truncate the log; return False if a reader or writer blocks this."""
    _move(connection)  # First without a lock: little is left to move while the writer must wait.
    try:
        (is_busy, _, _) = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    except sqlite3.Error:
        return False
    return not is_busy
