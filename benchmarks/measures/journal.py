"""The journal in SQLite: durable events, acknowledgements, commits, following, and the size of the file.

Sizes matter: a sitting appends 1,000,000 events of some 400 bytes, half a gigabyte in the folder for temporary files.
"""

from __future__ import annotations

import asyncio
import functools
import statistics
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from langchain_core.messages import AIMessage

from benchmarks.cost import Cost, Figures
from ramet.core.events import Event, MessageRecorded, ModelAsked, ToolEnded, ToolStarted, encode
from ramet.models import messages
from ramet.store.contract import Entry
from ramet.store.sqlite.store import SqliteStore

PRODUCERS = 20
AT_ONCE = 10  #: events that a producer appends before it waits: about what a turn with two tools records
ACKS = 2_000


async def measure(count: int = 1_000_000) -> Figures:
    """Measure rates and sizes of a journal with `count` events."""
    with tempfile.TemporaryDirectory(prefix="ramet-bench-") as folder:
        path = Path(folder, "journal.db")
        store = await SqliteStore(path).open()
        try:
            figures = await _append_and_read(store, count)
        finally:
            await store.close()
        json_bytes = sum(len(each.data) for each in _entries()) * count / len(_entries())
        return {**figures, "size_ratio": path.stat().st_size / json_bytes}  # noqa: ASYNC240 - it is over


async def _append_and_read(store: SqliteStore, count: int) -> Figures:
    entries = _entries()
    acks = [await _ack(store, entries[n % len(entries)]) for n in range(min(ACKS, count // 10))]
    single = await _produce(store, count // 20, 1)
    several = await _produce(store, count - count // 20 - len(acks), AT_ONCE)
    with Cost() as cost:
        after = read = 0
        while page := await store.read(after):
            after, read = page[-1].cursor, read + len(page)
    return {
        "ack_p50_ms": statistics.median(acks) * 1e3,
        "ack_p99_ms": statistics.quantiles(acks, n=100)[98] * 1e3,
        "durable_us": several["us"],
        "durable_per_s": several["per_s"],
        "durable_cpu_us": several["cpu_us"],
        "single_us": single["us"],
        "commits_per_s": several["commits_per_s"],
        "follow_us": cost.wall_s / read * 1e6,
        "events": float(read),
    }


async def _ack(store: SqliteStore, entry: Entry) -> float:
    began = time.perf_counter()
    await store.durable(store.append(entry))
    return time.perf_counter() - began


async def _produce(store: SqliteStore, count: int, at_once: int) -> Figures:
    entries, commits = _entries(), list[int]()
    leave = store.on_commit(commits.append)

    async def produce(producer: int) -> None:
        mine = [entry for entry in entries if entry.run.endswith(f"{producer:04x}")]
        for number in range(count // PRODUCERS // at_once):
            for each in range(at_once):
                ticket = store.append(mine[(number + each) % len(mine)])
            await store.durable(ticket)

    with Cost() as cost:
        await asyncio.gather(*map(produce, range(PRODUCERS)))
    leave()
    written = count // PRODUCERS // at_once * at_once * PRODUCERS
    return {
        "us": cost.wall_s / written * 1e6,
        "per_s": written / cost.wall_s,
        "cpu_us": cost.cpu_s / written * 1e6,
        "commits_per_s": len(commits) / cost.wall_s,
    }


@functools.cache
def _entries() -> tuple[Entry, ...]:
    """Return the events of a turn with a tool, for each producer in its own run."""
    return tuple(
        Entry("run-0123456789abcdef", event.run, number, kind, encode(event))
        for producer in range(PRODUCERS)
        for number, (kind, event) in enumerate(turn_of(f"run-fedcba987654{producer:04x}"), 1)
    )


def turn_of(run: str) -> list[tuple[str, Event]]:
    """Return the events of a turn with one tool with their types: some 400 bytes each."""
    common: dict[str, Any] = {
        "root": "run-0123456789abcdef",
        "run": run,
        "path": "main/searcher/2",
        "agent": "searcher",
        "parent": "run-0123456789abcdef",
        "depth": 2,
        "seq": 12_345,
        "at": datetime(2026, 11, 20, 10, 0, 0, 123_456, UTC),
    }
    step = f"{run}:17"
    call: dict[str, Any] = {**common, "call_id": "call_0123456789abcdef", "step_id": step, "tool": "Grep"}
    ended = {key: call[key] for key in call if key != "step_id"}
    return [
        ("model_asked", ModelAsked(**common, step_id=step, model="anthropic:claude", reserved_tokens=4_096)),
        ("message_recorded", MessageRecorded(**common, step_id=step, message=messages.encode(AIMessage("x" * 200)))),
        ("tool_started", ToolStarted(**call, args={"pattern": "def measure", "path": "benchmarks"})),
        ("tool_ended", ToolEnded(**ended, status="ok", preview="x" * 120, elapsed_ms=1.25)),
    ]
