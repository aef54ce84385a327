"""Resource limits of an agent, and how the end at a limit is reported, alike on every backend."""

from __future__ import annotations

import asyncio
import pathlib

import pytest

import ramet
from tests.security.attacks import resources
from tests.trips.agents import isolated as agents
from tests.trips.kits.isolated import BackendName, backend, runtime

__all__ = ["backend", "runtime"]


async def test_ac_s0_12_out_of_memory_ends_as_oom(runtime: ramet.AgentRuntime) -> None:
    """AC-S0-12: the status is `oom`, not "crashed" or "failed", with 137 and a reason that names the limit."""
    result = await runtime.run_agent(agent=agents.grow, args=(400,), policy=ramet.Policy(memory_mb=96))

    assert (result.status, result.exit_code, result.output) == ("oom", 137, None)
    assert "96" in str(result.error)


async def test_an_agent_within_its_memory_completes(runtime: ramet.AgentRuntime) -> None:
    """An agent may use nearly its whole limit (the control of the test above)."""
    result = await runtime.run_agent(agent=agents.grow, args=(80,), policy=ramet.Policy(memory_mb=128))

    assert (result.status, result.output) == ("completed", 80)


async def test_an_agent_beyond_its_time_ends_as_timeout(runtime: ramet.AgentRuntime) -> None:
    """53: the timeout has a status of its own, and the result keeps the earlier output."""
    result = await runtime.run_agent(agent=agents.nap, args=(60,), policy=ramet.Policy(timeout_seconds=15))

    assert (result.status, result.exit_code, result.output) == ("timeout", 124, None)
    assert result.stdout == "napping\n"
    assert "15 s" in str(result.error)


async def test_ac_s0_11_output_above_the_limit_is_refused(runtime: ramet.AgentRuntime, tmp_path: pathlib.Path) -> None:
    """AC-S0-11: a result above `max_output_bytes` is an error that names the limit; a file above it is no artifact."""
    policy = ramet.Policy(max_output_bytes=100_000)

    result = await runtime.run_agent(agent=agents.big, args=(200_000,), policy=policy)
    files = await runtime.run_agent(agent=agents.leave, args=({"big.txt": "b" * 200_000},), policy=policy)
    within = await runtime.run_agent(agent=agents.big, args=(50_000,), policy=policy)

    assert (result.status, result.output) == ("failed", None)
    assert "100000" in str(result.error)
    assert "big.txt" not in {each.name for each in files.artifacts}
    assert within.output == "b" * 50_000


async def test_ac_s0_12_a_failed_attempt_is_repeated_in_a_clean_sandbox(runtime: ramet.AgentRuntime) -> None:
    """AC-S0-12, 170: `retry_count` further attempts see the checkpoint of earlier ones, and not their files."""
    policy = ramet.Policy(retry_count=3, retry_delay_seconds=0)

    result = await runtime.run_agent(agent=agents.attempts, args=("left.txt", 3), policy=policy)

    assert (result.status, result.output) == ("completed", {"attempt": 3, "found": False})


async def test_ac_s0_12_attempts_end_after_retry_count(runtime: ramet.AgentRuntime) -> None:
    """AC-S0-12: after one attempt and two more, the run has the error of the last one."""
    policy = ramet.Policy(retry_count=2, retry_delay_seconds=0)

    result = await runtime.run_agent(agent=agents.attempts, args=("left.txt", 10), policy=policy)

    assert result.status == "failed"
    assert "attempt 3 fails" in str(result.error)


async def test_170_each_attempt_is_an_event(runtime: ramet.AgentRuntime) -> None:
    """170: the events show each failed attempt and its reason."""
    policy = ramet.Policy(retry_count=2, retry_delay_seconds=0)
    handle = await runtime.start_agent(agent=agents.attempts, args=("left.txt", 3), policy=policy)

    events = [event async for event in handle.events()]

    text = " ".join(map(repr, events))
    assert "attempt 1 fails" in text
    assert "attempt 2 fails" in text
    assert (await handle.result()).status == "completed"


async def test_the_number_of_processes_is_limited(runtime: ramet.AgentRuntime) -> None:
    """52: a fork beyond `pids` fails, also for root."""
    result = await runtime.run_agent(agent=resources.fork_much, args=(100,), policy=ramet.Policy(pids=12))

    assert result.output["stopped"] == "BlockingIOError"
    assert 2 <= result.output["lived"] <= 12


async def test_64_an_event_reports_memory_use_near_the_limit(runtime: ramet.AgentRuntime) -> None:
    """64: an agent near its memory limit causes an event."""
    handle = await runtime.start_agent(
        agent=agents.hold, args=(116, 3.0), policy=ramet.Policy(memory_mb=128, timeout_seconds=120)
    )

    events = [event async for event in handle.events()]

    assert any("hreshold" in type(event).__name__ and "memory" in repr(event) for event in events)


async def test_fifty_agents_run_concurrently(runtime: ramet.AgentRuntime) -> None:
    """Each of fifty agents returns its own answer."""
    results = await asyncio.gather(*(runtime.run_agent(agent=agents.echo, args=(n,)) for n in range(50)))

    assert [result.output["args"] for result in results] == [[n] for n in range(50)]
    assert len({result.session_id for result in results}) == 50


async def test_fresh_isolation_runs_from_a_cold_start(runtime: ramet.AgentRuntime, backend: BackendName) -> None:
    """`isolation="fresh"` gives the same result; a backend without a cold start raises IsolationUnavailable."""
    if backend == "local":
        from ramet.core.errors import IsolationUnavailable

        with pytest.raises(IsolationUnavailable):
            await runtime.run_agent(agent=agents.echo, policy=ramet.Policy(isolation=ramet.Isolation.FRESH))
        return
    result = await runtime.run_agent(agent=agents.echo, args=(1,), policy=ramet.Policy(isolation=ramet.Isolation.FRESH))

    assert result.output["args"] == [1]
