"""The journal of one kernel in one file: SQLite with a write-ahead log, one writing and one reading thread.

Next to the file are `<file>.lock`, held by the kernel, `<file>.mark`, the committed position, and SQLite's own `-wal`
and `-shm`. Other processes read with `SqliteStore(path, read_only=True)`, with or without a running kernel.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, Self, TypeVar

from ramet.core.errors import Damaged, StoreFailed
from ramet.store.contract import Entry
from ramet.store.notifications import Listeners, Notifier
from ramet.store.operations import StoreOperations
from ramet.store.single_kernel import SoleKernel
from ramet.store.sqlite import database
from ramet.store.sqlite.commit_queue import Commits
from ramet.store.sqlite.files import SqliteFiles
from ramet.store.sqlite.reader import SqliteReader
from ramet.store.sqlite.tables import Journal, Space
from ramet.store.validation import checked_data

T = TypeVar("T")
_GIVEN = 128  #: pages released in one commit: concurrent writers wait for some milliseconds
_FIRST_LOOK_S, _LOOK_S = 0.005, 0.05  #: how often another process polls for new events


class SqliteStore(StoreOperations, SoleKernel):
    """A store in one file; durable data survives a power cut. See `ramet.store.contract`."""

    name = "sqlite"
    durable_across_processes = True

    def __init__(self, path: str | os.PathLike[str], *, read_only: bool = False, allow_fuse: bool = False) -> None:
        super().__init__()
        self.path, self.read_only, self._allow_fuse = Path(path).resolve(), read_only, allow_fuse
        self._why: str | None = "it is not open"  #: why it cannot be used; None while it is open
        self._gate = asyncio.Lock()
        self._notifier = Notifier()
        self._losses: Listeners[[StoreFailed]] = Listeners()
        self._committed_at_close = 0  #: value at the time of closing
        self._commits: Commits | None = None  #: None for a read-only store
        self._files: SqliteFiles | None = None
        self._pool: ThreadPoolExecutor | None = None

    @property
    def loss(self) -> Damaged | None:
        """Return the error for missing commits that a reader found; None if there are none."""
        return self._files.loss if self._files is not None else None

    async def open(self) -> Self:
        """Open the store; idempotent.

        Raises StoreInUse ("pid 1234"), StoreFailed, InvalidValue, and Damaged if the journal is damaged or too new.
        Also raises Damaged if committed data is missing; a read-only store opens then, and `loss` has the error.

        Raises InvalidValue for a path on a network file system: SQLite's locks do not work there. Also raises
        InvalidValue for a path on FUSE, unless `allow_fuse` declares that no other machine uses it.
        """
        async with self._gate:
            if self._why is not None:
                pool = ThreadPoolExecutor(1, "ramet-store-reader")
                future = pool.submit(SqliteFiles, self.path, self.read_only, self._allow_fuse)
                try:
                    files = await asyncio.wrap_future(future)
                except BaseException:
                    # A cancelled caller leaves nothing locked; the started work ends in its thread.
                    future.add_done_callback(_give_up)
                    pool.shutdown(wait=False)
                    raise
                self._pool, self._files = pool, files
                if files.journal is not None and files.checkpoints is not None:
                    self._notifier.reset(files.journal.head)
                    self._commits = Commits(self.path, files.journal, files.checkpoints, self._notifier, self._losses)
                self._why = None
        return self

    async def close(self) -> None:
        """Write every appended event, and release the file, even if the caller is cancelled; idempotent.

        Raises StoreFailed, once, if the store had failed or fails now; the file is released in any case.
        """
        await asyncio.shield(asyncio.ensure_future(self._close()))

    # ---- the journal

    def append(self, entry: Entry) -> int:
        """Add an event, in order; it is written within 5 ms, or at once if a caller waits."""
        ticket = (self._commits or self._writes()).append(entry)
        self._owned_trees.add(entry.tree)
        return ticket

    @property
    def committed(self) -> int:
        return self._commits.committed if self._commits else self._committed_at_close

    async def durable(self, ticket: int) -> None:
        await (self._commits or self._writes()).durable(ticket)

    def on_commit(self, listener: Callable[[int], None]) -> Callable[[], None]:
        self._check()
        return self._notifier.listen(listener)

    def on_loss(self, listener: Callable[[StoreFailed], None]) -> Callable[[], None]:
        """Call `listener` once a commit fails, finds that another kernel writes to the file, or that it was replaced.

        Returns a function that stops this.
        """
        self._check()
        return self._losses.add(listener)

    async def head(self) -> int:
        if self.read_only:
            return await self._read(SqliteReader.head)
        self._check()
        return self._notifier.head

    async def wait(self, after: int, *, timeout_s: float | None = None) -> bool:
        self._check()
        if not self.read_only:
            return await self._notifier.wait(after, timeout_s)
        try:
            async with asyncio.timeout(timeout_s):
                pause = _FIRST_LOOK_S
                while await self.head() <= after:
                    await asyncio.sleep(pause)
                    pause = min(2 * pause, _LOOK_S)
        except TimeoutError:
            return False
        return True

    async def rewrite(self, cursor: int, data: bytes) -> None:
        """Replace the data of an event permanently: the old bytes are overwritten. For maintenance only."""
        checked_data("data", data)
        await self._change(lambda journal: journal.rewrite(cursor, data), len(data))

    async def shrink(self) -> Space:
        """Release free pages to the file system, a few at a time, between other writes; return the remaining space.

        The file shrinks once its log is moved, when the writer is idle. A journal of an older ramet does not shrink by
        this: use `ramet.store.sqlite.compaction`.
        """
        space = await self._change(lambda journal: journal.space())
        while space.can_release and space.surplus:
            previous = space
            space = await self._change(lambda journal: journal.release_pages(_GIVEN), _GIVEN * space.page_size)
            if space.free >= previous.free:  # Other writers free pages as fast, or none can be released.
                break
        return space

    # ---- inside

    def _check(self) -> None:
        why = self._why or (self._commits and self._commits.why)
        if why:
            raise StoreFailed(self.path, why)

    def _writes(self) -> Commits:
        self._check()
        if self._commits is None:
            raise StoreFailed(self.path, "it was opened for reading only")
        return self._commits

    async def _read(self, query: Callable[[SqliteReader], T]) -> T:
        """Read in the reader's thread. A cancelled wait lets the read finish there: it is short."""
        self._check()
        pool, files = self._pool, self._files
        if pool is None or files is None:
            raise StoreFailed(self.path, "it is closed")
        try:
            return await asyncio.wrap_future(pool.submit(query, files.reader))
        except sqlite3.Error as error:
            raise StoreFailed(self.path, database.plain(error)) from None

    def _read_now(self, query: Callable[[SqliteReader], T]) -> T:
        """Read in the calling thread: some microseconds for each blob that the system has cached."""
        self._check()
        files = self._files
        if files is None:
            raise StoreFailed(self.path, "it is closed")
        try:
            return files.read_in_caller(query)
        except sqlite3.Error as error:
            raise StoreFailed(self.path, database.plain(error)) from None

    async def _change(
        self, change: Callable[[Journal], T], size: int = 0, *, tree: str | None = None, closes_batch: bool = False
    ) -> T:
        """Change the tables in the writer's thread, in order with the appends."""
        commits = self._writes()
        if tree is not None:
            self._owned_trees.add(tree)
        return await commits.change(change, size)

    async def _close(self) -> None:
        async with self._gate:
            if self._pool is None or self._files is None:
                return
            self._why = "it is closed"
            self._end_kernel()
            self._notifier.fail(self.path, self._why)
            self._losses.clear()
            pool, files, commits = self._pool, self._files, self._commits
            self._pool = self._files = self._commits = None
            try:
                # The writer's connection closes last: then SQLite checkpoints the file.
                await asyncio.wrap_future(pool.submit(files.close_readers))
            finally:
                try:
                    if commits is not None:
                        await commits.close(self._why)
                finally:
                    self._committed_at_close = commits.committed if commits is not None else 0
                    pool.shutdown()
                    files.release()


def _give_up(future: Future[Any]) -> None:
    if not future.cancelled() and future.exception() is None:
        future.result().release()
