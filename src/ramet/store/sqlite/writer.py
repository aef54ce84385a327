"""The one thread that writes: it takes what is there, commits it as one batch, and tells, once per batch."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence

from ramet.store.contract import Entry
from ramet.store.sqlite.checkpoint import Checkpoints
from ramet.store.sqlite.tables import Job, Journal

_MOST = 10_000  #: entries of one transaction


class SqliteWriter:
    """Adaptive group commit. `add`, `hurry` and `close` belong to the event loop, and never wait.

    `told` is called in the thread after each batch with the number of entries written so far, the newest cursor, and
    the jobs that were done; `ended` once, with what ended it, or None after `close`.
    """

    def __init__(
        self,
        journal: Journal,
        checkpoints: Checkpoints,
        told: Callable[[int, int, Sequence[Job]], None],
        ended: Callable[[Exception | None], None],
    ) -> None:
        self._journal, self._checkpoints = journal, checkpoints
        self._told, self._ended = told, ended
        self._queue: deque[Entry | Job] = deque()
        self._bell = _Bell()
        self._is_closing = False
        self._asked = self._wanted = 0  # entries and jobs that were ever added; up to which somebody waits
        self._taken = 0  # how many of them the thread has taken
        # A daemon: a program that forgets to close its store must be able to end. It loses what nobody waited for.
        self._thread = threading.Thread(target=self._run, name="ramet-store-writer", daemon=True)
        self._thread.start()

    def add(self, each: Entry | Job) -> None:
        """Queue something; it is written when somebody is in a hurry. Rings no bell: waking a thread costs."""
        self._asked += 1
        self._queue.append(each)

    def hurry(self) -> None:
        """Somebody waits for what was added: it is written at once."""
        if self._wanted != self._asked:
            self._wanted = self._asked
            self._bell.ring()

    def close(self) -> None:
        """Write what was added, and end."""
        self._is_closing = True
        self._bell.ring()

    def join(self) -> None:
        """Wait for the thread, which has said that it ended."""
        self._thread.join()

    # ---- in the thread

    def _run(self) -> None:
        problem: Exception | None = None
        written = 0
        try:
            while self._has_work():
                batch = [self._queue.popleft() for _ in range(min(len(self._queue), _MOST))]
                self._taken += len(batch)
                self._journal.commit(batch)
                jobs = [each for each in batch if isinstance(each, Job)]
                written += len(batch) - len(jobs)
                self._told(written, self._journal.head, jobs)
                self._journal.trim()
                self._checkpoints.after(
                    sum(each.size if isinstance(each, Job) else len(each.data) + 64 for each in batch)
                )
        except Exception as error:
            problem = error
        try:
            self._checkpoints.close()
            self._journal.close()
        except Exception as error:
            problem = problem or error
        self._ended(problem)

    def _has_work(self) -> bool:
        """Wait for something to write that somebody is in a hurry for; False: it is over."""
        while not self._queue:
            if self._is_closing:
                return bool(self._queue)
            if not self._bell.wait(self._checkpoints.quiet_s):
                self._checkpoints.when_quiet()
        while self._wanted <= self._taken and not self._is_closing:
            self._bell.wait(None)
        return True


class _Bell:
    """Wakes one thread that waits; rung by one other, it costs that one no waiting and hardly any time.

    A ring that nobody waits for is kept for the next wait. Five times as quick as threading.Event.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()

    def ring(self) -> None:
        """Wake the one who waits, or who will."""
        if self._lock.locked():
            self._lock.release()

    def wait(self, timeout_s: float | None) -> bool:
        """Whether it rang in time."""
        return self._lock.acquire(timeout=-1 if timeout_s is None else timeout_s)
