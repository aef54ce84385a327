"""Empty stores, for one test each, by their addresses (`tests.support.store_addresses`)."""

from __future__ import annotations

import contextlib
import pathlib
from collections.abc import Iterator

import psycopg
import pytest

from tests.support import postgres
from tests.support.store_addresses import KINDS


@contextlib.contextmanager
def empty_store_address(kind: str, folder: pathlib.Path) -> Iterator[str]:
    """Yield the address of an empty store. What a server keeps there is removed in the end."""
    if kind == "sqlite":
        yield f"sqlite {folder / 'journal.db'}"
        return
    server, schema = postgres.running(), postgres.fresh_schema()
    try:
        yield f"postgres {schema} {server.dsn}"
    finally:
        with psycopg.connect(server.dsn, autocommit=True) as connection:
            connection.execute(f'DROP SCHEMA IF EXISTS "{schema}" CASCADE')


@pytest.fixture(params=KINDS)
def store_address(request: pytest.FixtureRequest, tmp_path: pathlib.Path) -> Iterator[str]:
    """The address of a store of this test's own, of each kind of store that outlives processes."""
    with empty_store_address(request.param, tmp_path) as address:
        yield address
