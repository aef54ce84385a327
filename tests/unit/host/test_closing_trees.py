"""host/journal/journal.py: a tree that is over is said to be so, whoever says it, and however many do."""

from __future__ import annotations

import asyncio
import pathlib
from datetime import UTC, datetime

from ramet import AgentRuntime
from ramet.host.journal.journal import TREES, Journal
from ramet.store.sqlite.store import SqliteStore


async def test_two_may_find_at_once_that_a_tree_is_over(tmp_path: pathlib.Path) -> None:
    """Its last run ended, and somebody who resumes has just read that: neither is told of a conflict."""
    journal = Journal(SqliteStore(tmp_path / "journal.db"))
    await journal.open()
    await journal.store.put(TREES, "run-1", b'{"cwd":null}')

    now = datetime(2026, 11, 22, tzinfo=UTC)

    await asyncio.gather(*(journal.close_tree("run-1", now) for _ in range(3)))

    about = await journal.tree_facts("run-1")
    assert (about["cwd"], about["over"], about["ended"]) == (None, True, now.isoformat().replace("+00:00", "Z"))
    await journal.close_tree("run-of-nobody", now)
    await journal.release(AgentRuntime())
