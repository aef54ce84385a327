"""Places (`tests.support.places`) without a journal, for one test each."""

from __future__ import annotations

import contextlib
import pathlib
from collections.abc import Iterator

import psycopg
import pytest

from tests.support import postgres
from tests.support.places import KINDS


@contextlib.contextmanager
def empty_store_address(kind: str, folder: pathlib.Path) -> Iterator[str]:
    """Yield a place without a journal. What a server keeps there is removed in the end."""
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
    """A place of this test's own, on each kind of store that outlives processes."""
    with empty_store_address(request.param, tmp_path) as place:
        yield place
