"""The journal on PostgreSQL, for several kernels and machines; needs the extra `postgres`.

One thread writes, through a session that also holds the kernel's lock (`writer`: order, exactly once, fencing). Another
thread reads, so that no reader waits for a commit. Threads are used instead of psycopg's asynchronous connection
because of the cost to the event loop. A batch for the writer is one put into a queue and one callback: 0.12 ms of the
loop's CPU for a complete group commit. psycopg's generators step through each statement on the loop: 0.24 ms for the
statement alone. Parameters and rows are also converted off the loop. Notifications of other processes arrive through
LISTEN, on the loop itself; a store that never waits has no such session.

`durable` has the server's meaning: `synchronous_commit` is on here, whatever its default, but a server with `fsync=off`
can lose committed data. Text is UTF-8 without NUL. The id of a run is stored once, and is removed with its tree.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Self, TypeVar

from ramet.concurrency.deadline import run_shielded
from ramet.core.errors import InvalidValue, OwnedElsewhere, StoreFailed
from ramet.disk.installation import missing_extra
from ramet.store.contract import Document, DocumentWrite, Entry, KernelInfo
from ramet.store.notifications import Listeners
from ramet.store.operations import StoreOperations
from ramet.store.validation import MOST_DATA, EntryValidator, checked_data, checked_name, checked_number

if TYPE_CHECKING:
    from ramet.store.postgres.connection import OpenStore
    from ramet.store.postgres.reader import PostgresReader
    from ramet.store.postgres.tables import PostgresTables

T = TypeVar("T")

MAX_TEXT = 2_600  #: maximum bytes of an id, or of a kind and a key: an entry of an index of PostgreSQL has 2,704
_FIRST_LOOK_S = 1.0  #: minimum time for the first look of `wait`: False is only returned after one
_HASH_INLINE = 2**16  #: maximum bytes that are hashed on the loop rather than in a thread


class PostgresStore(StoreOperations):
    """A journal with its documents and blobs in one schema of a PostgreSQL database; see `ramet.store.contract`.

    One kernel per name at a time: a second `open` raises StoreInUse. `read_only` takes no lock, and refuses to write.
    If the server restarts or the connection is lost, calls wait for it for `patience_s`, without loss or duplication. A
    suspended server is waited for until it continues. Raises MissingExtra without psycopg, and InvalidValue for an
    invalid argument.
    """

    name = "postgres"
    durable_across_processes = True

    def __init__(
        self,
        dsn: str,
        *,
        schema: str = "ramet",
        kernel: str = "kernel",
        read_only: bool = False,
        patience_s: float = 30.0,
    ) -> None:
        try:
            from ramet.store.postgres.dsn import Place
        except ModuleNotFoundError as missing:
            if missing.name != "psycopg":
                raise
            raise missing_extra("a journal on PostgreSQL", "postgres") from None
        self._checked_text("kernel", kernel)
        self._place = Place(dsn, schema)
        self.kernel = kernel
        self._read_only, self._patience_s = read_only, patience_s
        self._gate = asyncio.Lock()
        self._open: OpenStore | None = None
        self._failure: str | None = "it is not open"
        self._committed_at_close = 0  #: value at the time of closing
        self._intake = EntryValidator()
        self._losses: Listeners[[StoreFailed]] = Listeners()
        self._tree_losses: Listeners[[OwnedElsewhere]] = Listeners()
        self._watching: Listeners[[]] = Listeners()

    async def open(self) -> Self:
        """Take the lock and migrate the schema.

        Raises StoreInUse, Damaged if the schema is too new, and StoreFailed.
        """
        from ramet.store.postgres.connection import OpenStore

        async with self._gate:
            if self._open is None:
                open_store = OpenStore(
                    self._place,
                    None if self._read_only else self.kernel,
                    self._patience_s,
                    on_failure=self._fail,
                    on_tree_loss=self._tree_losses.notify,
                    on_kernel_change=self._watching.notify,
                )
                try:
                    await run_shielded(open_store.begin())
                except BaseException:
                    await run_shielded(open_store.end())
                    raise
                self._open, self._failure = open_store, None
        return self

    async def close(self) -> None:
        """Write every appended event, and close, even if the caller is cancelled; idempotent.

        Raises StoreFailed, once, if something could not be written: a write had failed, or the server did not answer
        for `patience_s`.
        """
        await run_shielded(self._close())

    async def _close(self) -> None:
        async with self._gate:
            open_store = self._open
            if open_store is None:
                return
            failure, self._failure = self._failure, "it is closed"  # nothing is accepted from here on
            try:
                if failure is not None:
                    raise StoreFailed(self._place.location, failure)
                await open_store.settle()
            finally:
                self._open, self._failure, self._committed_at_close = None, "it is closed", open_store.batches.committed
                for listeners in (self._losses, self._tree_losses, self._watching):
                    listeners.clear()
                open_store.batches.fail(self._make_failure)
                open_store.wake_waiters()
                await open_store.end()

    # ---- the journal

    def append(self, entry: Entry) -> int:
        """Add an event, in order, and return its ticket.

        Raises StoreFailed, and InvalidValue for data that is too large.
        """
        open_store = self._writable()
        if (losses := open_store.ownership.lost_trees) and (loss := losses.get(entry.tree)) is not None:
            raise OwnedElsewhere(loss.tree, loss.kernel, loss.address)
        self._intake.check(entry)
        for field, text in (("tree", entry.tree), ("run", entry.run)):
            if len(text) > MAX_TEXT // 4:
                self._checked_text(field, text)
        return open_store.batches.append(entry)

    @property
    def committed(self) -> int:
        return self._open.batches.committed if self._open is not None else self._committed_at_close

    async def durable(self, ticket: int) -> None:
        """Return once the entry of this ticket, and all before it, survives a power cut. Raises StoreFailed.

        This kernel then still holds its lock. If its session ended meanwhile, or the process was suspended, listeners
        of `on_tree_loss` have been called for lost trees.
        """
        open_store = self._open
        if ticket <= self.committed and (
            open_store is None or not (open_store.batches.refusals or open_store.is_in_doubt)
        ):
            return
        open_store = self._writable()
        if ticket > open_store.batches.newest:
            raise InvalidValue(
                "ticket", ticket, f"one that `append` returned; the newest is {open_store.batches.newest}"
            )
        await open_store.batches.durable(ticket)
        if open_store.is_in_doubt:
            await open_store.confirm_ownership()

    def on_commit(self, listener: Callable[[int], None]) -> Callable[[], None]:
        return self._usable().batches.listeners.add(listener)

    def on_loss(self, listener: Callable[[StoreFailed], None]) -> Callable[[], None]:
        self._usable()
        return self._losses.add(listener)

    async def head(self) -> int:
        return await self._read(lambda reader: reader.head())

    async def wait(self, after: int, *, timeout_s: float | None = None) -> bool:
        wait_s = None if timeout_s is None else max(timeout_s, _FIRST_LOOK_S)
        loop = asyncio.get_running_loop()
        until = None if timeout_s is None else loop.time() + timeout_s
        try:
            async with asyncio.timeout(wait_s):
                if await self.head() > after:
                    return True
            async with asyncio.timeout_at(until):
                while True:
                    event = self._usable().new_events
                    await self._usable().listen()
                    if await self.head() > after:
                        return True
                    await event.wait()
        except TimeoutError:
            return False

    async def rewrite(self, cursor: int, data: bytes) -> None:
        """Replace the data of an event; the old bytes exist until PostgreSQL has vacuumed. For maintenance only."""
        checked_data("data", data)
        await self._change(lambda tables: tables.rewrite(cursor, data), len(data))

    # ---- blobs

    async def put_blob(self, data: bytes) -> str:
        (name,) = await self._hash([checked_data("data", data)])
        return await self._change(lambda tables: tables.put_blob(data, name), len(data))

    async def put_together(self, blobs: Sequence[bytes], documents: Sequence[DocumentWrite]) -> Sequence[Document]:
        size = self._checked_size(blobs, documents)
        names = await self._hash(blobs)
        return await self._change(lambda tables: tables.put_together(blobs, documents, names), size)

    # ---- kernels

    async def kernels(self) -> Sequence[KernelInfo]:
        peers, own_name = await self._read(lambda reader: reader.kernels()), "" if self._read_only else self.kernel
        return [each.info for each in peers if each.info.alive or each.has_trees or each.info.name == own_name]

    async def announce(self, address: str) -> None:
        self._checked_text("address", address)
        await self._change(lambda tables: tables.announce(self.kernel, address))

    def on_kernels(self, listener: Callable[[], None]) -> Callable[[], None]:
        self._usable().watch_kernels()
        return self._watching.add(listener)

    @property
    def is_away(self) -> bool:
        return self._open is not None and self._open.is_away

    async def has_closed(self, kernel: str, epoch: int) -> bool:
        self._checked_text("kernel", kernel)
        return await self._read(lambda reader: reader.has_closed(kernel, epoch))

    async def owner_of(self, tree: str) -> KernelInfo | None:
        self._checked_text("tree", tree)
        return await self._read(lambda reader: reader.owner(tree))

    async def claim(self, trees: Sequence[str]) -> Sequence[str]:
        names = [self._checked_text("tree", tree) for tree in trees]
        return await self._change(lambda tables: tables.ownership.claim(tables.connection, names)) if names else []

    async def take_over(
        self, kernel: str, trees: Sequence[str], documents: Sequence[DocumentWrite]
    ) -> Sequence[Document] | None:
        names = [self._checked_text("tree", tree) for tree in trees]
        size = self._checked_size((), documents)
        self._checked_text("kernel", kernel)

        def change(tables: PostgresTables) -> Sequence[Document] | None:
            write = partial(tables.put_together, (), documents)
            return tables.ownership.take_over(tables.connection, kernel, names, write)

        return await self._change(change, size)

    async def claim_orphaned(self, limit: int = 16) -> Sequence[str]:
        checked_number("limit", limit)
        return await self._change(lambda tables: tables.ownership.claim_orphaned(tables.connection, limit))

    async def release(self, tree: str) -> None:
        self._checked_text("tree", tree)
        await self._change(lambda tables: tables.ownership.release(tables.connection, tree))

    def on_tree_loss(self, listener: Callable[[OwnedElsewhere], None]) -> Callable[[], None]:
        self._usable()
        return self._tree_losses.add(listener)

    # ---- inside

    def _make_failure(self) -> StoreFailed:
        return StoreFailed(self._place.location, self._failure or "it is closed")

    def _usable(self) -> OpenStore:
        if self._failure is not None or self._open is None:
            raise self._make_failure()
        return self._open

    def _writable(self) -> OpenStore:
        open_store = self._usable()
        if self._read_only:
            raise StoreFailed(self._place.location, "it was opened for reading only")
        return open_store

    async def _read(self, query: Callable[[PostgresReader], T]) -> T:
        open_store = self._usable()
        return await open_store.run_in_reader(lambda: query(open_store.reader))

    def _read_now(self, query: Callable[[PostgresReader], T]) -> T:
        """Read in the reader's thread, for five seconds at most. Raises StoreFailed after that."""
        open_store = self._usable()
        return open_store.reading_now(lambda: query(open_store.reader))

    async def _change(
        self,
        change: Callable[[PostgresTables], T],
        size: int = 0,
        *,
        tree: str | None = None,
        closes_batch: bool = False,
    ) -> T:
        open_store = self._writable()
        if tree is None:
            return await open_store.batches.change(change, size, closes_batch=closes_batch)

        def change_if_owned(tables: PostgresTables) -> T:
            tables.ownership.check_owned(tables.connection, tree)
            return change(tables)

        return await open_store.batches.change(change_if_owned, size, closes_batch=closes_batch)

    async def _hash(self, blobs: Sequence[bytes]) -> Sequence[str]:
        """Return the names of blobs. The transaction, for which other kernels wait, does not compute them."""
        if sum(map(len, blobs)) <= _HASH_INLINE:
            return _names_of(blobs)
        return await self._read(lambda _: _names_of(blobs))

    @staticmethod
    def _checked_text(field: str, text: object, companion: str = "") -> str:
        """Return text that PostgreSQL accepts, and can index together with `companion`."""
        text = checked_name(field, text)
        if len(text.encode()) + len(companion.encode()) > MAX_TEXT:
            raise InvalidValue(field, text, f"text of at most {MAX_TEXT} bytes in UTF-8, a kind and its key together")
        return text

    def _checked_blob_name(self, name: str) -> str:
        return self._checked_text("name", name)

    def _checked_size(self, blobs: Sequence[bytes], documents: Sequence[DocumentWrite]) -> int:
        size = super()._checked_size(blobs, documents)
        for document in documents:
            self._checked_text("key", document.key, document.kind)
        if size > MOST_DATA:
            raise InvalidValue("data", f"{size} bytes", f"at most {MOST_DATA} bytes")
        return size

    def _fail(self, error: BaseException) -> None:
        """Fail the store: a write has failed permanently."""
        self._failure = error.why if isinstance(error, StoreFailed) else f"{type(error).__name__}: {error}"
        if self._open is not None:
            self._open.batches.fail(self._make_failure)
            self._open.wake_waiters()
        losses = tuple(self._losses)
        self._losses.clear()
        for listener in losses:
            listener(self._make_failure())


def _names_of(blobs: Sequence[bytes]) -> list[str]:
    return [hashlib.sha256(data).hexdigest() for data in blobs]
