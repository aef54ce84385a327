"""Cancel, timeout and abandonment of agents in sandboxes, with equal outcomes on every backend."""

from __future__ import annotations

import asyncio
import itertools
import os
import pathlib
from typing import Any

import pytest

import ramet
from ramet.isolation.zygote import backend as backend_module
from ramet.isolation.zygote.client import ZygoteClient
from ramet.spawn.lifecycle import stop
from ramet.tools.context import require_current_call
from ramet.tools.spawn_request import SpawnRequest
from tests.security.attacks import answers
from tests.support.waiting import eventually
from tests.trips.agents import isolated as agents
from tests.trips.kits.isolated import BackendName, backend, marked_processes, runtime

__all__ = ["backend", "runtime"]

MAY = ramet.Policy(allow_sub_agents=True, memory_mb=1024, cpu_cores=8)
_marks = itertools.count()


@pytest.fixture
def process_mark() -> str:
    """Return a word that is in the command lines of this test's processes only."""
    return f"ends-{os.getpid()}-{next(_marks)}"


async def test_ac_s0_6_neg_6_cancel_ends_three_levels(runtime: ramet.AgentRuntime, process_mark: str) -> None:
    """AC-S0-6, NEG-6: no process of the subtree remains when cancel returns; the run is cancelled, with the reason."""
    handle = await runtime.start_agent(agent=agents.subtree, args=(process_mark, 3), policy=MAY)
    await eventually(lambda: len(marked_processes(process_mark)) == 3)

    await handle.cancel("no longer needed")

    assert marked_processes(process_mark) == []
    result = await handle.result()
    assert result.status == "cancelled"
    assert "no longer needed" in str(result.error)


async def test_ac_s0_6_results_of_descendants_name_the_parents_cancel(
    runtime: ramet.AgentRuntime, process_mark: str
) -> None:
    """AC-S0-6: the result of each descendant says that it was cancelled with its parent, or why."""
    handle = await runtime.start_agent(agent=agents.subtree, args=(process_mark, 3), policy=MAY)
    await eventually(lambda: len(marked_processes(process_mark)) == 3)
    [runs] = runtime.get_status()["sessions"].values()
    handles = [runtime.get(run["id"]) for run in runs if run["id"] != handle.id]

    await handle.cancel("no longer needed")

    results = [await each.result() for each in handles]
    assert [result.status for result in results] == ["cancelled"] * 2
    for result in results:
        assert result.error is not None
        assert "parent" in result.error.message or "no longer needed" in result.error.message


async def test_a_parent_in_the_host_ends_after_its_sandboxed_children(
    runtime: ramet.AgentRuntime, process_mark: str
) -> None:
    """No process of the child's sandbox remains when the parent ends, although the parent alone could end at once."""
    leftovers: list[list[int]] = []

    async def parent() -> None:
        context = require_current_call().context
        assert context.tree is not None
        request = SpawnRequest(agent=answers.never_end, args=(process_mark,), policy=ramet.Policy())
        await context.tree.spawn(context, request)
        await asyncio.Event().wait()

    handle = await runtime.spawn(parent)
    await eventually(lambda: len(marked_processes(process_mark)) == 2)
    handle.run.conclusion().add_done_callback(lambda _: leftovers.append(marked_processes(process_mark)))

    await handle.cancel("no longer needed")

    assert leftovers == [[]]


async def test_ac_s0_6_a_parents_timeout_ends_its_children(runtime: ramet.AgentRuntime, process_mark: str) -> None:
    """AC-S0-6: no process of the subtree remains when the parent's time is over; the run is a timeout."""
    policy = ramet.Policy(allow_sub_agents=True, memory_mb=1024, cpu_cores=8, timeout_seconds=2)

    result = await runtime.run_agent(agent=agents.subtree, args=(process_mark, 3), policy=policy)

    assert result.status == "timeout"
    assert marked_processes(process_mark) == []


