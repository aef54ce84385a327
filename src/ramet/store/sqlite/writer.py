"""The single writing thread: it takes the queued entries, commits them as one batch, and reports once per batch."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence

from ramet.store.contract import Entry
from ramet.store.operations import QueuedChange
from ramet.store.sqlite.checkpoint import Checkpoints
from ramet.store.sqlite.tables import Journal

_MOST = 10_000  #: maximum entries of one transaction


class SqliteWriter:
    """A writer with adaptive group commit. `add`, `hurry` and `close` belong to the event loop, and never wait.

    `on_written` is called in the thread after each batch, with the number of entries written so far, the newest cursor,
    and the changes made. `on_ended` is called once, with the exception that ended the writer, or None after `close`.
    """

    def __init__(
        self,
        journal: Journal,
        checkpoints: Checkpoints,
        on_written: Callable[[int, int, Sequence[QueuedChange]], None],
        on_ended: Callable[[Exception | None], None],
    ) -> None:
        self._journal, self._checkpoints = journal, checkpoints
        self._on_written, self._on_ended = on_written, on_ended
        self._queue: deque[Entry | QueuedChange] = deque()
        self._wakeup = _Event()
        self._is_closing = False
        self._added_count = 0  #: total number of entries and changes
        self._wanted_count = 0  #: number of them up to which a caller waits
        self._taken_count = 0  #: number of them that the thread has taken
        # A daemon: a program that forgets to close its store must be able to end. It loses entries that no caller
        # waited for.
        self._thread = threading.Thread(target=self._run, name="ramet-store-writer", daemon=True)
        self._thread.start()

    def add(self, each: Entry | QueuedChange) -> None:
        """Queue an entry or a change; it is written when a caller waits. Rings no bell: waking a thread costs time."""
        self._added_count += 1
        self._queue.append(each)

    def hurry(self) -> None:
        """Write everything queued at once, because a caller waits."""
        if self._wanted_count != self._added_count:
            self._wanted_count = self._added_count
            self._wakeup.ring()

    def close(self) -> None:
        """Write everything queued, and end."""
        self._is_closing = True
        self._wakeup.ring()

    def join(self) -> None:
        """Wait for the thread, which has reported its end."""
        self._thread.join()

    # ---- in the thread

    def _run(self) -> None:
        problem: Exception | None = None
        count = 0
        try:
            while self._has_work():
                batch = [self._queue.popleft() for _ in range(min(len(self._queue), _MOST))]
                self._taken_count += len(batch)
                self._journal.commit(batch)
                changes = [each for each in batch if isinstance(each, QueuedChange)]
                count += len(batch) - len(changes)
                self._on_written(count, self._journal.head, changes)
                self._journal.trim()
                self._checkpoints.after(
                    sum(each.size if isinstance(each, QueuedChange) else len(each.data) + 64 for each in batch)
                )
        except Exception as error:
            problem = error
        try:
            self._checkpoints.close()
            self._journal.close()
        except Exception as error:
            problem = problem or error
        self._on_ended(problem)

    def _has_work(self) -> bool:
        """Wait for entries that a caller waits for; return False at the end."""
        while not self._queue:
            if self._is_closing:
                return bool(self._queue)
            if not self._wakeup.wait(self._checkpoints.quiet_s):
                self._checkpoints.when_quiet()
        while self._wanted_count <= self._taken_count and not self._is_closing:
            self._wakeup.wait(None)
        return True


class _Event:
    """A signal that wakes one waiting thread; ringing it from another thread never waits and takes almost no time.

    A ring without a waiting thread is kept for the next wait. Five times as fast as threading.Event.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()

    def ring(self) -> None:
        """Wake the waiting thread, or the next one to wait."""
        if self._lock.locked():
            self._lock.release()

    def wait(self, timeout_s: float | None) -> bool:
        """Wait for a ring; return False at the timeout."""
        return self._lock.acquire(timeout=-1 if timeout_s is None else timeout_s)
