"""The state location of a run whose parent has ended, in a process without the parent's definition."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from ramet import Agent, AgentRuntime, SpawnRequest
from ramet.core.agent_ref import AgentRef
from ramet.core.ids import RunId
from ramet.core.outcome import Status
from ramet.host.dynamic.namespaces import branch_of, place_of, state_location
from ramet.spawn.run import Run
from ramet.store.memory import MemoryStore
from tests.support.waiting import eventually
from tests.trips.recovery.test_resume import lost_runtime

OWNER = "agent-0123456789abcdef"
SOLVER = AgentRef("architect", "0" * 64, ("solver",), "1" * 64)


async def work_forever() -> None:
    """Work until the process ends."""
    await asyncio.Event().wait()


def state_of(run: Run) -> tuple[str, str, str]:
    """Return owner, place and branch of a run's state."""
    standing = state_location(run)
    return standing.owner, place_of(standing), branch_of(standing)


def only_living(runtime: AgentRuntime, root: RunId) -> Run:
    """Return the one active run of a tree."""
    [run] = [each for each in runtime.trees[root].tree.register.runs.values() if each.is_living]
    return run


@pytest.mark.parametrize("ref", [None, SOLVER], ids=["named", "made"])
@pytest.mark.parametrize("branch", [False, True], ids=["its own", "branch"])
async def test_a_child_of_an_ended_parent_keeps_its_state_location_after_a_kill(
    branch: bool, ref: AgentRef | None
) -> None:
    """The journal has the owner, the branch from the spawn, and the reference of the parent's definition."""
    store, may_end = MemoryStore(), asyncio.Event()

    async def leads(until: asyncio.Event) -> str:
        await until.wait()
        return "led"

    lead: Any = Agent(name="lead", function=leads, ref=ref)
    async with lost_runtime(store) as runtime:
        handle = await runtime.spawn(lead, args=(may_end,), state_owner=OWNER)
        request = SpawnRequest(agent=work_forever, detached=True, branch=branch)
        await runtime.trees[handle.id].tree.spawn(handle.run.context, request)
        may_end.set()
        await eventually(lambda: not handle.run.is_living)
        before = state_of(only_living(runtime, handle.id))

    async with AgentRuntime(store=store) as runtime:
        [resumed_handle] = await runtime.resume()
        assert resumed_handle.run.agent.function is None, "it was born with an argument that no other process has"
        assert (await resumed_handle.result()).status is Status.COMPLETED
        assert state_of(only_living(runtime, handle.id)) == before
    assert before[0] == OWNER
