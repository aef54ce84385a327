"""Receive notifications of commits by other processes: a session that listens, on the event loop, without a thread."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable

import psycopg
from psycopg import sql

from ramet.store.postgres.dsn import Connection


class Listener:
    """A listener that calls `listener` on the loop when another process wrote, and when the session is lost.

    `kernels` is called when a kernel, this one included, began, ended or announced its address, and when the session is
    lost.
    """

    def __init__(
        self, channel: str, listener: Callable[[], None], own_pid: Callable[[], int], kernels: Callable[[], None]
    ) -> None:
        self._channel, self._listener, self._own_pid, self._kernels = channel, listener, own_pid, kernels
        self._loop = asyncio.get_running_loop()
        self._connection: Connection | None = None
        self._line = -1

    @property
    def is_listening(self) -> bool:
        """Return whether a session is listening: False before the start, and after the session was lost."""
        return self._connection is not None

    def connect(self, connect: Callable[[], Connection]) -> Connection:
        """Open a session that listens. Blocks, so call it in a thread."""
        connection = connect()
        try:
            connection.execute(sql.SQL("LISTEN {}").format(sql.Identifier(self._channel)))
        except BaseException:
            connection.close()
            raise
        return connection

    def start(self, connection: Connection) -> None:
        """Watch a session that `connect` opened."""
        self._connection = connection
        # A duplicated descriptor: libpq closes its own when the session is lost, and the number may then be reused.
        self._line = os.dup(connection.fileno())
        self._loop.add_reader(self._line, self._readable, connection)

    def stop(self) -> None:
        """Stop listening; idempotent."""
        connection, self._connection = self._connection, None
        if connection is not None:
            self._loop.remove_reader(self._line)
            os.close(self._line)
            connection.close()

    def _readable(self, connection: Connection) -> None:
        others = kernels = False
        try:
            connection.pgconn.consume_input()
            while (notice := connection.pgconn.notifies()) is not None:
                if notice.extra == b"kernels":
                    kernels = True
                else:
                    others = others or notice.be_pid != self._own_pid()
        except psycopg.Error:
            self.stop()
            others = kernels = True
        if others:
            self._listener()
        if kernels:
            self._kernels()
