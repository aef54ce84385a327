"""Stores that the suite runs over, each of them empty at first."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from ramet.store.contract import Store
from ramet.store.memory import MemoryStore
from ramet.store.postgres import PostgresStore
from ramet.store.sqlite.store import SqliteStore
from ramet.testing.conformance.store.suite import StoreFixture
from tests.support import postgres


def memory(_: Path) -> StoreFixture:
    """Store in one object of this process."""
    store = MemoryStore()

    def make() -> Store:
        return store

    return StoreFixture(make)


def sqlite(folder: Path) -> StoreFixture:
    """Store in one file of a folder."""
    path = folder / "journal.db"
    return StoreFixture(lambda: SqliteStore(path), lambda: SqliteStore(path, read_only=True))


def postgresql(_: Path) -> StoreFixture:
    """Store in a schema of its own on the tests' server."""
    dsn, schema = postgres.running().dsn, postgres.fresh_schema()
    return StoreFixture(
        lambda: PostgresStore(dsn, schema=schema),
        lambda: PostgresStore(dsn, schema=schema, read_only=True),
        lambda name: PostgresStore(dsn, schema=schema, kernel=name),
    )


STORES: dict[str, Callable[[Path], StoreFixture]] = {"memory": memory, "sqlite": sqlite, "postgres": postgresql}
