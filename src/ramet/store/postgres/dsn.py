"""The location of a journal on a PostgreSQL server, and connections to it."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

import psycopg
from psycopg import conninfo
from psycopg.rows import TupleRow

from ramet.core.errors import InvalidValue, StoreFailed
from ramet.store.postgres import types
from ramet.store.postgres.sql import Queries

T = TypeVar("T")
Connection = psycopg.Connection[TupleRow]

_PAUSES_S = (0.02, 0.5)  #: between two attempts to connect: first, and maximum
#: Defaults if the DSN does not set them: a lost machine is noticed within ten seconds. No effect on Unix sockets.
_DEFAULTS = {
    "connect_timeout": 10,
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 2,
    "tcp_user_timeout": 10_000,
}
#: Settings of every session, whatever the role or the database sets: no timeout may end a wait. One ends the session of
#: a process that stops in the middle of a transaction, as on a suspended machine: it would keep every other kernel from
#: its start and its commits. It is as long as the limit for a lost machine.
_SETTINGS = {
    "statement_timeout": "0",
    "lock_timeout": "0",
    "idle_in_transaction_session_timeout": "10s",
    "default_transaction_isolation": "read committed",
    "jit": "off",  # The tables of kernels are small and have no statistics yet: JIT compilation takes a second.
    "search_path": "pg_catalog",
    "tcp_keepalives_idle": "5",
    "tcp_keepalives_interval": "2",
    "tcp_keepalives_count": "2",
    "tcp_user_timeout": "9000",
}
#: errors of a session that the server, or the network, may have ended
_LOSSES = (psycopg.OperationalError, psycopg.InterfaceError, psycopg.errors.IdleInTransactionSessionTimeout)


class Place:
    """A server, a database and a schema. Raises InvalidValue for invalid input; never shows a password."""

    def __init__(self, dsn: str, schema: str) -> None:
        if not schema or len(schema.encode()) > 63 or "\0" in schema or schema.startswith("pg_"):
            raise InvalidValue("schema", schema, "a name of 1 to 63 bytes that does not begin with 'pg_'")
        try:
            fields = conninfo.conninfo_to_dict(dsn)
        except psycopg.Error:
            problem = InvalidValue("dsn", "…", "a connection string such as 'postgresql://user@host/database'")
            raise problem from None  # libpq quotes text that it could not parse: maybe the password
        host = fields.get("host") or fields.get("hostaddr") or "the default host"
        self.location = f"PostgreSQL at {host}, database {fields.get('dbname') or 'by default'}, schema {schema}"
        self.schema = schema
        self.queries = Queries(schema)
        self._parameters: dict[str, Any] = {**_DEFAULTS, **fields, "client_encoding": "utf8"}

    def connect(
        self, application: str, *, writes: bool, on_connect: Callable[[Connection], None] = lambda _: None
    ) -> Connection:
        """Return a session in autocommit. Raises psycopg.Error, and StoreFailed if the server is unsuitable.

        `on_connect` gets the connection before the first query to the server, so that a caller can sever it instead of
        waiting.
        """
        parameters = {"application_name": application[:63], **self._parameters}
        connection = psycopg.connect(**parameters, autocommit=True)
        try:
            on_connect(connection)
            self._prepare(connection, writes=writes)
        except BaseException:
            connection.close()
            raise
        return connection

    def _prepare(self, connection: Connection, *, writes: bool) -> None:
        encoding = connection.info.parameter_status("server_encoding")
        if encoding != "UTF8":
            raise StoreFailed(self.location, f"the encoding of the database is {encoding}; expected UTF8")
        settings = {**_SETTINGS, "default_transaction_read_only": "off" if writes else "on"}
        if connection.info.server_version >= 140_000:
            settings["idle_session_timeout"] = "0"
            settings["client_connection_check_interval"] = "1s"
        connection.execute(
            "SELECT set_config(n, v, false) FROM unnest(%s::text[], %s::text[]) AS s(n, v)",
            [list(settings), list(settings.values())],
        )
        if writes:  # A synchronous_commit that also waits for a standby is kept.
            connection.execute(
                "SELECT set_config('synchronous_commit', 'on', false) "
                "WHERE current_setting('synchronous_commit') IN ('off', 'local', 'remote_write')"
            )
        types.register(connection)

    def make_failure(self, error: object) -> StoreFailed:
        """Return a StoreFailed for an error."""
        return StoreFailed(self.location, " ".join(str(error).split()) or type(error).__name__)


class DatabaseSession:
    """A session of one thread, or none, and what other threads need to end its waits for the server."""

    def __init__(self, place: Place, application: str, *, writes: bool) -> None:
        self._place, self._application, self._writes = place, application, writes
        self._given_up = threading.Event()
        self._connection: Connection | None = None
        self._newest: Connection | None = None  #: may belong to a listener, or not be ready yet
        self._is_severed = False

    def connect(self) -> Connection:
        """Open a session."""
        name = f"{self._application} pid {os.getpid()} on {socket.gethostname()}"
        return self._place.connect(name, writes=self._writes, on_connect=self._note)

    def close(self) -> None:
        """End the session; idempotent."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def sever(self) -> None:
        """Fail every wait for the server, without retry. Call from another thread."""
        self._given_up.set()
        self._is_severed = True
        for each in (self._connection, self._newest):
            if each is not None:
                _shut_down(each)

    def _note(self, connection: Connection) -> None:
        self._newest = connection
        if self._is_severed:
            _shut_down(connection)


def _shut_down(connection: Connection) -> None:
    """Shut down the socket of a connection that another thread waits on, so that its wait fails."""
    if connection.closed:
        return
    with contextlib.suppress(psycopg.Error, OSError), socket.socket(fileno=os.dup(connection.fileno())) as sock:
        sock.shutdown(socket.SHUT_RDWR)


def is_lost(connection: Connection, error: psycopg.Error) -> bool:
    """Return whether an error means that the session is lost; the outcome of its last statement is then unknown."""
    if not isinstance(error, _LOSSES):
        return connection.closed
    state = error.sqlstate
    return connection.closed or state is None or state.startswith(("08", "57P", "25P03"))


class RetryWindow:
    """The period in which an operation is retried, counted from the first failure."""

    def __init__(self, seconds: float, given_up: threading.Event) -> None:
        self._seconds, self._given_up = seconds, given_up
        self._until: float | None = None
        self._pause = _PAUSES_S[0]
        self.is_over = False

    def is_left(self) -> bool:
        """Pause, and return whether to retry."""
        now = time.monotonic()
        if self._until is None:
            self._until = now + self._seconds
        if now >= self._until or self._given_up.wait(min(self._pause, self._until - now)):
            self.is_over = True
            return False
        self._pause = min(2 * self._pause, _PAUSES_S[1])
        return True


def retry(work: Callable[[], T], patience: RetryWindow, database: Place) -> T:
    """Return the result of `work`, with retries.

    Raises StoreFailed if the server stays away, or for any other error.
    """
    while True:
        try:
            return work()
        except _LOSSES as error:
            if not patience.is_left():
                raise database.make_failure(
                    f"the connection was lost, and the server did not come back: {error}"
                ) from None
        except psycopg.Error as error:
            raise database.make_failure(error) from None
