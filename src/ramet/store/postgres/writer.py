"""The one who writes to a journal on PostgreSQL: a session that holds the lock of its kernel, and survives its loss.

**Order.** The first statement of every transaction moves the cursor in the one row of `journal`, and so holds that row
until its commit is visible. Cursors therefore become visible in their order, also with several kernels, and a reader
who follows by cursor misses nothing. PostgreSQL releases row locks only after a commit can be seen.

**Exactly once.** Batches are numbered, and the same statement writes the number of the batch into the row of the
kernel, if that held the number before. When the session is lost in the middle of a batch, whether it is there can be
read from that row. Nobody can be at it any more by then: the lock is only free once the old session has ended.

**Fencing.** Each `open` begins an epoch, in the same row. Who finds a newer one there has been replaced, and fails.
The same row counts what was taken from this kernel, so a commit of it writes nothing of a tree that it lost
(`owning`); what it has of other trees is written.

**Life.** Each session holds a lock of its own besides, whose number its kernel's row tells: other kernels wait for that
one. A session that was lost is followed by one with another lock, so that whoever waited for the first disturbs nobody.
"""

from __future__ import annotations

import contextlib
import datetime
import os
import socket
import threading
from collections.abc import Sequence
from typing import NamedTuple

import psycopg

from ramet.concurrency.clock import seconds_with_suspends
from ramet.core.errors import StoreFailed, StoreInUse
from ramet.store.contract import Entry
from ramet.store.postgres import schema
from ramet.store.postgres.commit_queue import Batch
from ramet.store.postgres.dsn import Connection, Place, RetryWindow, is_lost, retry
from ramet.store.postgres.ownership import TreeOwnership
from ramet.store.postgres.types import Blobs, Longs, Texts

_MAX_NAMES = 100_000  #: whose ids are kept at hand
_REPEATS = 20  #: how often a batch may lose to a deadlock with somebody who is not of ramet


class _Session(NamedTuple):
    """A session of ours on the server; with its start, the pid means this one and no other."""

    pid: int
    began: datetime.datetime


class _Disowned(Exception):
    """Trees were taken from this kernel, or are not its own: `asked` are those that it did not know about."""

    def __init__(self, asked: Sequence[str] = ()) -> None:
        self.asked = asked


class _Forgotten(Exception):
    """Somebody removed names meanwhile: ids that were looked up before may mean nothing now."""


