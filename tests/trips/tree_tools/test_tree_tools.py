"""The tools of the tree for a program in a sandbox, over MCP: they reach its own run and what is below, and no more."""

from __future__ import annotations

from typing import Any

import pytest

import ramet
from ramet import Agent, Limits, Policy, ScriptedModel
from ramet.guest.tree_tools.tree_tools import MAX_WAITS
from ramet.models.scripted.dialogue import Hang
from tests.trips.agents import tree_clients
from tests.trips.kits.isolated import backend, runtime

__all__ = ["backend", "runtime"]

TOOLS = ["spawn_agent", "send", "result", "tree", "stop"]
MAY = Policy(models=["*"], allow_sub_agents=True, memory_mb=2048, cpu_cores=8)


def agents() -> dict[str, Agent]:
    """Return definitions of functions and of models, whose dialogues begin anew."""
    scout = ScriptedModel(["The yard is empty.", "Nothing behind it either."])
    return {
        "double": Agent(name="double", function=tree_clients.double, description="Doubles a\n number."),
        "fail": Agent(name="fail", function=tree_clients.fail),
        "deep": Agent(name="deep", function=tree_clients.go_deep),
        "meddle": Agent(name="meddle", function=tree_clients.meddle),
        "scout": Agent(name="scout", model=scout, description="Looks around."),
        "endless": Agent(name="endless", model=ScriptedModel([Hang()])),
    }


async def run(runtime: ramet.AgentRuntime, function: Any, *args: Any, **options: Any) -> Any:
    """Run a function with these agents, and return its value."""
    result = await runtime.run_agent(
        agent=function,
        args=args,
        **{"policy": MAY, "agents": agents(), **options},
    )
    assert result.status == "completed", (result.error, result.stderr)
    return result.output


async def test_a_client_sees_five_tools_and_the_agents_that_it_may_spawn(runtime: ramet.AgentRuntime) -> None:
    """The version of the protocol is the one that the client asked for."""
    begun, pong, listed = await run(runtime, tree_clients.handshake)

    assert begun["result"]["protocolVersion"] == "2025-06-18"
    assert begun["result"]["capabilities"] == {"tools": {}}
    assert pong["result"] == {}
    tools = listed["result"]["tools"]
    assert [each["name"] for each in tools] == TOOLS
    assert tools[0]["inputSchema"]["required"] == ["agent", "prompt"]
    assert "\n- double: Doubles a number.\n" in tools[0]["description"]
    assert tools[0]["description"].endswith("\n- scout: Looks around.")


async def test_a_program_leads_functions_and_models(runtime: ramet.AgentRuntime) -> None:
    """Reports, messages, listings and stops are those of the host."""
    found = await run(runtime, tree_clients.lead)

    spawned, total = found["sum"]
    assert (spawned["path"], total) == ("main/sum", "status: completed\n42")
    assert found["scout"] == "status: completed\nThe yard is empty."
    assert "continues with your message" in found["sent"]
    assert found["again"] == "status: completed\nNothing behind it either."
    assert found["failed"] == "status: failed\nAgent main/3 did not finish: failed (no luck)."
    assert found["early"].startswith("status: running\n(nothing yet)\n[still running")
    own, *below = found["rows"]
    assert (own["path"], own["state"], own["model_calls"]) == ("main", "running", 2)
    assert {each["agent"]: each["state"] for each in below} == {
        "scout": "completed", "fail": "failed", "endless": "running", "double": "completed"
    }  # fmt: skip
    assert [each["waits_for"] for each in below if each["agent"] == "endless"] == ["model"]
    assert [each["description"] for each in below if "description" in each] == ["adds numbers"]
    assert found["stopped"] == {"stopped": ["main/4"], "could_not_be_stopped": []}
    assert found["late"] == "status: cancelled\nAgent main/4 did not finish: cancelled (enough)."
    assert found["stopped_again"].startswith("refused: unknown running agent")


