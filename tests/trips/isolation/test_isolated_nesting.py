"""Agents in sandboxes that spawn agents in sandboxes, alike on every backend."""

from __future__ import annotations

import pytest

import ramet
from ramet.core.events import RunEnded
from tests.trips.agents import isolated as agents
from tests.trips.kits.isolated import backend, runtime

__all__ = ["backend", "runtime"]

MAY = ramet.Policy(allow_sub_agents=True, memory_mb=1024, cpu_cores=8)


async def test_ac_s0_3_value_exit_code_and_artifacts_reach_the_parent(runtime: ramet.AgentRuntime) -> None:
    """AC-S0-3: the parent of a child with 128 MB reads its output, exit code, streams and files."""
    result = await runtime.run_agent(
        agent=agents.spawn, args=(agents.leave, {"memory_mb": 128}, ({"child.txt": "of the child"},)), policy=MAY
    )

    assert result.status == "completed", result.error
    assert result.output == {
        "output": 1,
        "exit_code": 0,
        "status": "completed",
        "error": None,
        "stdout": "",
        "artifacts": {"child.txt": "of the child"},
    }


async def test_ac_s0_3_a_parent_without_the_right_gets_spawn_refused(runtime: ramet.AgentRuntime) -> None:
    """AC-S0-3: SpawnRefused names the field; if the parent does not catch it, its run fails with it."""
    caught = await runtime.run_agent(agent=agents.spawn_one_by_one, args=(1,))
    uncaught = await runtime.run_agent(agent=agents.spawn, args=(agents.echo,))

    assert caught.output == ["policy.allow_sub_agents"]
    assert uncaught.status == "failed"
    assert uncaught.error is not None
    assert uncaught.error.type.endswith("SpawnRefused")


async def test_a_failed_child_returns_a_result_to_its_parent(runtime: ramet.AgentRuntime) -> None:
    """FINEPRINT: a refused spawn raises; a failed child does not."""
    result = await runtime.run_agent(agent=agents.spawn, args=(agents.fail, None, ("in the child",)), policy=MAY)

    assert (result.output["status"], result.output["exit_code"], result.output["output"]) == ("failed", 1, None)
    assert "in the child" in result.output["error"]


async def test_a_returning_function_awaits_its_active_children(runtime: ramet.AgentRuntime) -> None:
    """The child completes before the parent's end is recorded, as in the host."""
    handle = await runtime.spawn(agents.leave_one_at_work, args=(0.2,), policy=MAY)
    recorder = runtime.trees[handle.run.info.id].recorder
    result = await handle.result()

    assert (result.status, result.value) == ("completed", "the parent's")
    ends = [(each.path, str(each.result.status)) for each in recorder.recent_events if isinstance(each, RunEnded)]
    assert ends == [("main/late", "completed"), ("main", "completed")]


async def test_ac_s0_4_a_large_result_passes_through_nested_levels(runtime: ramet.AgentRuntime) -> None:
    """AC-S0-4: a text of 200 KB reaches the root through four levels."""
    result = await runtime.run_agent(agent=agents.level, args=(4, 200_000), policy=MAY)

    assert result.status == "completed", result.error
    assert result.output["levels"] == 4
    assert len(result.output["text"]) == 200_000


@pytest.mark.parametrize("limit", [1, 3])
async def test_ac_s0_4_a_level_beyond_the_limit_is_refused(runtime: ramet.AgentRuntime, limit: int) -> None:
    """AC-S0-4: a run one level deeper than `max_sub_agent_depth` fails, and names the depth."""
    policy = ramet.Policy(allow_sub_agents=True, memory_mb=1024, cpu_cores=8, max_sub_agent_depth=limit)

    within = await runtime.run_agent(agent=agents.level, args=(limit + 1, 10), policy=policy)
    beyond = await runtime.run_agent(agent=agents.level, args=(limit + 2, 10), policy=policy)

    assert within.status == "completed", within.error
    assert beyond.status == "failed"
    assert "depth" in str(beyond.error)


async def test_ac_s0_4_the_eleventh_child_is_refused(runtime: ramet.AgentRuntime) -> None:
    """AC-S0-4: a run may spawn ten children by default."""
    result = await runtime.run_agent(agent=agents.spawn_one_by_one, args=(12,), policy=MAY)

    assert result.output[:10] == ["completed"] * 10
    assert [("sub_agents" in tool_names or "children" in tool_names) for tool_names in result.output[10:]] == [
        True,
        True,
    ]


async def test_ac_s0_5_a_childs_memory_is_reserved_and_released(runtime: ramet.AgentRuntime) -> None:
    """AC-S0-5: two children of 300 MB under 512 run one after the other."""
    policy = ramet.Policy(allow_sub_agents=True, memory_mb=512, cpu_cores=1)

    result = await runtime.run_agent(agent=agents.spawn_beyond_memory, args=(0.5,), policy=policy)

    assert result.status == "completed", result.error
    assert result.output["first"][1] <= result.output["second"][0]


async def test_a_parent_can_cancel_one_child(runtime: ramet.AgentRuntime) -> None:
    """105: the parent continues, has the reservation back, and may cancel twice."""
    policy = ramet.Policy(allow_sub_agents=True, memory_mb=512, cpu_cores=1)

    result = await runtime.run_agent(agent=agents.cancel_one, policy=policy)

    assert result.status == "completed", result.error
    assert (result.output["first"], result.output["next"]) == ("cancelled", "completed")
    assert "make room" in result.output["why"]


async def test_map_keeps_order_and_shows_failures(runtime: ramet.AgentRuntime) -> None:
    """18: each item has a result, in order; one failure leaves the other results."""
    result = await runtime.run_agent(agent=agents.fan_out, args=([1, 2, 13, 4],), policy=MAY)

    assert [str(each).rpartition(".")[2] for each in result.output] == ["1", "4", "ValueError", "16"]


async def test_the_roots_usage_counts_agents_of_the_subtree(runtime: ramet.AgentRuntime) -> None:
    """103: the root's usage counts three children."""
    result = await runtime.run_agent(agent=agents.fan_out, args=([1, 2, 3],), policy=MAY)

    assert result.usage.agents == 3


async def test_a_child_sees_no_files_of_its_parent_or_siblings(runtime: ramet.AgentRuntime) -> None:
    """118, NEG-3: each run has a folder of its own."""
    result = await runtime.run_agent(agent=agents.look_for_others, policy=MAY)

    assert result.output == {"of parent": [], "of sibling": []}
