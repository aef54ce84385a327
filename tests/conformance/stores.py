"""The stores that the suite is run over: each a place that is empty at first."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from ramet.store.contract import Store
from ramet.store.memory import MemoryStore
from ramet.store.postgres import PostgresStore
from ramet.store.sqlite.store import SqliteStore
from ramet.testing.conformance.store.suite import Place
from tests.support import postgres


def memory(_: Path) -> Place:
    """Kept in one object."""
    store = MemoryStore()

    def make() -> Store:
        return store

    return Place(make)


def sqlite(folder: Path) -> Place:
    """A file in a folder."""
    path = folder / "journal.db"
    return Place(lambda: SqliteStore(path), lambda: SqliteStore(path, read_only=True))


def postgresql(_: Path) -> Place:
    """A schema of its own on the server of the tests."""
    dsn, schema = postgres.running().dsn, postgres.fresh_schema()
    return Place(
        lambda: PostgresStore(dsn, schema=schema),
        lambda: PostgresStore(dsn, schema=schema, read_only=True),
        lambda name: PostgresStore(dsn, schema=schema, kernel=name),
    )


STORES: dict[str, Callable[[Path], Place]] = {"memory": memory, "sqlite": sqlite, "postgres": postgresql}
