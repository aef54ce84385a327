"""Who is ended for want of memory is told whose limit that was: its own, or that of its reservation."""

from __future__ import annotations

import pathlib

import pytest

import ramet
from ramet.core.policy.policy import Policy
from ramet.core.policy.reservation import Reservation
from ramet.isolation.bwrap import BwrapBackend
from ramet.isolation.local import LocalBackend
from tests.support.waiting import eventually
from tests.trips.agents import isolated as agents
from tests.trips.kits.isolated import Name, backend, runtime

__all__ = ["backend", "runtime"]

OF_TEAM = "reservation 'team': memory_mb is"


@pytest.fixture(autouse=True)
async def bounded(backend: Name, tmp_path: pathlib.Path) -> None:
    """Skip where the machine bounds no memory of several sandboxes together."""
    made = {"bwrap": BwrapBackend, "local": LocalBackend}[backend](tmp_path / "probed")
    try:
        if "memory_mb" not in (await made.probe()).together:
            pytest.skip("this machine bounds no memory together")
    finally:
        await made.close()


def team(memory_mb: float, own_mb: int) -> Policy:
    """A policy for one of a team, which has `memory_mb` together."""
    return Policy(memory_mb=own_mb, reservation=Reservation(name="team", memory_mb=memory_mb))


async def why(runtime: ramet.AgentRuntime, policy: Policy, megabytes: int) -> str:
    """Have an agent use too much memory; its error's message."""
    result = await runtime.run_agent(agent=agents.grow, args=(megabytes,), policy=policy)
    assert result.status == "oom", result
    assert result.error is not None
    return result.error.message


async def test_the_memory_of_a_reservation_is_named(runtime: ramet.AgentRuntime) -> None:
    """The agent is within its own limit; afterwards another one that is not hears of its own."""
    first = await why(runtime, team(128, 512), 300)
    second = await why(runtime, team(128, 64), 300)
    alone = await why(runtime, Policy(memory_mb=64), 300)

    assert first == f"more than its sandboxes may use together: {OF_TEAM} 128"
    assert second == alone == "more than 64 MiB of memory: policy.memory_mb is 64"


async def test_the_reservation_is_named_to_one_whose_files_had_filled_its_own_limit(
    runtime: ramet.AgentRuntime,
) -> None:
    """Files that are only cached count in a control group of version 1, and are dropped: nobody ends for them."""
    holder = await runtime.spawn(agents.hold_and_stay, args=(60,), policy=team(160, 256))
    folder = holder.run.folder
    assert folder is not None
    await eventually((folder.workspace / "begun").exists)

    result = await runtime.run_agent(agent=agents.fill_cache_and_grow, args=(150, 115), policy=team(160, 128))
    await holder.cancel()

    assert result.status == "oom"
    assert result.error is not None
    assert f"{OF_TEAM} 160" in result.error.message