async def test_the_client_of_the_official_sdk_works(runtime: ramet.AgentRuntime) -> None:
    """It negotiates, validates what it gets, and raises for a wrong argument."""
    found = await run(runtime, tree_clients.use_sdk)

    assert found["version"] == "2025-11-25"
    assert found["tools"] == TOOLS
    assert found["result"] == "status: completed\n8"
    is_error, reason = found["refused"]
    assert is_error
    assert reason.startswith("unknown agent 'nobody'")
    assert found["wrong"] == "wait_s: 'long' is not accepted; expected a number of seconds from 0 to 50"


@pytest.mark.parametrize(
    ("options", "arguments", "reason"),
    [
        (
            {"policy": Policy(models=["*"])},
            {},
            "refused: spawn refused (policy.allow_sub_agents): this agent may not start",
        ),
        (
            {"limits": Limits(agents=0)},
            {},
            "refused: spawn refused (budget agents): budget of main: agents asked 1, left 0",
        ),
        ({}, {"agent": "nobody"}, "refused: unknown agent type 'nobody'; known: deep, double, endless, fail, meddle"),
        ({}, {"name": "a/b"}, "refused: name: 'a/b' is not accepted"),
        ({}, {"agent": "scout", "prompt": " "}, "error -32602: prompt: ' ' is not accepted"),
    ],
)
async def test_a_refusal_is_the_result_of_the_tool_with_its_reason(
    runtime: ramet.AgentRuntime, options: dict[str, Any], arguments: dict[str, Any], reason: str
) -> None:
    call = ("spawn_agent", {"agent": "double", "prompt": "1", **arguments})

    [text] = await run(runtime, tree_clients.call_each, [call], **options)

    assert text.startswith(reason)


async def test_waiting_calls_block_no_other(runtime: ramet.AgentRuntime) -> None:
    """While as many calls wait as may, one more is refused at once, and the other tools answer."""
    found = await run(runtime, tree_clients.answer_between, "endless", MAX_WAITS + 1)

    refusal = f"refused: {MAX_WAITS} calls of `result` wait already: call it when one has ended."
    assert found["first"] == [refusal]
    assert [each["path"] for each in found["rows"]] == ["main", "main/1"]
    assert found["sent"] == "Delivered to main/1; it reads it at its next step."
    assert found["ends"][0] == refusal
    assert {each.partition("\n")[0] for each in found["ends"][1:]} == {"status: cancelled"}


async def test_each_level_sees_itself_and_what_is_below(runtime: ramet.AgentRuntime) -> None:
    """A program whose child has a child reads the report that came from three levels down."""
    top, (middle, (low, nothing)) = await run(runtime, tree_clients.deep, 2)

    assert top == ["main", "main/level-2", "main/level-2/level-1"]
    assert middle == ["main/level-2", "main/level-2/level-1"]
    assert (low, nothing) == (["main/level-2/level-1"], None)


async def test_a_run_of_another_branch_cannot_be_read_or_stopped(runtime: ramet.AgentRuntime) -> None:
    """Neither does an error name it."""
    (read, stopped, unknown, paths), hidden = await run(runtime, tree_clients.lead_two_branches)

    assert read.startswith("refused: read run-")
    assert stopped.startswith("refused: stop run-")
    assert "it is not below you" in read
    assert "it is not below you" in stopped
    assert unknown == "refused: unknown agent 'nobody'; `tree` lists the agents below you"
    assert paths == ["main/2"]
    assert hidden.startswith("status: running")


async def test_one_budget_holds_over_all_that_a_program_spawns(runtime: ramet.AgentRuntime) -> None:
    """One of the two calls is kept for a last answer of the program's run."""
    handle = await runtime.start_agent(
        agent=tree_clients.ask_twice, args=("scout",), policy=MAY, agents=agents(), limits=Limits(model_calls=2)
    )
    result = await handle.result()

    first, second = result.output
    assert first == "status: completed\nThe yard is empty."
    assert second.startswith("status: budget_exhausted\n")
    assert result.usage.model_calls == 1
