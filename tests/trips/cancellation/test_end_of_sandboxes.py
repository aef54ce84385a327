"""The end of agents in sandboxes: cancelled, timed out, abandoned. On every backend alike."""

from __future__ import annotations

import asyncio
import itertools
import os
import pathlib

import pytest

import ramet
from ramet.tools.context import SpawnRequest, require_current_call
from tests.security.attacks import answers
from tests.support.waiting import eventually
from tests.trips.agents import isolated as agents
from tests.trips.kits.isolated import Name, backend, marked, runtime

__all__ = ["backend", "runtime"]

MAY = ramet.Policy(allow_sub_agents=True, memory_mb=1024, cpu_cores=8)
_marks = itertools.count()


@pytest.fixture
def mark() -> str:
    """A word that is in the command lines of one test's processes and of no others."""
    return f"ends-{os.getpid()}-{next(_marks)}"


async def test_ac_s0_6_neg_6_cancel_ends_three_levels(runtime: ramet.AgentRuntime, mark: str) -> None:
    """AC-S0-6, NEG-6: when cancel returns, nobody of the subtree is left; the run is cancelled, with the reason."""
    handle = await runtime.start_agent(agent=agents.subtree, args=(mark, 3), policy=MAY)
    await eventually(lambda: len(marked(mark)) == 3)

    await handle.cancel("no longer needed")

    assert marked(mark) == []
    result = await handle.result()
    assert result.status == "cancelled"
    assert "no longer needed" in str(result.error)


async def test_ac_s0_6_descendants_are_told_as_cancelled_by_their_parent(
    runtime: ramet.AgentRuntime, mark: str
) -> None:
    """AC-S0-6: each descendant's own record says that it was cancelled, and because of whom."""
    handle = await runtime.start_agent(agent=agents.subtree, args=(mark, 3), policy=MAY)
    await eventually(lambda: len(marked(mark)) == 3)
    [runs] = runtime.get_status()["sessions"].values()
    below = [runtime.get(run["id"]) for run in runs if run["id"] != handle.id]

    await handle.cancel("no longer needed")

    results = [await each.result() for each in below]
    assert [result.status for result in results] == ["cancelled"] * 2
    for result in results:
        assert result.error is not None
        assert "parent" in result.error.message or "no longer needed" in result.error.message


async def test_a_parent_in_the_host_ends_behind_its_children_in_sandboxes(
    runtime: ramet.AgentRuntime, mark: str
) -> None:
    """Whoever hears of its end finds no process of theirs, though it would itself be gone at once."""
    left: list[list[int]] = []

    async def parent() -> None:
        context = require_current_call().context
        assert context.tree is not None
        request = SpawnRequest(agent=answers.never_end, args=(mark,), policy=ramet.Policy())
        await context.tree.spawn(context, request)
        await asyncio.Event().wait()

    handle = await runtime.spawn(parent)
    await eventually(lambda: len(marked(mark)) == 2)
    handle.run.over().add_done_callback(lambda _: left.append(marked(mark)))

    await handle.cancel("no longer needed")

    assert left == [[]]


async def test_ac_s0_6_a_parents_timeout_is_its_childrens_end(runtime: ramet.AgentRuntime, mark: str) -> None:
    """AC-S0-6: the same when its time is up."""
    policy = ramet.Policy(allow_sub_agents=True, memory_mb=1024, cpu_cores=8, timeout_seconds=2)

    result = await runtime.run_agent(agent=agents.subtree, args=(mark, 3), policy=policy)

    assert result.status == "timeout"
    assert marked(mark) == []


async def test_stopping_the_runtime_ends_everybody(backend: Name, tmp_path: pathlib.Path, mark: str) -> None:
    """Row 1: `stop` returns when all are gone, with the sandboxes' zygotes; it may be called twice."""
    async with ramet.AgentRuntime(working_dir=tmp_path / "work", backend=backend) as runtime:
        handles = [
            await runtime.start_agent(agent=answers.never_end, args=(mark,), policy=ramet.Policy()) for _ in range(3)
        ]
        await eventually(lambda: len(marked(mark)) == 6)
        await runtime.stop()

        assert marked(mark) == []
        assert [(await handle.result()).status for handle in handles] == ["cancelled"] * 3


async def test_giving_up_the_wait_does_not_end_the_agent_or_does_and_says_so(
    runtime: ramet.AgentRuntime, mark: str
) -> None:
    """`run_agent` that is cancelled ends its agent: nobody else holds a handle on it."""
    waiting = asyncio.create_task(
        runtime.run_agent(agent=answers.never_end, args=(mark,), policy=ramet.Policy(timeout_seconds=50))
    )
    await eventually(lambda: len(marked(mark)) == 2)

    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting

    await eventually(lambda: not marked(mark))
    await eventually(lambda: len(runtime.get_status()["sessions"]) == 0)


async def test_cancelling_twice_or_after_the_end_is_nothing(runtime: ramet.AgentRuntime) -> None:
    """105: idempotent; a run that has ended keeps its result."""
    handle = await runtime.start_agent(agent=agents.echo, args=(1,), policy=ramet.Policy())
    assert (await handle.result()).status == "completed"

    await handle.cancel("too late")
    await handle.cancel("too late")

    assert (await handle.result()).status == "completed"


async def test_many_are_cancelled_at_once(runtime: ramet.AgentRuntime, mark: str) -> None:
    """Ten trees, cancelled together: none is forgotten."""
    handles = [
        await runtime.start_agent(agent=answers.never_end, args=(mark,), policy=ramet.Policy()) for _ in range(10)
    ]
    await eventually(lambda: len(marked(mark)) == 20)

    await asyncio.gather(*(handle.cancel("all of you") for handle in handles))

    assert marked(mark) == []


async def test_a_cancel_while_it_is_being_ended_leaves_nothing(runtime: ramet.AgentRuntime, mark: str) -> None:
    """Out of time and deaf, then stopped in its grace: conftest.py looks for descriptors that were left open."""
    policy = ramet.Policy(timeout_seconds=5)  # Enough to begin in, on any machine.
    handle = await runtime.start_agent(agent=agents.deaf, args=(mark,), policy=policy)
    run = runtime.get(handle.id).run
    await eventually(lambda: marked(mark))
    await eventually(lambda: run.sandbox is None)  # From here on it is being ended.

    await handle.cancel("no longer needed")

    result = await handle.result()
    assert result.status in {"timeout", "cancelled"}
    assert marked(mark) == []
