"""Tests of a kernel whose process stops in the middle of a transaction, as that of a suspended machine does."""

from __future__ import annotations

import asyncio
import signal
import sys
from pathlib import Path

from ramet.store.postgres import PostgresStore
from tests.support.postgres import Server, postgres
from tests.support.postgres_stores import all_entries, entry, open_store, per_writer, schema
from tests.support.waiting import eventually

__all__ = ["postgres", "schema"]  # fixtures are used by their names


async def test_a_kernel_that_stops_in_a_transaction_keeps_no_other_from_its_work(postgres: Server, schema: str) -> None:
    """Another kernel opens, and commits; the first one commits later, once, what it had begun."""
    stopped = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.unit.store.stopped", postgres.dsn, schema), stdout=asyncio.subprocess.PIPE
    )
    try:
        await eventually(lambda: _state(stopped.pid) == "T")
        async with open_store(PostgresStore(postgres.dsn, schema=schema, kernel="other")) as store:
            await store.durable(store.append(entry(1, run="r-other", tree="t-other")))
            assert await store.get("kind", "key") is None

            stopped.send_signal(signal.SIGCONT)
            out, _ = await stopped.communicate()

            assert out == b"version 1\n"
            assert per_writer(await all_entries(store)) == {"other": [1], "1": [1, 2]}
    finally:
        if stopped.returncode is None:
            stopped.kill()
            await stopped.wait()


def _state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
