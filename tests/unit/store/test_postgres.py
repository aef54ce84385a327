"""Tests of the journal on a real PostgreSQL server: its promises, and which kernels may open it.

Tests of all stores are in `tests/conformance/test_stores.py`."""

from __future__ import annotations

import asyncio
import contextlib
import os
import pathlib
import subprocess
import sys
from collections import Counter

import psycopg
import pytest

from ramet.core.errors import Conflict, Damaged, InvalidValue, StoreFailed, StoreInUse
from ramet.store.postgres import PostgresStore
from ramet.store.postgres import schema as postgres_schema
from ramet.store.postgres.dsn import Place
from tests.support.postgres import Server, fresh_schema, postgres
from tests.support.postgres_stores import all_entries, entry, open_store, schema, store
from tests.support.waiting import eventually

__all__ = ["postgres", "schema", "store"]  # fixtures are used by their names


async def test_events_are_read_in_order_by_tree_and_by_run(store: PostgresStore) -> None:
    """Rows hold integers for trees and runs; readers get the names."""
    entries = [entry(n, tree=f"t-{n % 3}", run=f"r-{n % 5}") for n in range(1, 100)]

    for each in entries:
        ticket = store.append(each)
    await store.durable(ticket)

    assert [tuple(each)[1:] for each in await all_entries(store)] == [tuple(each) for each in entries]
    assert [each.seq for each in await all_entries(store, tree="t-1")] == [n for n in range(1, 100) if n % 3 == 1]
    assert [each.seq for each in await all_entries(store, run="r-2")] == [n for n in range(1, 100) if n % 5 == 2]
    assert [each.seq for each in await all_entries(store, tree="t-0", run="r-0")] == [n for n in range(15, 100, 15)]
    assert (store.committed, await store.head()) == (99, (await all_entries(store))[-1].cursor)


async def test_synchronous_commit_is_on_against_the_servers_default(store: PostgresStore) -> None:
    """The server of these tests has it off."""
    parts = store._open
    assert parts is not None
    assert parts._writer is not None
    assert parts._writer._connection is not None

    row = parts._writer._connection.execute("SHOW synchronous_commit").fetchone()

    assert row == ("on",)


async def test_events_are_committed_soon_without_a_waiter(store: PostgresStore) -> None:
    """Events wait a few milliseconds for further events, and not for a caller of `durable`."""
    cursors: list[int] = []
    store.on_commit(cursors.append)

    store.append(entry(1))
    await eventually(lambda: cursors)

    assert cursors == [1]


async def test_concurrent_waiters_share_one_commit(store: PostgresStore) -> None:
    """Appends of one turn of the loop are one batch, and listeners get it before the waiters."""
    cursors: list[int] = []
    store.on_commit(cursors.append)

    async def note(seq: int) -> list[int]:
        await store.durable(store.append(entry(seq)))
        return list(cursors)

    heads = await asyncio.gather(*(note(n) for n in range(1, 51)))

    assert cursors == [50]
    assert heads == [[50]] * 50


async def test_a_forgotten_tree_is_removed_with_its_names(postgres: Server, schema: str, store: PostgresStore) -> None:
    """Events that are appended after the call of `forget` stay, also those of the forgotten tree."""
    for n in range(1, 4):
        store.append(entry(n))
    store.append(entry(1, tree="t-2", run="r-2"))
    forgetting = asyncio.ensure_future(store.forget("t-1"))
    await asyncio.sleep(0)
    await store.durable(store.append(entry(4)))

    assert await forgetting == 3
    assert [(each.tree, each.run, each.seq) for each in await all_entries(store)] == [
        ("t-2", "r-2", 1),
        ("t-1", "r-1", 4),
    ]
    assert await store.forget("t-1") == 1
    with psycopg.connect(postgres.dsn) as connection:
        names = connection.execute(f'SELECT name FROM "{schema}".names ORDER BY name').fetchall()
    assert names == [("r-2",), ("t-2",)]


async def test_concurrent_changes_of_a_document_have_one_winner(store: PostgresStore) -> None:
    """The others get a Conflict with the found version, and their batch is committed."""
    answers = await asyncio.gather(
        *(store.put("task", "a", b"%d" % n, expected=0) for n in range(10)), return_exceptions=True
    )
    ticket = store.append(entry(1))

    assert Counter(type(answer).__name__ for answer in answers) == {"Document": 1, "Conflict": 9}
    with pytest.raises(Conflict) as conflict:
        await store.delete("task", "a", expected=7)
    assert (conflict.value.expected, conflict.value.found) == (7, 1)
    assert store.committed == ticket  # what was appended before a change is durable with it
    assert (await store.put("task", "a", b"2", expected=1)).version == 2
    assert await store.delete("task", "a", expected=2)


@pytest.mark.parametrize("text", ["a\0b", "\ud800", "😀" * 651])
async def test_text_that_postgresql_cannot_store_is_refused_before_the_batch(store: PostgresStore, text: str) -> None:
    """Such text in a batch would fail the store."""
    with pytest.raises(InvalidValue):
        store.append(entry(1, run=text))
    with pytest.raises(InvalidValue):
        await store.put("kind", text, b"")
    with pytest.raises(InvalidValue):
        store.append(entry(2**63))

    await store.durable(store.append(entry(1, run="😀" * 650)))


# ---- who may open it