class PostgresWriter:
    """Writes batches, each in one transaction. Used by one thread; only `sever` is for others."""

    def __init__(self, place: Place, kernel: str, patience_s: float) -> None:
        self._place, self._kernel, self._patience_s = place, kernel, patience_s
        self.owning = TreeOwnership(place.queries, kernel)
        self._lock = schema.key_of("kernel", place.schema, kernel)
        self._given_up = threading.Event()
        self._newest: Connection | None = None  #: it may not be ready yet
        self._is_severed = False
        self._connection: Connection | None = None
        self._session: _Session | None = None
        self._epoch = self._batch = self._forgets = 0
        self.is_away = False  #: the session is lost, and no other has begun
        self.confirmed_at = 0.0  #: when the server said last that the lock is ours, by `seconds_with_suspends`
        self.resumed = 0  #: how often a session took the place of one that was lost
        self._ids: dict[str, int] = {}

    @property
    def pid(self) -> int:
        """The server's process that works for us now; 0 for none."""
        return self._session.pid if self._session is not None else 0

    @property
    def line(self) -> int:
        """The descriptor of the session, to be asked for while the thread is at rest. Raises StoreFailed."""
        if self._connection is None or self._connection.closed:
            raise StoreFailed(self._place.where, "the session has ended")
        return self._connection.fileno()

    def open(self) -> None:
        """Take the lock, bring the schema up to date, begin an epoch. Raises StoreInUse, Damaged, StoreFailed."""
        try:
            connection = self._connection = self._connect()
            if not self._locked(connection):
                raise StoreInUse(self._place.where, self._described(connection))
            self._session = self._own(connection)
            schema.migrate(connection, self._place)
            queries = self._place.queries
            row = connection.execute(queries["begin_epoch"], {"kernel": self._kernel}).fetchone()
            assert row is not None
            self._epoch, self._batch = row
            _, _, self.owning.losses = self._sit_down(connection)
            self._refresh(connection)
            self.confirmed_at = seconds_with_suspends()
        except psycopg.Error as error:
            raise self._place.failed(error) from None

    def commit(self, batch: Batch) -> None:
        """Return once the batch is durable, however often the session is lost. Raises StoreFailed."""
        number, patience, repeats = self._batch + 1, RetryWindow(self._patience_s, self._given_up), 0
        while True:
            connection = self._connection
            if connection is None:
                raise StoreFailed(self._place.where, "it is closed")
            try:
                try:
                    self._write(connection, number, batch)
                    break
                except _Disowned as found:
                    self.owning.look(connection, found.asked)
            except _Forgotten:
                continue
            except (psycopg.errors.DeadlockDetected, psycopg.errors.SerializationFailure) as error:
                repeats += 1
                if repeats > _REPEATS:
                    raise self._place.failed(error) from None
            except psycopg.Error as error:
                if not is_lost(connection, error):
                    raise self._place.failed(error) from None
                self.is_away = True
                if not patience.is_left():
                    why = f"the session was lost again and again, and last: {error}"
                    raise self._place.failed(why) from None
                if retry(self._resume, patience, self._place) == number:
                    break  # It was committed; only its acknowledgement was lost.
        self._batch, self.is_away = number, False
        self.confirmed_at = seconds_with_suspends()

    def release(self) -> None:
        """Give the lock back. The end of the session does so, too, but a moment after we have left."""
        if self._connection is not None:
            with contextlib.suppress(psycopg.Error):
                known = {"kernel": self._kernel, "epoch": self._epoch}
                self._connection.execute(self._place.queries["stand_up"], known)
                self._connection.execute("SELECT pg_advisory_unlock_all()")
                self._connection.execute(self._place.queries["tell_kernels"], {"channel": self._place.schema})

    def close(self) -> None:
        """End the session; idempotent."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def sever(self) -> None:
        """From another thread: whatever is waiting for the server fails, and is not tried again."""
        self._given_up.set()
        self._is_severed = True
        for each in (self._connection, self._newest):
            sever(each)

    def _connect(self) -> Connection:
        name = f"ramet {self._kernel} pid {os.getpid()} on {socket.gethostname()}"
        return self._place.connect(name, writes=True, made=self._note)

    def _note(self, connection: Connection) -> None:
        self._newest = connection
        if self._is_severed:
            sever(connection)

    def _locked(self, connection: Connection) -> bool:
        return connection.execute("SELECT pg_try_advisory_lock(%s)", [self._lock]).fetchone() == (True,)

    def _own(self, connection: Connection) -> _Session:
        """Our session as the server sees it. Raises StoreFailed if something stands between that shares sessions."""
        query = "SELECT pid, backend_start FROM pg_stat_activity WHERE pid = pg_backend_pid()"
        row = connection.execute(query).fetchone()
        if row is None or row[0] != connection.info.backend_pid:
            why = "a pooler stands before the server, and a lock does not survive that; give the server's own address"
            raise StoreFailed(self._place.where, why)
        return _Session(*row)

    def _holder(self, connection: Connection) -> tuple[_Session, str] | None:
        row = connection.execute(self._place.queries["holder"], {"lock": self._lock}).fetchone()
        return None if row is None else (_Session(row[0], row[1]), str(row[2]))

    def _described(self, connection: Connection) -> str:
        holder = self._holder(connection)
        return "it has ended since" if holder is None else f"backend pid {holder[0].pid}, {holder[1]!r}"

    def _refresh(self, connection: Connection) -> None:
        row = connection.execute(self._place.queries["forgets"]).fetchone()
        assert row is not None
        self._forgets = row[0]
        self._ids.clear()

    def _resume(self) -> int:
        """A new session for the lost one; the number of our newest batch that is there."""
        before, self._connection = self._connection, None
        if before is not None:
            before.close()
        connection = self._connection = self._connect()
        if not self._locked(connection):
            holder = self._holder(connection)
            if holder is not None and holder[0] != self._session:
                why = f"another kernel began while the connection was lost: {self._described(connection)}"
                raise StoreFailed(self._place.where, why)
            if holder is not None:  # The server has not noticed yet that we left it.
                connection.execute(self._place.queries["end_session"], holder[0]._asdict())
            raise psycopg.OperationalError("our former session still holds the lock")
        session = self._own(connection)
        _, batch, losses = self._sit_down(connection)
        self._refresh(connection)
        if losses != self.owning.losses:
            self.owning.look(connection)
        self._session = session
        self.resumed += 1
        return batch

    def _sit_down(self, connection: Connection) -> tuple[int, int, int]:
        """Show all kernels that this one is alive, in this session: its epoch, its newest batch, what it lost.

        Raises StoreFailed for one that was replaced.
        """
        queries = self._place.queries
        row = connection.execute(queries["take_lock"], {"locks": queries.locks}).fetchone()
        assert row is not None
        known = {"kernel": self._kernel, "epoch": self._epoch, "lock": row[0]}
        with connection.transaction():
            connection.execute(queries["hold_journal"])  # Nobody claims anything meanwhile.
            connection.execute(queries["see_server"])
            seat = connection.execute(queries["sit_down"], known).fetchone()
            connection.execute(queries["tell_kernels"], {"channel": self._place.schema})
        if seat is None:
            raise StoreFailed(self._place.where, "another kernel was here while the connection was lost")
        return seat[0], seat[1], seat[2]

    def _write(self, connection: Connection, number: int, batch: Batch) -> None:
        queries, ids, owning = self._place.queries, self._ids, self.owning
        events = self._ours(batch)
        if len(ids) > _MAX_NAMES:
            ids.clear()
        missing = {name for event in events for name in (event.tree, event.run) if name not in ids}
        fresh: dict[str, int] = {}
        unowned = owning.fresh({event.tree for event in events})
        owning.begin()
        # One statement is a transaction of its own; that saves two round trips.
        alone = not missing and not unowned and not batch.changes
        try:
            with contextlib.nullcontext() if alone else connection.transaction():
                if missing:
                    names = sorted(missing)  # Two kernels that add the same names wait for each other in one order.
                    connection.execute(queries["add_names"], {"names": names})
                    fresh = dict(connection.execute(queries["ids_of_names"], {"names": names}).fetchall())
                    ids.update(fresh)
                row = connection.execute(queries["append"], self._row(number, events, ids, unowned)).fetchone()
                assert row is not None
                if row[0] is None:
                    raise _Forgotten
                if row[1] is None:
                    raise self._why_not(connection, number)
                if row[2] != len(unowned):
                    raise _Disowned(unowned)
                owning.gained(unowned)
                for change in batch.changes:
                    change.answer = change.make(connection)
        except BaseException as error:
            for name in fresh:  # What is rolled back takes its new names along.
                del ids[name]
            if isinstance(error, _Forgotten):
                self._refresh(connection)
            raise
        owning.settle()

    def _ours(self, batch: Batch) -> list[Entry]:
        """The events of a batch without those of trees that this kernel lost; these are noted in it."""
        lost, batch.refused = self.owning.lost, {}
        if not lost:
            return batch.events
        first = batch.last - len(batch.events) + 1
        batch.refused = {first + n: lost[each.tree] for n, each in enumerate(batch.events) if each.tree in lost}
        return [each for each in batch.events if each.tree not in lost]

    def _why_not(self, connection: Connection, number: int) -> Exception:
        """Why a commit found our row to be another than we know."""
        row = connection.execute(self._place.queries["where_we_are"], {"kernel": self._kernel}).fetchone()
        if row is not None and row[:2] == (self._epoch, number - 1) and row[2] != self.owning.losses:
            return _Disowned()
        return StoreFailed(self._place.where, "another kernel has taken over")

    def _row(self, number: int, events: list[Entry], ids: dict[str, int], unowned: list[str]) -> dict[str, object]:
        return {
            "count": len(events),
            "forgets": self._forgets,
            "batch": number,
            "kernel": self._kernel,
            "epoch": self._epoch,
            "channel": self._place.schema,
            "losses": self.owning.losses,
            "fresh": Texts(sorted(unowned)),
            "seqs": Longs([event.seq for event in events]),
            "trees": Longs([ids[event.tree] for event in events]),
            "runs": Longs([ids[event.run] for event in events]),
            "types": Texts([event.type for event in events]),
            "data": Blobs([event.data for event in events]),
        }


def sever(connection: Connection | None) -> None:
    """Cut the line of a connection that another thread waits on: its wait fails."""
    if connection is None or connection.closed:
        return
    with contextlib.suppress(psycopg.Error, OSError), socket.socket(fileno=os.dup(connection.fileno())) as line:
        line.shutdown(socket.SHUT_RDWR)
