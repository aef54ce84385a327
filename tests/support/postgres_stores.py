"""Stores on the PostgreSQL server of the tests, each in a schema of its own."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterator
from typing import NoReturn

import psycopg
import pytest

from ramet.store.contract import Entry, StoredEvent
from ramet.store.postgres import PostgresStore
from tests.support.postgres import Server, fresh_schema


@pytest.fixture
def schema(postgres: Server) -> str:
    """A schema of this test alone."""
    return fresh_schema()


@pytest.fixture
async def store(postgres: Server, schema: str) -> AsyncIterator[PostgresStore]:
    """An open store in `schema`."""
    async with open_store(PostgresStore(postgres.dsn, schema=schema)) as store:
        yield store


@contextlib.asynccontextmanager
async def open_store(store: PostgresStore) -> AsyncIterator[PostgresStore]:
    """Open a store, and close it in the end."""
    try:
        yield await store.open()
    finally:
        await store.close()


def entry(seq: int, *, tree: str = "t-1", run: str = "r-1", data: bytes | None = None) -> Entry:
    """Return an ordinary entry."""
    return Entry(tree, run, seq, "noted", data if data is not None else b'{"n":%d}' % seq)


async def all_entries(store: PostgresStore, *, tree: str | None = None, run: str | None = None) -> list[StoredEvent]:
    """Return all events, read page by page."""
    found: list[StoredEvent] = []
    while page := await store.read(found[-1].cursor if found else 0, tree=tree, run=run):
        found += page
    return found


def per_writer(events: list[StoredEvent]) -> dict[str, list[int]]:
    """Return the numbers of the events in order, by run (without the prefix `r-`)."""
    found: dict[str, list[int]] = {}
    for event in events:
        found.setdefault(event.run[2:], []).append(event.seq)
    return found


def session_of(store: PostgresStore) -> int:
    """Return the pid of the server's process that works for a kernel."""
    parts = store._open
    assert parts is not None
    assert parts._writer is not None
    return parts._writer.pid


@contextlib.contextmanager
def end_session(store: PostgresStore, server: Server) -> Iterator[None]:
    """End the session of a store's kernel. The kernel gets no other session until the end of the block."""
    connect = store._place.connect

    def refused(*_: object, **__: object) -> NoReturn:
        raise psycopg.OperationalError("the network is gone")

    store._place.connect = refused  # type: ignore[method-assign]
    try:
        with psycopg.connect(server.dsn, autocommit=True) as connection:
            connection.execute("SELECT pg_terminate_backend(%s, 60000)", [session_of(store)])
        yield
    finally:
        store._place.connect = connect  # type: ignore[method-assign]
