"""Costs of a turn with one tool in a journal on PostgreSQL: rows, bytes, commits, and CPU time on both sides."""

from __future__ import annotations

import asyncio
from typing import Any

import psycopg

from benchmarks.cost import Cost, Figures
from benchmarks.measures.kernels import server_cpu_s
from benchmarks.models import Obedient, add
from ramet import AgentRuntime, Session
from ramet.store.postgres import PostgresStore
from tests.support.postgres import Server

_SIZES = """
SELECT count(*), coalesce(sum(length(data)), 0), pg_total_relation_size('ramet.events'),
       pg_current_wal_lsn() - '0/0'::pg_lsn FROM ramet.events
"""


async def measure(agents: int = 20, turns: int = 20) -> Figures:
    """Return the figures for each turn of so many concurrent agents, without the first turn."""
    server = Server()
    try:
        store = PostgresStore(server.dsn)
        async with AgentRuntime(store=store) as runtime:
            sessions = [Session(Obedient(), [add], runtime=runtime) for _ in range(agents)]
            await asyncio.gather(*(_take_turns(each, 1) for each in sessions))
            commits = list[int]()
            store.on_commit(commits.append)
            with psycopg.connect(server.dsn, autocommit=True) as connection:
                before, cpu_s = _read_sizes(connection), server_cpu_s(server.pid)
                with Cost() as cost:
                    await asyncio.gather(*(_take_turns(each, turns) for each in sessions))
                server_s = server_cpu_s(server.pid) - cpu_s
                after = _read_sizes(connection)
            for each in sessions:
                await each.close()
        taken = agents * turns
        events, data, table, wal = (float(one - other) / taken for one, other in zip(after, before, strict=True))
        return {
            "events": events,
            "data_bytes": data,
            "table_bytes": table,
            "wal_bytes": wal,
            "commits": len(commits) / taken,
            "kernel_ms": cost.cpu_s / taken * 1e3,
            "server_ms": server_s / taken * 1e3,
        }
    finally:
        server.stop()


async def _take_turns(session: Session, turns: int) -> None:
    for _ in range(turns):
        assert (await session.ask("tools 1 add")).value == "done"


def _read_sizes(connection: psycopg.Connection[Any]) -> tuple[int, ...]:
    row = connection.execute(_SIZES).fetchone()
    assert row is not None
    return tuple(row)