async def test_a_kernel_waits_until_the_server_has_ended_the_session_of_a_killed_one(
    postgres: Server, schema: str
) -> None:
    """The server may be in the middle of the last commit of a killed kernel."""
    key = postgres_schema.key_of("kernel", schema, "kernel")
    with (
        psycopg.connect(postgres.dsn, autocommit=True) as killed,
        psycopg.connect(postgres.dsn, autocommit=True) as seen,
    ):
        killed.execute("SELECT pg_advisory_lock(%s)", [key])
        store = PostgresStore(postgres.dsn, schema=schema)
        opening = asyncio.ensure_future(store.open())
        attempts = "SELECT 1 FROM pg_stat_activity WHERE starts_with(query, %s) AND strpos(application_name, %s) > 0"
        words = ["SELECT pg_try_advisory_lock", f"pid {os.getpid()}"]
        await eventually(lambda: opening.done() or seen.execute(attempts, words).fetchone() is not None)
        assert not opening.done()
        killed.execute("SELECT pg_advisory_unlock(%s)", [key])
        await opening
        await store.close()


async def test_a_second_kernel_is_refused_with_the_pids_of_the_first(
    postgres: Server, store: PostgresStore, schema: str
) -> None:
    """Another kernel name, another schema, and a reader are accepted."""
    second = PostgresStore(postgres.dsn, schema=schema)

    with pytest.raises(StoreInUse) as refusal:
        await second.open()

    assert f"pid {os.getpid()}" in refusal.value.holder
    assert "backend pid" in refusal.value.holder
    await second.close()
    for other in (
        PostgresStore(postgres.dsn, schema=schema, kernel="another"),
        PostgresStore(postgres.dsn, schema=fresh_schema()),
        PostgresStore(postgres.dsn, schema=schema, read_only=True),
    ):
        async with open_store(other):
            pass


async def test_the_lock_is_free_once_the_store_is_closed(postgres: Server, schema: str) -> None:
    """Opening and closing are idempotent, and a store can be opened again."""
    first = PostgresStore(postgres.dsn, schema=schema)
    for _ in range(2):
        async with open_store(first):
            await first.open()
            await first.durable(first.append(entry(1)))
        await first.close()

    async with open_store(PostgresStore(postgres.dsn, schema=schema)) as second:
        assert len(await all_entries(second)) == 2


async def test_a_reader_cannot_write_or_create_a_journal(postgres: Server, schema: str, store: PostgresStore) -> None:
    """Events and documents are refused, and a missing journal is an error."""
    async with open_store(PostgresStore(postgres.dsn, schema=schema, read_only=True)) as reader:
        with pytest.raises(StoreFailed, match="reading only"):
            reader.append(entry(1))
        with pytest.raises(StoreFailed, match="reading only"):
            await reader.put("kind", "key", b"")
    with pytest.raises(StoreFailed, match="no journal yet"):
        await PostgresStore(postgres.dsn, schema=fresh_schema(), read_only=True).open()


async def test_a_newer_schema_is_refused_unchanged(postgres: Server, schema: str) -> None:
    """Kernels and readers are refused; the schema's content, with the count of openings, is unchanged."""
    async with open_store(PostgresStore(postgres.dsn, schema=schema)) as first:
        await first.durable(first.append(entry(1)))
    newer = postgres_schema.NEWEST + 1
    with psycopg.connect(postgres.dsn, autocommit=True) as connection:
        connection.execute(f'INSERT INTO "{schema}".schema_version VALUES ({newer})')
        before = _content(connection, schema)

        for read_only in (False, True):
            with pytest.raises(Damaged, match=f"version {newer}"):
                await PostgresStore(postgres.dsn, schema=schema, read_only=read_only).open()

        assert _content(connection, schema) == before


async def test_a_fresh_schema_equals_a_migrated_one(postgres: Server, schema: str) -> None:
    """Single migrations lead to the tables that are made at once."""
    stepwise = fresh_schema()
    async with open_store(PostgresStore(postgres.dsn, schema=schema)):
        pass
    location = Place(postgres.dsn, stepwise)
    with contextlib.closing(location.connect("steps", writes=True)) as connection:
        for upto in range(1, postgres_schema.NEWEST + 1):
            postgres_schema.migrate(connection, location, upto=upto)

        assert _shape(connection, stepwise) == _shape(connection, schema)


def _content(connection: psycopg.Connection, schema: str) -> str:
    rows = connection.execute("SELECT schema_to_xml(%s, true, false, '')", [schema]).fetchall()
    return str(rows)


def _shape(connection: psycopg.Connection, schema: str) -> str:
    columns = connection.execute(
        "SELECT table_name, column_name, ordinal_position, data_type, is_nullable, column_default, collation_name "
        "FROM information_schema.columns WHERE table_schema = %s ORDER BY 1, 3",
        [schema],
    ).fetchall()
    indexes = connection.execute(
        "SELECT indexdef FROM pg_catalog.pg_indexes WHERE schemaname = %s ORDER BY 1", [schema]
    )
    return str([columns, indexes.fetchall()]).replace(schema, "schema")


async def test_an_invalid_dsn_is_refused_without_being_shown() -> None:
    """A DSN may hold a password."""
    with pytest.raises(InvalidValue) as refusal:
        PostgresStore("host=localhost password=hunter2 secret")

    assert "hunter2" not in str(refusal.value)


async def test_opening_fails_without_a_server(tmp_path: pathlib.Path) -> None:
    """Opening fails at once; the patience of a store is for servers that were there before."""
    with pytest.raises(StoreFailed, match="connection"):
        await PostgresStore(f"host={tmp_path} dbname=x").open()


def test_without_psycopg_making_a_store_raises_missing_extra() -> None:
    """Importing the module works without psycopg."""
    program = """
import sys
sys.modules["psycopg"] = None
from ramet.core.errors import MissingExtra
from ramet.store.postgres import PostgresStore
try:
    PostgresStore("host=localhost")
except MissingExtra as missing:
    print(missing.extra)
"""
    process_result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    assert process_result.stdout == "postgres\n"
