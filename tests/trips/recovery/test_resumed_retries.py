"""What is tried again under the next kernel, since the one before was killed between two attempts."""

from __future__ import annotations

import pathlib
from datetime import UTC, datetime

from ramet import AgentRuntime, Policy
from ramet.concurrency.clock import FakeClock
from ramet.store.memory import MemoryStore
from tests.support.waiting import eventually


def leaves() -> None:
    """Says what was there, and leaves something."""
    path = pathlib.Path("left")
    was_there = path.exists()
    path.write_text("by an attempt")
    raise ValueError(f"there before: {was_there}")


async def test_an_attempt_begins_with_an_empty_workspace(tmp_path: pathlib.Path) -> None:
    """Whatever the attempt before it left there, whose kernel was killed while it waited."""
    store, policy = MemoryStore(), Policy(retry_count=1, retry_delay_seconds=60)
    one = AgentRuntime(tmp_path, store=store, backend="local", clock=FakeClock(datetime(2026, 1, 1, tzinfo=UTC)))
    await one.start()
    await one.start_agent(agent=leaves, policy=policy)
    await eventually(lambda: any(each.type == "run_retried" for each in store._events))
    await store.close()
    await one.stop()

    async with AgentRuntime(tmp_path, store=store, backend="local") as two:
        [again] = await two.resume()
        result = await again.result()
    assert result.error is not None
    assert result.error.message == "there before: False"
    assert [each.type for each in store._events].count("run_retried") == 1
