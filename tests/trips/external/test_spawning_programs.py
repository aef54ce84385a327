"""Agents that are programs of other makers start agents themselves, with the tools of their tree."""

from __future__ import annotations

import ramet
from ramet import Agent, Policy
from ramet.core.outcome import Status
from tests.trips.agents.tree_clients import double
from tests.trips.kits.external import script, scripted
from tests.trips.kits.isolated import runtime
from tests.trips.kits.isolated import usual_backend as backend

__all__ = ["backend", "runtime"]

MAY = Policy(allow_sub_agents=True, memory_mb=1024, cpu_cores=8)
WAIT = {"wait_s": 50}


async def test_a_program_that_may_spawn_gets_the_tools_with_its_session(runtime: ramet.AgentRuntime) -> None:
    """Through a program that it starts it reads what a function at the third level returned."""
    inner = script(
        ["tool", "spawn_agent", {"agent": "double", "prompt": "21", "name": "sum"}],
        ["tool", "result", {"id": "sum", **WAIT}],
    )
    outer = script(
        ["tool", "spawn_agent", {"agent": "coder", "prompt": inner, "name": "below"}],
        ["tool", "result", {"id": "below", **WAIT}],
        ["tool", "tree", {}],
    )
    agents = {"coder": scripted(), "double": Agent(name="double", function=double)}

    result = await runtime.run_agent(scripted("lead"), MAY, prompt=outer, agents=agents)

    assert result.status is Status.COMPLETED, (result.error, result.stderr)
    assert "status: completed\n42" in result.output
    assert '"path": "main/below/sum", "agent": "double", "state": "completed"' in result.output
    assert result.usage.agents == 2


async def test_a_program_that_may_not_spawn_has_no_tools(runtime: ramet.AgentRuntime) -> None:
    result = await runtime.run_agent(scripted(), prompt=script(["tool", "tree", {}]))

    assert (result.status, result.output) == (Status.COMPLETED, "no tools"), (result.error, result.stderr)
