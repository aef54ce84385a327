"""Retries under the next kernel, after a kill between two attempts."""

from __future__ import annotations

import pathlib
from datetime import UTC, datetime

from ramet import AgentRuntime, Policy
from ramet.concurrency.clock import FakeClock
from ramet.store.memory import MemoryStore
from tests.support.waiting import eventually


def check_for_leftovers() -> None:
    """Report whether an earlier attempt left a file, and leave one."""
    path = pathlib.Path("left")
    was_there = path.exists()
    path.write_text("by an attempt")
    raise ValueError(f"there before: {was_there}")


async def test_an_attempt_after_a_kill_begins_with_an_empty_workspace(tmp_path: pathlib.Path) -> None:
    """The attempt before left a file, and its kernel was killed while the retry waited."""
    store, policy = MemoryStore(), Policy(retry_count=1, retry_delay_seconds=60)
    one = AgentRuntime(tmp_path, store=store, backend="local", clock=FakeClock(datetime(2026, 1, 1, tzinfo=UTC)))
    await one.start()
    await one.start_agent(agent=check_for_leftovers, policy=policy)
    await eventually(lambda: any(each.type == "run_retried" for each in store._tables.all_events))
    await store.close()
    await one.stop()

    async with AgentRuntime(tmp_path, store=store, backend="local") as two:
        [handle] = await two.resume()
        result = await handle.result()
    assert result.error is not None
    assert result.error.message == "there before: False"
    assert [each.type for each in store._tables.all_events].count("run_retried") == 1
