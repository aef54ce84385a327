"""Kernels, each a process, on one PostgreSQL: costs of durable events for each side, and of notices of them.

`writers` append for a while as the producers of `journal` do; `listeners` are kernels that only receive notices. The
CPU time of the server is the sum of its processes, from /proc; each kernel measures its own.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import psycopg

from benchmarks.cost import Figures
from benchmarks.machine import ROOT
from benchmarks.measures.journal import AT_ONCE, PRODUCERS, turn_of
from ramet.core.events import encode
from ramet.store.contract import Entry
from ramet.store.postgres import PostgresStore
from tests.support.postgres import Server

_CALL = "import asyncio, sys; from benchmarks.measures import kernels; asyncio.run(kernels.{role}(*sys.argv[1:]))"
_SIZES = "SELECT pg_total_relation_size('ramet.events'), pg_current_wal_lsn() - '0/0'::pg_lsn"
_SESSIONS = "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'ramet%'"


async def measure(writers: int = 1, listeners: int = 0, lasting_ms: int = 5_000) -> Figures:
    """Return rates, microseconds and bytes for each event, over all writers together."""
    server = Server()
    started: list[asyncio.subprocess.Process] = []
    try:
        for number in range(writers):
            started.append(await _start("write", server.dsn, f"writer-{number}", str(lasting_ms)))
        for number in range(listeners):
            started.append(await _start("listen", server.dsn, f"listener-{number}"))
        for each in started:
            await _line(each)
        with psycopg.connect(server.dsn, autocommit=True) as connection:
            sessions = _row(connection, _SESSIONS)[0]
            size, wal = _row(connection, _SIZES)
            cpu_s = server_cpu_s(server.pid)
            for each in started:
                _tell(each)
            write_reports = [json.loads(await _line(each)) for each in started[:writers]]
            server_s = server_cpu_s(server.pid) - cpu_s
            for each in started[writers:]:
                _tell(each)
            listen_reports = [json.loads(await _line(each)) for each in started[writers:]]
            size_after, wal_after = _row(connection, _SIZES)
        events, commits = sum(each["events"] for each in write_reports), sum(each["commits"] for each in write_reports)
        wall_s = max(each["ended"] for each in write_reports) - min(each["began"] for each in write_reports)
        return {
            "event_wall_us": wall_s / events * 1e6,
            "commit_ms": wall_s / commits * 1e3,
            "events_per_commit": events / commits,
            "kernel_us": sum(each["cpu_s"] for each in write_reports) / events * 1e6,
            "server_us": server_s / events * 1e6,
            "server_commit_us": server_s / commits * 1e6,
            "heard_us": sum(each["cpu_s"] for each in listen_reports) / max(listeners, 1) / commits * 1e6,
            "table_bytes": (size_after - size) / events,
            "wal_bytes": float(wal_after - wal) / events,
            "sessions": sessions / (writers + listeners),
        }
    finally:
        for process in started:
            if process.returncode is None:
                process.kill()
            await process.wait()
        server.stop()


async def write(dsn: str, name: str, lasting_ms: str) -> None:
    """Let producers append for so long, and print what it took."""
    store = await PostgresStore(dsn, kernel=name).open()
    entries = [
        [Entry(f"run-{name}", run, seq, kind, encode(event)) for seq, (kind, event) in enumerate(turn_of(run), 1)]
        for run in (f"run-{name}-{producer}" for producer in range(PRODUCERS))
    ]
    await store.durable(max(store.append(mine[0]) for mine in entries))  # names are known from here on
    commits = list[int]()
    store.on_commit(commits.append)
    await _wait_for_order()
    began, cpu_s, events = time.monotonic(), time.process_time(), 0

    async def produce(mine: list[Entry]) -> None:
        nonlocal events
        while time.monotonic() - began < int(lasting_ms) / 1e3:
            for each in range(AT_ONCE):
                ticket = store.append(mine[each % len(mine)])
            await store.durable(ticket)
            events += AT_ONCE

    await asyncio.gather(*map(produce, entries))
    _say(events=events, commits=len(commits), began=began, ended=time.monotonic(), cpu_s=time.process_time() - cpu_s)
    await asyncio.Event().wait()


async def listen(dsn: str, name: str) -> None:
    """Receive notices of what others write, and print what it took."""
    await PostgresStore(dsn, kernel=name).open()
    await _wait_for_order()
    cpu_s = time.process_time()
    await _wait_for_order()
    _say(cpu_s=time.process_time() - cpu_s)
    await asyncio.Event().wait()


def server_cpu_s(pid: int) -> float:
    """Return the CPU time of a PostgreSQL server until now: of its first process, and of live and ended children."""
    children = map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())
    ticks = _ticks(pid, ended=True) + sum(_ticks(each, ended=False) for each in children)
    return ticks / os.sysconf("SC_CLK_TCK")


def _ticks(pid: int, *, ended: bool) -> int:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return 0  # it has ended meanwhile: its first process knows what it used
    return sum(map(int, fields[11 : 15 if ended else 13]))


async def _start(role: str, *arguments: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        sys.executable, "-c", _CALL.format(role=role), *arguments, cwd=ROOT, stdin=-1, stdout=-1
    )


async def _line(process: asyncio.subprocess.Process) -> bytes:
    assert process.stdout is not None
    line = await process.stdout.readline()
    assert line, "it has ended"
    return line


def _tell(process: asyncio.subprocess.Process) -> None:
    assert process.stdin is not None
    process.stdin.write(b"\n")


async def _wait_for_order() -> None:
    if not _announced:
        _say()
        _announced.append(True)
    await asyncio.to_thread(sys.stdin.readline)


_announced: list[bool] = []  #: once it is said that this process is ready


def _say(**figures: float) -> None:
    print(json.dumps(figures), flush=True)


def _row(connection: psycopg.Connection[Any], query: str) -> tuple[int, ...]:
    row = connection.execute(query).fetchone()
    assert row is not None
    return tuple(row)
