"""Kernel that stops its process in the middle of a transaction: `python -m tests.unit.store.stopped DSN SCHEMA`."""

from __future__ import annotations

import asyncio
import signal
import sys
import threading

from ramet.core.errors import StoreFailed
from ramet.store.postgres import PostgresStore
from ramet.store.postgres.tables import PostgresTables
from tests.support.postgres_stores import entry

_put = PostgresTables.put


def _stop_and_put(tables: PostgresTables, kind: str, key: str, data: bytes, expected: int | None) -> object:
    PostgresTables.put = _put  # type: ignore[method-assign]
    # To this very thread: one to the process may be taken by another thread a while later, after the commit.
    signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)
    return _put(tables, kind, key, data, expected)


async def main(dsn: str, schema: str) -> None:
    """Stop between two statements of a commit; then commit it, and something else."""
    store = await PostgresStore(dsn, schema=schema, kernel="stopped").open()
    PostgresTables.put = _stop_and_put  # type: ignore[assignment]
    try:
        ticket = store.append(entry(1))
        document = await store.put("kind", "key", b"one")
        await store.durable(ticket)
        await store.durable(store.append(entry(2)))
        sys.stdout.write(f"version {document.version}\n")
        await store.close()
    except StoreFailed as failure:
        sys.stdout.write(f"{failure}\n")


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
