"""State: a commit of one key among 1,000, forks, and one of 100,000 entries that a new process looks up."""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from benchmarks.cost import Cost, Figures
from ramet.store.sqlite.store import SqliteStore
from ramet.store.state.versioned import Versioned

REGISTRY = "__local_agent_registry__"
KEYS = 1_000


async def measure(count: int = 1_000, entries: int = 100_000) -> Figures:
    """Return milliseconds and bytes, of a store in its own file."""
    with tempfile.TemporaryDirectory(prefix="ramet-bench-") as folder:
        store = await SqliteStore(Path(folder, "journal.db")).open()
        try:
            return {**await _commits(store, count), **await _entries(store, entries)}
        finally:
            await store.close()


async def _commits(store: SqliteStore, count: int) -> Figures:
    state = await Versioned.open(store, "keys")
    for number in range(KEYS):
        state.set(f"key-{number:04}", {"number": number, "text": "x" * 40})
    await state.commit()

    async def commit(number: int) -> None:
        state.set(f"key-{number * 7 % KEYS:04}", {"number": -1 - number, "text": "y" * 40})
        await state.commit()

    async def fork(number: int) -> None:
        await state.fork(f"branch-{number}")

    before = await _bytes(store)
    with Cost() as cost:
        commits = await _timed(count, commit)
    added = (await _bytes(store) - before) / count
    forks = await _timed(count, fork)
    return {
        "commit_p50_ms": statistics.median(commits),
        "commit_p99_ms": statistics.quantiles(commits, n=100)[98],
        "commit_cpu_ms": cost.cpu_s / count * 1e3,
        "commit_bytes": added,
        "fork_p50_ms": statistics.median(forks),
    }


async def _entries(store: SqliteStore, entries: int) -> Figures:
    state = await Versioned.open(store, "registry")
    recipe = {"primer": "You solve equations.", "capabilities": [{"type": "module", "name": "math"}]}
    state.set(REGISTRY, {f"specialist-{number}": {**recipe, "number": number} for number in range(entries)})
    with Cost() as cost:
        await state.commit()

    async def look_up(number: int) -> None:
        beginner = await Versioned.open(store, "registry")
        assert await beginner.read_entry(REGISTRY, f"specialist-{number * 991 % entries}")

    looks = await _timed(100, look_up)
    return {
        "cold_p50_ms": statistics.median(looks),
        "cold_p99_ms": statistics.quantiles(looks, n=100)[98],
        "entry_us": cost.cpu_s / entries * 1e6,
    }


async def _timed(count: int, do: Callable[[int], Awaitable[None]]) -> list[float]:
    times = []
    for number in range(count):
        began = time.perf_counter()
        await do(number)
        times.append((time.perf_counter() - began) * 1e3)
    return times


async def _bytes(store: SqliteStore) -> int:
    return sum(map(len, (await store.get_blobs(await store.list_blobs())).values()))
