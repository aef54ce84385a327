"""A fixed number of database connections, handed out for the length of a `with` block."""

import logging
import queue
from contextlib import contextmanager

import psycopg

log = logging.getLogger("payment_api.connection_pool")


class PoolExhausted(Exception):
    """No connection became free in time."""


class Pool:
    def __init__(self, settings):
        self._settings = settings
        self._free = queue.LifoQueue()
        self._waiting = 0
        for _ in range(settings.pool_size):
            self._free.put(self._connect())

    def _connect(self):
        return psycopg.connect(
            host=self._settings.host,
            dbname=self._settings.name,
            options=f"-c statement_timeout={self._settings.statement_timeout_ms}",
        )

    @contextmanager
    def connection(self):
        self._waiting += 1
        try:
            connection = self._free.get(timeout=self._settings.acquire_timeout_ms / 1000)
        except queue.Empty:
            log.error(
                "no connection within %d ms (size=%d, waiting=%d)",
                self._settings.acquire_timeout_ms,
                self._settings.pool_size,
                self._waiting,
            )
            raise PoolExhausted("database pool") from None
        finally:
            self._waiting -= 1
        try:
            yield connection
            connection.commit()
        except BaseException:
            connection.rollback()
            raise
        finally:
            self._free.put(connection)
