"""An agent that ends for lack of memory reads which limit it exceeded: its own, or that of its reservation."""

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
from tests.trips.kits.isolated import BackendName, backend, runtime

__all__ = ["backend", "runtime"]

OF_TEAM = "reservation 'team': memory_mb is"


@pytest.fixture(autouse=True)
async def require_shared_memory_limits(backend: BackendName, tmp_path: pathlib.Path) -> None:
    """Skip the test where the machine cannot limit the memory of several sandboxes together."""
    probed_backend = {"bwrap": BwrapBackend, "local": LocalBackend}[backend](tmp_path / "probed")
    try:
        if "memory_mb" not in (await probed_backend.probe()).bounded_resources:
            pytest.skip("this machine bounds no memory together")
    finally:
        await probed_backend.close()


def policy_in_team(memory_mb: float, own_mb: int) -> Policy:
    """Return the policy of an agent in a team that shares `memory_mb`."""
    return Policy(memory_mb=own_mb, reservation=Reservation(name="team", memory_mb=memory_mb))


async def oom_message(runtime: ramet.AgentRuntime, policy: Policy, megabytes: int) -> str:
    """Have an agent use too much memory, and return the message of its error."""
    result = await runtime.run_agent(agent=agents.grow, args=(megabytes,), policy=policy)
    assert result.status == "oom", result
    assert result.error is not None
    return result.error.message


async def test_the_error_names_the_memory_limit_of_the_reservation(runtime: ramet.AgentRuntime) -> None:
    """The first agent is within its own limit. An agent that exceeds its own limit reads of that one."""
    first = await oom_message(runtime, policy_in_team(128, 512), 300)
    second = await oom_message(runtime, policy_in_team(128, 64), 300)
    alone = await oom_message(runtime, Policy(memory_mb=64), 300)

    assert first == f"more than its sandboxes may use together: {OF_TEAM} 128"
    assert second == alone == "more than 64 MiB of memory: policy.memory_mb is 64"


async def test_the_error_names_the_reservation_despite_cached_files(
    runtime: ramet.AgentRuntime,
) -> None:
    """Cached files count in a control group of version 1, but Linux drops them, and no process ends for them."""
    holder = await runtime.spawn(agents.hold_and_stay, args=(60,), policy=policy_in_team(160, 256))
    folder = holder.run.sandbox.folder
    assert folder is not None
    await eventually((folder.workspace / "begun").exists)

    result = await runtime.run_agent(agent=agents.fill_cache_and_grow, args=(150, 115), policy=policy_in_team(160, 128))
    await holder.cancel()

    assert result.status == "oom"
    assert result.error is not None
    assert f"{OF_TEAM} 160" in result.error.message
