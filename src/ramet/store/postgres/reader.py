"""Read a journal on PostgreSQL, through a separate session that never waits for the writer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import psycopg
from psycopg.rows import TupleRow

from ramet.core.errors import StoreFailed
from ramet.store.contract import Document, KernelInfo, StoredEvent
from ramet.store.postgres import schema
from ramet.store.postgres.dsn import Connection, DatabaseSession, Place, RetryWindow, is_lost, retry
from ramet.store.postgres.ownership import GRACE_S
from ramet.store.postgres.peer_monitor import PeerKernel

T = TypeVar("T")

_MAX_NAMES = 100_000  #: maximum number of cached names


class PostgresReader(DatabaseSession):
    """A reader that repeats queries after a lost session; see `ramet.store.operations`.

    Used by one thread; only `sever` and `give_up` are for others.
    """

    def __init__(self, place: Place, patience_s: float) -> None:
        super().__init__(place, "ramet reader", writes=False)
        self._patience_s = patience_s
        self._names: dict[int, str] = {}
        self.gave_up = False  #: the server stayed away for the full patience

    def open(self) -> None:
        """Connect. Raises StoreFailed if there is no journal, and Damaged if it is too new."""
        try:
            self._connection = self.connect()
            schema.require(self._connection, self._place)
        except psycopg.Error as error:
            raise self._place.make_failure(error) from None

    def give_up(self) -> None:
        """Stop waiting for an absent server. Call from another thread."""
        self._given_up.set()

    def with_retries(self, work: Callable[[], T]) -> T:
        """Return the result of `work`, with retries while the server is away. Raises StoreFailed."""
        patience = RetryWindow(self._patience_s, self._given_up)
        try:
            return retry(work, patience, self._place)
        except StoreFailed:
            self.gave_up = patience.is_over and not self._given_up.is_set()
            raise

    def events(self, after: int, tree: str | None, run: str | None, limit: int) -> list[StoredEvent]:
        name = "_".join(["read", *(["tree"] if tree is not None else []), *(["run"] if run is not None else [])])
        values = {"after": after, "tree": tree, "run": run, "limit": limit}

        def work(connection: Connection) -> list[StoredEvent]:
            rows = connection.execute(self._place.queries[name], values, binary=True).fetchall()
            if tree is not None and rows:  # A root has the id of its tree, too: the names of most trees are known.
                self._names[rows[0][1]] = tree
            names = self._read_names(connection, {each for row in rows for each in (row[1], row[2])})
            events = [
                StoredEvent(cursor, names[tree_id], names[run_id], seq, type_, data)
                for cursor, tree_id, run_id, seq, type_, data in rows
                if tree_id in names and run_id in names
            ]
            # An event without a name was removed between the two queries; an empty result must mean that nothing
            # follows.
            return events if events or not rows else work(connection)

        return self._ask(work)

    def head(self) -> int:
        """Return the newest cursor."""
        rows = self._rows("head")
        return int(rows[0][0]) if rows else 0

    def document(self, kind: str, key: str) -> Document | None:
        rows = self._rows("get", {"kind": kind, "key": key}, binary=True)
        return Document(*rows[0]) if rows else None

    def documents(self, kind: str, prefix: str) -> list[Document]:
        return [Document(*row) for row in self._rows("list", {"kind": kind, "prefix": prefix}, binary=True)]

    def blob(self, name: str) -> bytes | None:
        rows = self._rows("get_blob", {"name": name}, binary=True)
        return bytes(rows[0][0]) if rows else None

    def blobs_named(self, names: Sequence[str]) -> dict[str, bytes]:
        return {name: bytes(data) for name, data in self._rows("get_blobs", {"names": list(names)}, binary=True)}

    def blobs(self) -> tuple[str, ...]:
        return tuple(name for (name,) in self._rows("list_blobs"))

    def kernels(self) -> list[PeerKernel]:
        """Return all kernels of the database, including ones that ended long ago."""
        return [PeerKernel(KernelInfo(*row[:4]), *row[4:]) for row in self._rows("kernels", {"grace_s": GRACE_S})]

    def owner(self, tree: str) -> KernelInfo | None:
        """Return the owner of a tree."""
        rows = self._rows("owner", {"tree": tree, "grace_s": GRACE_S})
        return KernelInfo(*rows[0]) if rows else None

    def has_closed(self, kernel: str, epoch: int) -> bool:
        """Return whether a kernel closed its store in that epoch and has not begun again."""
        return bool(self._rows("has_left", {"kernel": kernel, "epoch": epoch}))

    def _rows(self, query: str, values: dict[str, object] | None = None, *, binary: bool = False) -> list[TupleRow]:
        statement = self._place.queries[query]
        return self._ask(lambda connection: connection.execute(statement, values, binary=binary).fetchall())

    def _ask(self, work: Callable[[Connection], T]) -> T:
        def attempt() -> T:
            if self._connection is None:
                self._connection = self.connect()
            try:
                return work(self._connection)
            except psycopg.Error as error:
                if is_lost(self._connection, error):
                    self._connection.close()
                    self._connection = None
                raise

        return self.with_retries(attempt)

    def _read_names(self, connection: Connection, ids: set[int]) -> dict[int, str]:
        if len(self._names) > _MAX_NAMES:
            self._names.clear()
        if missing := ids - self._names.keys():  # An id is never reused for a second name.
            rows = connection.execute(self._place.queries["names_of_ids"], {"ids": list(missing)}).fetchall()
            self._names.update(rows)
        return self._names
