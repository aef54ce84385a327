"""Each program lists and calls the tools of its tree, in a sandbox, by its own client of MCP."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import ramet
from ramet import Agent, Policy
from ramet.wire.external_program import TREE_SERVER
from tests.agents import tree_programs
from tests.agents.scripts import ANSWERS, SPEAKS_ACP, TITLES, each, mcp_tool, turns
from tests.agents.test_in_clone import start_repository
from tests.agents.test_in_tree import agent_of, installed_programs
from tests.support.agent_programs import INSTALLED, PINS, Program, executables
from tests.support.providers import Call, Script, Step, provider
from tests.trips.agents.tree_clients import double
from tests.trips.kits.forwarding import host_key, use_server

__all__ = ["host_key", "installed_programs"]

REPLY = "It is forty-two."
POLICY = Policy(
    models=["*"],
    allow_sub_agents=True,
    memory_mb=3_000,
    pids=256,
    tmpfs_size_mb=200,
    workspace_size_mb=300,
    readonly_mounts=(str(INSTALLED), str(PINS)),
)


async def lead(
    function: Callable[..., Any], program: Program, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[dict[str, Any], list[str], ramet.AgentResult]:
    """Have a program spawn a function, read its result, and look at the tree; return what its model got."""

    def call(tool: str, **arguments: Any) -> Call:
        return Call(mcp_tool(program.name, tree_programs.SERVER, tool), arguments)

    steps: list[Step] = [
        call("spawn_agent", agent="double", prompt="21", name="sum"),
        call("result", id="main/sum", wait_s=50),
        call("stop", id="parent"),
        REPLY,
    ]
    script: Script = {**TITLES, "[lead]": steps}
    agents = {"double": Agent(name="double", function=double, description="Doubles a number.")}
    async with provider(script) as server, ramet.AgentRuntime(working_dir=folder, backend="bwrap") as runtime:
        use_server(monkeypatch, server.url)
        result = await runtime.run_agent(
            agent=function, args=(program.name, "Please [lead]."), policy=POLICY, agents=agents
        )
        assert result.status == "completed", (result.error, result.stderr)
        return result.output, [json.dumps(each.body) for each in turns(server.requests)], result


def check(found: dict[str, Any], requests: list[str], result: ramet.AgentResult) -> None:
    """Check that a program saw the tools, and that its model got what they returned."""
    assert len(requests) == 4, (found, len(requests))
    assert "Doubles a number." in requests[0] or "tree" in requests[0], found
    assert "main/sum" in requests[1]
    assert "status: completed" in requests[2]
    assert "unknown agent" in requests[3]
    assert result.usage.agents == 1
    assert REPLY in found["text"], found


@pytest.mark.usefixtures("host_key")
@each(SPEAKS_ACP)
async def test_a_program_leads_agents_over_acp(
    program: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The session has the server as one over HTTP."""
    check(*await lead(tree_programs.lead_over_acp, program, tmp_path, monkeypatch))


@pytest.mark.usefixtures("host_key")
@each(ANSWERS)
async def test_a_program_leads_agents_by_its_configuration(
    program: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each kind of configuration takes a server over HTTP with the key in a header."""
    check(*await lead(tree_programs.lead_by_prompt, program, tmp_path, monkeypatch))


@pytest.mark.usefixtures("host_key", "installed_programs")
@each(("claude-code", "codex"))
async def test_a_program_that_answers_one_prompt_has_the_tools_of_its_tree(
    program: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A preset configures the server, which nobody needs to allow; also where the program works in a clone."""
    start_repository(tmp_path / "repo")

    def call(tool: str, **arguments: Any) -> Call:
        return Call(mcp_tool(program.name, TREE_SERVER, tool), arguments)

    steps: list[Step] = [
        call("spawn_agent", agent="double", prompt="21", name="sum"),
        call("result", id="sum", wait_s=50),
        REPLY,
    ]
    mode = "ask" if program.name == "claude-code" else "allow"
    lead = agent_of(program, permission_mode=mode).replace(isolation="worktree")
    agents = {"double": Agent(name="double", function=double, description="Doubles a number.")}
    async with (
        provider({**TITLES, "[lead]": steps}) as server,
        ramet.AgentRuntime(working_dir=tmp_path / "kernel", backend="bwrap") as runtime,
    ):
        use_server(monkeypatch, server.url)
        result = await runtime.run_agent(
            lead, Policy(allow_sub_agents=True), prompt="Please [lead].", agents=agents, cwd=tmp_path / "repo"
        )

    assert result.status == "completed", (result.error, result.stderr)
    assert (result.output, result.usage.agents) == (REPLY, 1)
    assert "status: completed" in json.dumps(turns(server.requests)[-1].body)


@pytest.mark.usefixtures("host_key")
@pytest.mark.agents("claude-agent-acp", "codex-acp")
async def test_claude_code_leads_codex_which_leads_a_function(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The report of the third level reaches the first, and one budget has paid for all."""
    monkeypatch.setenv("PATH", os.pathsep.join([*map(str, executables()), os.environ["PATH"]]))

    def call(program: str, tool: str, **arguments: Any) -> Call:
        return Call(mcp_tool(program, TREE_SERVER, tool), arguments)

    script: Script = {
        **TITLES,
        "[lead]": [
            call("claude-agent-acp", "spawn_agent", agent="coder", prompt="Please [code].", name="below"),
            call("claude-agent-acp", "result", id="below", wait_s=50),
            REPLY,
        ],
        "[code]": [
            call("codex-acp", "spawn_agent", agent="double", prompt="21", name="sum"),
            call("codex-acp", "result", id="sum", wait_s=50),
            "The function says forty-two.",
        ],
    }
    claude, codex = (ramet.External(preset=each, permission_mode="allow") for each in ("claude-code", "codex"))
    agents = {
        "coder": Agent(name="coder", external=codex, model="openai:gpt-5.5"),
        "double": Agent(name="double", function=double),
    }
    lead = Agent(name="lead", external=claude, model="anthropic:claude-sonnet-5-5")
    policy = Policy(models=["anthropic:*", "openai:*"], allow_sub_agents=True, memory_mb=3_500, pids=512)
    async with provider(script) as server, ramet.AgentRuntime(working_dir=tmp_path, backend="bwrap") as runtime:
        use_server(monkeypatch, server.url)
        result = await runtime.run_agent(
            lead, policy, prompt="Please [lead].", agents=agents, limits=ramet.Limits(usd=20)
        )

    assert result.status == "completed", (result.error, result.stderr)
    assert result.output.endswith(REPLY)
    reports = [json.dumps(each.body) for each in turns(server.requests)]
    assert any("The function says forty-two." in each and "[lead]" in each for each in reports)
    assert any("status: completed" in each and "42" in each and "[lead]" not in each for each in reports)
    assert len(reports) == 6  # No model was asked whether a call is allowed.
    assert result.usage.agents == 2
    assert 0 < result.usage.usd < 20