async def test_stopping_the_runtime_ends_every_process(
    backend: BackendName, tmp_path: pathlib.Path, process_mark: str
) -> None:
    """Row 1: `stop` returns once every run and every zygote of sandboxes has ended; it may be called twice."""
    async with ramet.AgentRuntime(working_dir=tmp_path / "work", backend=backend) as runtime:
        handles = [
            await runtime.start_agent(agent=answers.never_end, args=(process_mark,), policy=ramet.Policy())
            for _ in range(3)
        ]
        await eventually(lambda: len(marked_processes(process_mark)) == 6)
        await runtime.stop()

        assert marked_processes(process_mark) == []
        assert [(await handle.result()).status for handle in handles] == ["cancelled"] * 3


async def test_cancelling_run_agent_ends_its_agent(runtime: ramet.AgentRuntime, process_mark: str) -> None:
    """A cancel of `run_agent` ends its agent, since no other code holds a handle on it."""
    waiting = asyncio.create_task(
        runtime.run_agent(agent=answers.never_end, args=(process_mark,), policy=ramet.Policy(timeout_seconds=50))
    )
    await eventually(lambda: len(marked_processes(process_mark)) == 2)

    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting

    await eventually(lambda: not marked_processes(process_mark))
    await eventually(lambda: len(runtime.get_status()["sessions"]) == 0)


async def test_a_cancel_does_not_wait_until_a_zygote_can_fork(
    runtime: ramet.AgentRuntime, process_mark: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first sandbox of a process needs a zygote. A cancel meanwhile returns, and the next run gets that zygote."""
    started, held, start = asyncio.Event(), asyncio.Event(), ZygoteClient.start.__func__  # type: ignore[attr-defined]  # of a class method

    async def start_late(cls: type[ZygoteClient], *arguments: Any) -> ZygoteClient:
        started.set()
        await held.wait()
        zygote: ZygoteClient = await start(cls, *arguments)
        return zygote

    monkeypatch.setattr(stop, "PROCESS_END_S", 3600.0)
    monkeypatch.setattr(backend_module, "START_S", 3600.0)
    monkeypatch.setattr(ZygoteClient, "start", classmethod(start_late))
    handle = await runtime.start_agent(agent=answers.never_end, args=(process_mark,), policy=ramet.Policy())
    await started.wait()
    async with asyncio.timeout(60):  # Otherwise it waits until the zygote can fork.
        await handle.cancel("no longer needed")
    monkeypatch.undo()
    held.set()

    assert (await handle.result()).status == "cancelled"
    assert (await runtime.run_agent(agent=agents.echo, args=(1,), policy=ramet.Policy())).status == "completed"
    assert marked_processes(process_mark) == []


async def test_cancelling_after_the_end_changes_nothing(runtime: ramet.AgentRuntime) -> None:
    """105: cancel is idempotent; an ended run keeps its result."""
    handle = await runtime.start_agent(agent=agents.echo, args=(1,), policy=ramet.Policy())
    assert (await handle.result()).status == "completed"

    await handle.cancel("too late")
    await handle.cancel("too late")

    assert (await handle.result()).status == "completed"


async def test_many_trees_are_cancelled_concurrently(runtime: ramet.AgentRuntime, process_mark: str) -> None:
    """No process of ten trees remains after ten concurrent cancels."""
    handles = [
        await runtime.start_agent(agent=answers.never_end, args=(process_mark,), policy=ramet.Policy())
        for _ in range(10)
    ]
    await eventually(lambda: len(marked_processes(process_mark)) == 20)

    await asyncio.gather(*(handle.cancel("all of you") for handle in handles))

    assert marked_processes(process_mark) == []


async def test_a_cancel_during_a_timeout_leaves_no_process(runtime: ramet.AgentRuntime, process_mark: str) -> None:
    """A deaf run is cancelled in the grace of its timeout; conftest.py checks for open descriptors."""
    policy = ramet.Policy(timeout_seconds=15)  # Enough to begin in, on any machine.
    handle = await runtime.start_agent(agent=agents.deaf, args=(process_mark,), policy=policy)
    run = runtime.get(handle.id).run
    await eventually(lambda: marked_processes(process_mark))
    await eventually(lambda: run.sandbox.current is None)  # From here on it is being ended.

    await handle.cancel("no longer needed")

    result = await handle.result()
    assert result.status in {"timeout", "cancelled"}
    assert marked_processes(process_mark) == []
