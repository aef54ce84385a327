"""host/journal/journal.py: A finished tree is marked as over, by any number of callers."""

from __future__ import annotations

import asyncio
import pathlib
from datetime import UTC, datetime

from ramet import AgentRuntime
from ramet.host.journal.journal import TREES, Journal
from ramet.store.sqlite.store import SqliteStore


async def test_concurrent_closes_of_a_finished_tree_raise_no_conflict(tmp_path: pathlib.Path) -> None:
    """The end of the last run and a resume both mark the tree as over."""
    journal = Journal(SqliteStore(tmp_path / "journal.db"))
    await journal.open()
    await journal.store.put(TREES, "run-1", b'{"cwd":null}')

    now = datetime(2026, 11, 22, tzinfo=UTC)

    await asyncio.gather(*(journal.close_tree("run-1", now) for _ in range(3)))

    about = await journal.tree_facts("run-1")
    assert (about["cwd"], about["over"], about["ended"]) == (None, True, now.isoformat().replace("+00:00", "Z"))
    await journal.close_tree("run-of-nobody", now)
    await journal.release(AgentRuntime()._trees)
