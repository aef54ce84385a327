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
import builtins
import hashlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self, TypeVar

from ramet.concurrency.deadline import run_shielded
from ramet.core.errors import InvalidValue, MissingExtra, OwnedElsewhere, StoreFailed
from ramet.store.contract import Document, DocumentWrite, Entry, KernelInfo, StoredEvent
from ramet.store.notifications import Listeners
from ramet.store.postgres import tables
from ramet.store.validation import (
    MOST_DATA,
    EntryValidator,
    checked_data,
    checked_name,
    checked_number,
    checked_together,
)

if TYPE_CHECKING:
    from ramet.store.postgres.connection import OpenStore
    from ramet.store.postgres.reader import PostgresReader

T = TypeVar("T")

MAX_TEXT = 2_600  #: maximum bytes of an id, or of a kind and a key: an entry of an index of PostgreSQL has 2,704
_FIRST_LOOK_S = 1.0  #: minimum time for the first look of `wait`: False is only returned after one
_HASH_INLINE = 2**16  #: maximum bytes that are hashed on the loop rather than in a thread


class PostgresStore:
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
            raise MissingExtra("a journal on PostgreSQL", "postgres") from None
        _check_text("kernel", kernel)
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
                _check_text(field, text)
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

    async def read(
        self, after: int = 0, *, tree: str | None = None, run: str | None = None, limit: int = 1_000
    ) -> builtins.list[StoredEvent]:
        for field, text in (("tree", tree), ("run", run)):
            if text is not None:
                _check_text(field, text)
        return await self._query(lambda reader: reader.read(after, tree, run, max(limit, 0)))

    async def head(self) -> int:
        return await self._query(lambda reader: reader.head())

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

    async def forget(self, tree: str) -> int:
        _check_text("tree", tree)
        return int(await self._change(tables.forget(self._place.queries, tree), 0, closes_batch=True))

    async def rewrite(self, cursor: int, data: bytes) -> None:
        """Replace the data of an event; the old bytes exist until PostgreSQL has vacuumed. For maintenance only."""
        checked_data("data", data)
        await self._change(tables.rewrite(self._place.queries, cursor, data), len(data))

    # ---- documents

    async def get(self, kind: str, key: str) -> Document | None:
        _check_text("kind", kind)
        _check_text("key", key, kind)
        return await self._query(lambda reader: reader.get(kind, key))

    async def list(self, kind: str, *, prefix: str = "") -> builtins.list[Document]:
        _check_text("kind", kind)
        _check_text("prefix", prefix)
        return await self._query(lambda reader: reader.documents(kind, prefix))

    async def put(
        self, kind: str, key: str, data: bytes, *, expected: int | None = None, tree: str | None = None
    ) -> Document:
        _check_text("kind", kind)
        _check_text("key", key, kind)
        checked_data("data", data)
        if expected is not None:
            checked_number("expected", expected)
        change: Callable[[Any], object] = tables.put(self._place.queries, kind, key, data, expected)
        if tree is not None:
            change = self._writable().ownership.if_owned(_check_text("tree", tree), change)
        document = await self._change(change, len(data))
        assert isinstance(document, Document)
        return document

    async def delete(self, kind: str, key: str, *, expected: int | None = None) -> bool:
        _check_text("kind", kind)
        _check_text("key", key, kind)
        return bool(await self._change(tables.delete(self._place.queries, kind, key, expected), 0))

    # ---- blobs

    async def put_blob(self, data: bytes) -> str:
        checked_data("data", data)
        if len(data) <= _HASH_INLINE:
            name = hashlib.sha256(data).hexdigest()
        else:
            name = await self._query(lambda _: hashlib.sha256(data).hexdigest())
        return str(await self._change(tables.put_blob(self._place.queries, name, data), len(data)))

    async def get_blob(self, name: str) -> bytes | None:
        _check_text("name", name)
        return await self._query(lambda reader: reader.get_blob(name))

    async def get_blobs(self, names: Sequence[str]) -> Mapping[str, bytes]:
        checked_names = [_check_text("name", name) for name in names]
        return await self._query(lambda reader: reader.get_blobs(checked_names))

    def get_blobs_now(self, names: Sequence[str]) -> Mapping[str, bytes]:
        """Return the bytes of these names, and block the thread, for five seconds at most.

        Raises StoreFailed after that.
        """
        checked_names = [_check_text("name", name) for name in names]
        open_store = self._usable()
        return open_store.reading_now(lambda: open_store.reader.get_blobs(checked_names))

    async def list_blobs(self) -> Sequence[str]:
        return await self._query(lambda reader: reader.list_blobs())

    async def delete_blob(self, name: str) -> bool:
        _check_text("name", name)
        return bool(await self._change(tables.delete_blob(self._place.queries, name), 0))

    # ---- both

    async def put_together(self, blobs: Sequence[bytes], documents: Sequence[DocumentWrite]) -> Sequence[Document]:
        size = self._size_of(blobs, documents)
        if size <= _HASH_INLINE:
            blobs_by_name = _hash_blobs(blobs)
        else:
            blobs_by_name = await self._query(lambda _: _hash_blobs(blobs))
        change = tables.put_together(self._place.queries, blobs_by_name, documents)
        stored_documents: Sequence[Document] = await self._change(change, size)
        return stored_documents

    # ---- kernels

    async def kernels(self) -> Sequence[KernelInfo]:
        peers, own_name = await self._query(lambda reader: reader.kernels()), "" if self._read_only else self.kernel
        return [each.info for each in peers if each.info.alive or each.has_trees or each.info.name == own_name]

    async def announce(self, address: str) -> None:
        await self._change(tables.announce(self._place, self.kernel, _check_text("address", address)), 0)

    def on_kernels(self, listener: Callable[[], None]) -> Callable[[], None]:
        self._usable().watch_kernels()
        return self._watching.add(listener)

    @property
    def is_away(self) -> bool:
        return self._open is not None and self._open.is_away

    async def has_closed(self, kernel: str, epoch: int) -> bool:
        name = _check_text("kernel", kernel)
        return await self._query(lambda reader: reader.has_closed(name, epoch))

    async def owner_of(self, tree: str) -> KernelInfo | None:
        _check_text("tree", tree)
        return await self._query(lambda reader: reader.owner(tree))

    async def claim(self, trees: Sequence[str]) -> Sequence[str]:
        names = [_check_text("tree", tree) for tree in trees]
        owned_trees: Sequence[str] = await self._change(self._writable().ownership.claim(names), 0) if names else []
        return owned_trees

    async def take_over(
        self, kernel: str, trees: Sequence[str], documents: Sequence[DocumentWrite]
    ) -> Sequence[Document] | None:
        names = [_check_text("tree", tree) for tree in trees]
        size = self._size_of((), documents)
        write = tables.put_together(self._place.queries, (), documents)
        change = self._writable().ownership.take_over(_check_text("kernel", kernel), names, write)
        stored_documents: Sequence[Document] | None = await self._change(change, size)
        return stored_documents

    async def claim_orphaned(self, limit: int = 16) -> Sequence[str]:
        trees: Sequence[str] = await self._change(
            self._writable().ownership.claim_orphaned(checked_number("limit", limit)), 0
        )
        return trees

    async def release(self, tree: str) -> None:
        await self._change(self._writable().ownership.release(_check_text("tree", tree)), 0)

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

    async def _query(self, question: Callable[[PostgresReader], T]) -> T:
        open_store = self._usable()
        return await open_store.run_in_reader(lambda: question(open_store.reader))

    def _size_of(self, blobs: Sequence[bytes], documents: Sequence[DocumentWrite]) -> int:
        """Return the number of bytes to write. Raises InvalidValue if the data cannot be written."""
        checked_together(blobs, documents)
        for document in documents:
            _check_text("key", document.key, document.kind)
        size = sum(map(len, blobs)) + sum(len(document.data) for document in documents)
        if size > MOST_DATA:
            raise InvalidValue("data", f"{size} bytes", f"at most {MOST_DATA} bytes")
        return size

    def _change(self, change: Callable[[Any], object], size: int, *, closes_batch: bool = False) -> Awaitable[Any]:
        return self._writable().batches.change(change, size, closes_batch=closes_batch)

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


def _check_text(field: str, text: object, companion: str = "") -> str:
    """Return text that PostgreSQL accepts and can index together with `companion`. Raises InvalidValue otherwise."""
    text = checked_name(field, text)
    if len(text.encode()) + len(companion.encode()) > MAX_TEXT:
        raise InvalidValue(field, text, f"text of at most {MAX_TEXT} bytes in UTF-8, a kind and its key together")
    return text


def _hash_blobs(blobs: Sequence[bytes]) -> builtins.list[tuple[str, bytes]]:
    return [(hashlib.sha256(data).hexdigest(), data) for data in blobs]
