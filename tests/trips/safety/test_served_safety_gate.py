"""A served agent of the type "llm" with a gate: no tool call bypasses the policy."""

from __future__ import annotations

import pathlib

import pytest

from ramet import AgentRuntime, Policy, ScriptedModel
from ramet.core.errors import InvalidValue, Unknown
from ramet.core.safety import Rule, SafetyPolicy
from ramet.host.safety.inspection import GateEventFilter, passages
from ramet.host.safety.policies import SafetyPolicies
from ramet.models.scripted.dialogue import Call
from ramet.services.agent_types.function.type import FunctionInfo, FunctionType
from ramet.services.agent_types.llm.type import LlmInfo, LlmType
from ramet.services.contract import RunningAgent
from tests.trips.teams.test_agent_types import (
    FUNCTIONS,
    Backend,
    agent_spec,
    lost_runtime,
    new_runtime,
    open_agent,
    say,
)

READS = Call("Bash", {"command": "cat secret; echo done"})
BASH = SafetyPolicy(rules=(Rule(tool="Bash", verdict="deny", reason="no shell here"),), otherwise="allow")
INFO = LlmInfo(model="one", tools=["Bash"], gate="house")


def kind(words: str) -> LlmType:
    """Return the type of an agent that calls the tool and then says some words."""
    return LlmType({"one": ScriptedModel([READS, words])})


async def put_policy(runtime: AgentRuntime, policy: SafetyPolicy, expected: int) -> None:
    """Store a policy as the current version of `house`."""
    await SafetyPolicies(await runtime.open_store()).put("house", policy, expected=expected)


async def tool_results(agent: RunningAgent) -> list[str]:
    """Return the results of the agent's tool calls."""
    return [each["content"] for each in await agent.history() if each["role"] == "tool"]


@pytest.mark.parametrize("backend", [None, "local"], ids=["host", "local"])
async def test_a_call_runs_only_if_the_current_policy_allows_it(tmp_path: pathlib.Path, backend: str | None) -> None:
    """The policy at the time of the call decides, in a sandbox as in the host."""
    policy = Policy() if backend else None
    async with AgentRuntime(tmp_path, backend="local") as runtime:
        await put_policy(runtime, BASH, 0)
        model = LlmType({"one": ScriptedModel([READS, "I may not.", READS, "Now I did."])})
        start = agent_spec(runtime, tmp_path / "ada", INFO, policy=policy)
        async with open_agent(model, start) as agent:
            assert await say(agent, "Read it") == "I may not."
            assert await tool_results(agent) == ["Blocked by the safety gate: rules: no shell here"]
            await put_policy(runtime, SafetyPolicy(otherwise="allow"), 1)
            assert await say(agent, "Again") == "Now I did."
            assert "done" in (await tool_results(agent))[1]


@pytest.mark.parametrize("is_killed", [True, False], ids=["killed", "stopped"])
async def test_an_agent_keeps_its_gate_after_a_restart(tmp_path: pathlib.Path, is_killed: bool) -> None:
    """The run resumes with its gate, whether the server was killed or stopped."""
    async with lost_runtime(tmp_path, None) if is_killed else new_runtime(tmp_path, None) as runtime:
        await put_policy(runtime, BASH, 0)
        first = await kind("I may not.").open(agent_spec(runtime, tmp_path / "ada", INFO))
        assert await say(first, "Read it") == "I may not."
        run = first.run
    async with new_runtime(tmp_path, None) as runtime:
        async with open_agent(kind("Still not."), agent_spec(runtime, tmp_path / "ada", INFO, run=run)) as second_agent:
            assert second_agent.run == run
            assert await say(second_agent, "Read it") == "Still not."
            assert await tool_results(second_agent) == ["Blocked by the safety gate: rules: no shell here"] * 2


@pytest.mark.parametrize(("gate", "error"), [("house", Unknown), ("no such/name", InvalidValue)], ids=["none", "bad"])
async def test_an_agent_with_an_unknown_policy_is_refused(
    tmp_path: pathlib.Path, gate: str, error: type[Exception]
) -> None:
    """Check and open both refuse, so no agent runs without the gate that was asked for."""
    async with AgentRuntime(tmp_path) as runtime:
        start = agent_spec(runtime, tmp_path / "ada", LlmInfo(model="one", gate=gate))
        with pytest.raises(error, match=gate):
            await kind("").check(start)
        with pytest.raises(error, match=gate):
            await kind("").open(start)
        assert not runtime.trees


STARTS = FunctionInfo(function=f"{FUNCTIONS}:starts", gate="house")
SHOUTING = SafetyPolicy(
    rules=(
        Rule(tool="spawn_sub_agent", args={"function": "shout"}, verdict="allow"),
        Rule(tool="spawn_sub_agent", verdict="deny", reason="who shouts only"),
    )
)


@pytest.mark.parametrize("backend", ["local", "bwrap"])
async def test_a_gate_decides_about_spawns_and_mail_of_sandboxed_code(tmp_path: pathlib.Path, backend: Backend) -> None:
    """Spawns and mail are intended and decided before they happen. A denied spawn starts no run."""
    kind = FunctionType([FUNCTIONS])
    async with AgentRuntime(tmp_path, backend=backend) as runtime:
        await put_policy(runtime, SHOUTING, 0)
        start = agent_spec(runtime, tmp_path / "ada", STARTS, policy=Policy(allow_sub_agents=True))
        await kind.check(start)
        async with open_agent(kind, start) as agent:
            assert await say(agent, "hello") == "HELLO"
            runs = [agent.run]
            assert (
                await say(agent, "repeat") == "Denied: spawn_sub_agent denied: the safety gate: rules: who shouts only"
            )
            runs.append(agent.run)
            assert (await say(agent, "mail me")).startswith("Denied: send_message denied: the safety gate: ")
        assert runtime.journal is not None
        store = await runtime.open_store()
        for run, is_spawned in zip(runs, [1, 0], strict=True):
            intention, decision = (await passages(store, GateEventFilter(tree=run))).entries
            assert (intention.kind, decision.kind) == ("intention", "decision")
            assert intention.event.args["function"] == ("shout" if is_spawned else "yields")  # type: ignore[union-attr]
            children = [each for each in (await runtime.journal.replay(run)).runs.values() if each.spawn_event.depth]
            assert len(children) == is_spawned
            assert all(each.spawn_event.seq > decision.event.seq for each in children)


async def test_a_function_in_the_host_cannot_have_a_gate(tmp_path: pathlib.Path) -> None:
    """A gate is refused for a function of the host, which could bypass it, and so is an unknown policy."""
    kind = FunctionType([FUNCTIONS])
    async with AgentRuntime(tmp_path, backend="local") as runtime:
        for policy, error in ((None, InvalidValue), (Policy(), Unknown)):
            start = agent_spec(runtime, tmp_path / "ada", STARTS, policy=policy)
            for attempt in (kind.check, kind.open):
                with pytest.raises(error):
                    await attempt(start)
        assert not runtime.trees
