"""The writer of a journal on PostgreSQL: a session that holds its kernel's lock, and is replaced after a loss.

**Order.** The first statement of every transaction moves the cursor in the single row of `journal`, and so holds that
row until its commit is visible. Cursors therefore become visible in order, also with several kernels, and a reader that
follows by cursor misses nothing. PostgreSQL releases row locks only after a commit is visible.

**Exactly once.** Batches are numbered. The same statement writes the number of the batch into the row of the kernel, if
that row held the previous number. When the session is lost in the middle of a batch, the row shows whether the batch
was committed. Nothing can still be writing it then: the lock is only free after the old session has ended.

**Fencing.** Each `open` begins an epoch, in the same row. A kernel that finds a newer epoch there has been replaced,
and fails. The same row counts the trees taken from this kernel. So a commit writes nothing of a tree that this kernel
lost (`owning`); its events of other trees are written.

**Liveness.** Each session also holds a lock of its own, whose number is in the kernel's row: other kernels wait for
that one. A lost session is followed by one with another lock, so that a kernel that waits for the first lock disturbs
nothing.
"""

from __future__ import annotations

import contextlib
import datetime
from collections.abc import Sequence
from typing import NamedTuple

import psycopg

from ramet.concurrency.clock import seconds_with_suspends
from ramet.core.errors import StoreFailed, StoreInUse
from ramet.store.contract import Entry
from ramet.store.postgres import schema
from ramet.store.postgres.commit_queue import Batch
from ramet.store.postgres.dsn import Connection, DatabaseSession, Place, RetryWindow, is_lost, retry
from ramet.store.postgres.ownership import TreeOwnership
from ramet.store.postgres.tables import PostgresTables
from ramet.store.postgres.types import Blobs, Longs, Texts

_MAX_NAMES = 100_000  #: maximum number of names whose ids are cached
_MAX_RETRIES = 20  #: maximum number of retries of a batch after deadlocks with other programs
#: Seconds in which the server ends the session of a killed kernel: it may be in the middle of a commit.
_SESSION_END_S = 2.0


class _SessionId(NamedTuple):
    """A session of ours on the server; the pid together with the start identifies it uniquely."""

    pid: int
    began: datetime.datetime


class _UnownedTrees(Exception):
    """The error for trees that are not this kernel's, or no longer; `trees` are trees with an unknown owner."""

    def __init__(self, trees: Sequence[str] = ()) -> None:
        self.trees = trees


class _RemovedNames(Exception):
    """The error for names that were removed meanwhile: ids looked up before may be invalid now."""


