"""Addresses of stores: one argument of a command line, with which all processes of a test open the same store.

An address is `sqlite PATH` or `postgres SCHEMA DSN`. Each of these processes pays for the imports of this module.
"""

from __future__ import annotations

import asyncio
import os
import pathlib
import signal
import sys
from typing import TYPE_CHECKING

from ramet.store.contract import Document, Store
from tests.support.waiting import eventually

if TYPE_CHECKING:
    pass

KINDS = ("sqlite", "postgres")
ROOT = pathlib.Path(__file__).parents[2]


def store_at(address: str) -> Store:
    """Return the store at an address, not open yet."""
    kind, _, location = address.partition(" ")
    if kind == "sqlite":
        from ramet.store.sqlite.store import SqliteStore

        return SqliteStore(location)
    from ramet.store.postgres import PostgresStore

    schema, _, dsn = location.partition(" ")
    return PostgresStore(dsn, schema=schema)


async def run_program_until_killed(program: pathlib.Path, address: str, *arguments: object) -> None:
    """Run a program on the store at an address until it kills itself, and until the lock of the store is free."""
    words, env = (address, *map(str, arguments)), {**os.environ, "PYTHONPATH": str(ROOT)}
    child = await asyncio.create_subprocess_exec(sys.executable, program, *words, env=env)
    assert await child.wait() == -signal.SIGKILL
    await wait_until_released(address)


def kill_at_put(store: Store, kill_point: str, number: int, *, kind: str = "") -> Store:
    """Make a store kill its process before or after it writes its n-th document (of a kind), like a power cut."""
    put, left, counted = store.put, number, kind

    async def deadly(
        kind: str, key: str, data: bytes, *, expected: int | None = None, tree: str | None = None
    ) -> Document:
        nonlocal left
        left -= kind == (counted or kind)
        is_last = left == 0 and kind == (counted or kind)  # Another write may begin while this one is under way.
        if is_last and kill_point == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        written = await put(kind, key, data, expected=expected, tree=tree)
        if is_last:
            os.kill(os.getpid(), signal.SIGKILL)
        return written

    store.put = deadly  # type: ignore[method-assign]
    return store


async def wait_until_released(address: str) -> None:
    """Return once the lock is free: the server notices the death of a process a moment later."""
    kind, schema, dsn = (*address.split(" ", 2), "")[:3]
    if kind != "postgres":
        return
    import psycopg

    from ramet.store.postgres.schema import key_of

    lock = key_of("kernel", schema, "kernel")
    held = "SELECT FROM pg_locks WHERE locktype = 'advisory' AND (classid::bigint << 32 | objid::bigint) = %s"
    with psycopg.connect(dsn, autocommit=True) as connection:
        await eventually(lambda: connection.execute(held, [lock]).fetchone() is None)