class PostgresWriter(DatabaseSession):
    """A writer of batches, each in one transaction. Used by one thread; only `sever` is for others."""

    def __init__(self, place: Place, kernel: str, patience_s: float) -> None:
        super().__init__(place, f"ramet {kernel}", writes=True)
        self._kernel, self._patience_s = kernel, patience_s
        self.ownership = TreeOwnership(place.queries, kernel)
        self._lock = schema.key_of("kernel", place.schema, kernel)
        self._session: _SessionId | None = None
        self._epoch = self._batch = self._forget_count = 0
        self.is_away = False  #: the session is lost, and no other has begun
        self.confirmed_at = 0.0  #: when the server was last asked for the lock that it confirmed
        self.resume_count = 0  #: number of times a session replaced a lost one
        self._ids: dict[str, int] = {}

    @property
    def pid(self) -> int:
        """Return the pid of the server process of our session; 0 if there is none."""
        return self._session.pid if self._session is not None else 0

    @property
    def line(self) -> int:
        """Return the descriptor of the session; call only while the thread is idle.

        Raises StoreFailed without a session.
        """
        if self._connection is None or self._connection.closed:
            raise StoreFailed(self._place.location, "the session has ended")
        return self._connection.fileno()

    def open(self) -> None:
        """Take the lock, migrate the schema, begin an epoch. Raises StoreInUse, Damaged, StoreFailed.

        The holder may be a kernel that was just killed, which the server has not noticed yet.
        """
        try:
            connection = self._connection = self.connect()
            waiting = RetryWindow(_SESSION_END_S, self._given_up)
            while not self._try_lock(connection):
                if not waiting.is_left():
                    raise StoreInUse(self._place.location, self._describe_holder(connection))
            self._session = self._own_session(connection)
            schema.migrate(connection, self._place)
            queries = self._place.queries
            row = connection.execute(queries["begin_epoch"], {"kernel": self._kernel}).fetchone()
            assert row is not None
            self._epoch, self._batch = row
            asked_at = seconds_with_suspends()
            _, _, self.ownership.losses = self._register_kernel(connection)
            self._refresh(connection)
            self.confirmed_at = asked_at
        except psycopg.Error as error:
            raise self._place.make_failure(error) from None

    def commit(self, batch: Batch) -> None:
        """Return once the batch is durable, however often the session is lost. Raises StoreFailed."""
        number, patience, retries = self._batch + 1, RetryWindow(self._patience_s, self._given_up), 0
        while True:
            connection = self._connection
            if connection is None:
                raise StoreFailed(self._place.location, "it is closed")
            asked_at = seconds_with_suspends()
            try:
                try:
                    self._write(connection, number, batch)
                    break
                except _UnownedTrees as disowned:
                    self.ownership.refresh(connection, disowned.trees)
            except _RemovedNames:
                continue
            except (psycopg.errors.DeadlockDetected, psycopg.errors.SerializationFailure) as error:
                retries += 1
                if retries > _MAX_RETRIES:
                    raise self._place.make_failure(error) from None
            except psycopg.Error as error:
                if not is_lost(connection, error):
                    raise self._place.make_failure(error) from None
                self.is_away = True
                if not patience.is_left():
                    why = f"the session was lost repeatedly; the last error: {error}"
                    raise self._place.make_failure(why) from None
                if retry(self._resume, patience, self._place) == number:
                    break  # The batch was committed; only its acknowledgement was lost.
        # The server answered some time after this; the process may have been suspended before it read the answer.
        self._batch, self.is_away, self.confirmed_at = number, False, asked_at

    def release(self) -> None:
        """Release the lock. The end of the session also does this, but slightly after we have disconnected."""
        if self._connection is not None:
            with contextlib.suppress(psycopg.Error):
                known = {"kernel": self._kernel, "epoch": self._epoch}
                self._connection.execute(self._place.queries["stand_up"], known)
                self._connection.execute("SELECT pg_advisory_unlock_all()")
                self._connection.execute(self._place.queries["tell_kernels"], {"channel": self._place.schema})

    def _try_lock(self, connection: Connection) -> bool:
        return connection.execute("SELECT pg_try_advisory_lock(%s)", [self._lock]).fetchone() == (True,)

    def _own_session(self, connection: Connection) -> _SessionId:
        """Return our session as the server sees it. Raises StoreFailed if a pooler shares sessions."""
        query = "SELECT pid, backend_start FROM pg_stat_activity WHERE pid = pg_backend_pid()"
        row = connection.execute(query).fetchone()
        if row is None or row[0] != connection.info.backend_pid:
            why = "a pooler stands before the server, and a lock does not survive that; give the server's own address"
            raise StoreFailed(self._place.location, why)
        return _SessionId(*row)

    def _holder(self, connection: Connection) -> tuple[_SessionId, str] | None:
        row = connection.execute(self._place.queries["holder"], {"lock": self._lock}).fetchone()
        return None if row is None else (_SessionId(row[0], row[1]), str(row[2]))

    def _describe_holder(self, connection: Connection) -> str:
        holder = self._holder(connection)
        return "it has ended since" if holder is None else f"backend pid {holder[0].pid}, {holder[1]!r}"

    def _refresh(self, connection: Connection) -> None:
        row = connection.execute(self._place.queries["forgets"]).fetchone()
        assert row is not None
        self._forget_count = row[0]
        self._ids.clear()

    def _resume(self) -> int:
        """Open a new session in place of the lost one; return the number of our newest committed batch."""
        self.close()
        connection = self._connection = self.connect()
        if not self._try_lock(connection):
            holder = self._holder(connection)
            if holder is not None and holder[0] != self._session:
                why = f"another kernel began while the connection was lost: {self._describe_holder(connection)}"
                raise StoreFailed(self._place.location, why)
            if holder is not None:  # The server has not noticed yet that our session ended.
                connection.execute(self._place.queries["end_session"], holder[0]._asdict())
            raise psycopg.OperationalError("our former session still holds the lock")
        session = self._own_session(connection)
        _, batch, losses = self._register_kernel(connection)
        self._refresh(connection)
        if losses != self.ownership.losses:
            self.ownership.refresh(connection)
        self._session = session
        self.resume_count += 1
        return batch

    def _register_kernel(self, connection: Connection) -> tuple[int, int, int]:
        """Record that this kernel is alive in this session; return its epoch, newest batch and loss count.

        Raises StoreFailed if another kernel has replaced this one.
        """
        queries = self._place.queries
        row = connection.execute(queries["take_lock"], {"locks": queries.locks}).fetchone()
        assert row is not None
        known = {"kernel": self._kernel, "epoch": self._epoch, "lock": row[0]}
        with connection.transaction():
            connection.execute(queries["hold_journal"])  # No one claims anything meanwhile.
            connection.execute(queries["see_server"])
            seat_row = connection.execute(queries["sit_down"], known).fetchone()
            connection.execute(queries["tell_kernels"], {"channel": self._place.schema})
        if seat_row is None:
            raise StoreFailed(self._place.location, "another kernel used the store while the connection was lost")
        return seat_row[0], seat_row[1], seat_row[2]

    def _write(self, connection: Connection, number: int, batch: Batch) -> None:
        queries, ids, owning = self._place.queries, self._ids, self.ownership
        events = self._owned_events(batch)
        if len(ids) > _MAX_NAMES:
            ids.clear()
        missing = {name for event in events for name in (event.tree, event.run) if name not in ids}
        new_ids: dict[str, int] = {}
        unowned_trees = owning.find_unowned({event.tree for event in events})
        owning.begin()
        # A single statement is its own transaction; that saves two round trips.
        is_single = not missing and not unowned_trees and not batch.changes
        try:
            with contextlib.nullcontext() if is_single else connection.transaction():
                if missing:
                    names = sorted(missing)  # Two kernels that add the same names wait for each other in one order.
                    connection.execute(queries["add_names"], {"names": names})
                    new_ids = dict(connection.execute(queries["ids_of_names"], {"names": names}).fetchall())
                    ids.update(new_ids)
                row = connection.execute(queries["append"], self._row(number, events, ids, unowned_trees)).fetchone()
                assert row is not None
                if row[0] is None:
                    raise _RemovedNames
                if row[1] is None:
                    raise self._commit_error(connection, number)
                if row[2] != len(unowned_trees):
                    raise _UnownedTrees(unowned_trees)
                owning.add_owned(unowned_trees)
                if batch.changes:
                    tables = PostgresTables(connection, self._place, owning)
                    for change in batch.changes:
                        change.apply(tables)
        except BaseException as error:
            for name in new_ids:  # A rollback removes new names.
                del ids[name]
            if isinstance(error, _RemovedNames):
                self._refresh(connection)
            raise
        owning.settle()

    def _owned_events(self, batch: Batch) -> list[Entry]:
        """Return the events of a batch without those of lost trees, whose tickets are noted in the batch as refused."""
        losses, batch.refusals = self.ownership.lost_trees, {}
        if not losses:
            return batch.events
        first = batch.last - len(batch.events) + 1
        batch.refusals = {first + n: losses[each.tree] for n, each in enumerate(batch.events) if each.tree in losses}
        return [each for each in batch.events if each.tree not in losses]

    def _commit_error(self, connection: Connection, number: int) -> Exception:
        """Return the reason why a commit found an unexpected state in our row."""
        row = connection.execute(self._place.queries["where_we_are"], {"kernel": self._kernel}).fetchone()
        if row is not None and row[:2] == (self._epoch, number - 1) and row[2] != self.ownership.losses:
            return _UnownedTrees()
        return StoreFailed(self._place.location, "another kernel has taken over")

    def _row(
        self, number: int, events: list[Entry], ids: dict[str, int], unowned_trees: list[str]
    ) -> dict[str, object]:
        return {
            "count": len(events),
            "forgets": self._forget_count,
            "batch": number,
            "kernel": self._kernel,
            "epoch": self._epoch,
            "channel": self._place.schema,
            "losses": self.ownership.losses,
            "fresh": Texts(sorted(unowned_trees)),
            "seqs": Longs([event.seq for event in events]),
            "trees": Longs([ids[event.tree] for event in events]),
            "runs": Longs([ids[event.run] for event in events]),
            "types": Texts([event.type for event in events]),
            "data": Blobs([event.data for event in events]),
        }
