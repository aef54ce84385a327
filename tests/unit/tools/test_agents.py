"""The tools by which a model leads other agents: their descriptions, and their arguments."""

from __future__ import annotations

import json
from typing import Any

import pytest
from langchain_core.messages.tool import tool_call
from langchain_core.tools import BaseTool
from langchain_core.utils.function_calling import convert_to_openai_tool

from ramet.agent.definition import Agent
from ramet.core.events import RunSpawned
from ramet.host.session import Session
from ramet.models.scripted.dialogue import Script
from ramet.models.scripted.model import Call, ScriptedModel
from ramet.tools.agents.agents import OUTPUT_WAIT_MAX_S, agent_tool, companion_tools
from ramet.tools.dispatch import is_async, run_tools, tool_flag
from tests.support.context import make_context
from tests.trips.kits.sessions import answers, background_call, of_kind, run_of, session_events, specialist_call

ALL: list[BaseTool] = [agent_tool({}), *companion_tools()]


def parameters(tool: BaseTool) -> dict[str, Any]:
    """Return what a provider receives about the arguments of a tool."""
    schema: dict[str, Any] = convert_to_openai_tool(tool)["function"]["parameters"]
    return schema


def test_the_agent_tool_needs_only_a_prompt() -> None:
    """Arguments have their usual names, and only `prompt` is required."""
    schema = parameters(agent_tool({}))

    assert schema["required"] == ["prompt"]
    assert set(schema["properties"]) == {
        "prompt",
        "name",
        "description",
        "subagent_type",
        "mode",
        "model",
        "run_in_background",
        "background_after_s",
        "isolation",
        "cwd",
    }


def test_the_agent_tool_lists_the_types_with_their_descriptions() -> None:
    """A model chooses by description: each type is in the text of the tool, in the given order."""
    listing = agent_tool({"explore": "Finds things.", "plan": "Makes plans."}).description

    assert listing.endswith("Types:\n- explore: Finds things.\n- plan: Makes plans.")
    assert "Types" not in agent_tool({}).description


@pytest.mark.parametrize("tool", ALL, ids=lambda tool: tool.name)
def test_each_tool_describes_itself(tool: BaseTool) -> None:
    """Each has a description, a schema that is plain JSON, and runs in the event loop."""
    assert tool.description
    assert is_async(tool)
    assert json.loads(json.dumps(parameters(tool)))["type"] == "object"


def test_only_waiting_tools_need_no_place() -> None:
    """Agent and TaskOutput wait for other runs: they have no timeout of ours, and no share of the parallel calls."""
    assert {tool.name for tool in ALL if tool_flag(tool, "waits")} == {"Agent", "TaskOutput"}
    assert {tool.name for tool in ALL if tool_flag(tool, "concurrency_safe")} == {"Agent", "TaskOutput", "ListAgents"}


@pytest.mark.parametrize(
    ("name", "args"),
    [
        ("Agent", {"prompt": "x"}),
        ("SendMessage", {"to": "a", "message": "b"}),
        ("TaskOutput", {"task_id": "a"}),
        ("TaskStop", {"task_id": "a"}),
        ("ListAgents", {}),
    ],
)
async def test_tools_without_a_tree_return_an_error(name: str, args: dict[str, Any]) -> None:
    """A loop outside a runtime has nobody to lead: the result is an error, not a crash."""
    context = make_context(None, ALL)

    (answer,) = await run_tools(context, [tool_call(name=name, args=args, id="1")])

    assert answer.status == "error"
    assert "There is no runtime here" in answer.text


@pytest.mark.parametrize(
    ("call", "complaint"),
    [
        (Call("Agent", {"prompt": "x", "agent_type": "y"}), "agent_type"),
        (Call("SendMessage", {"to": "main"}), "message"),
        (Call("TaskOutput", {"task_id": "a", "timeout": OUTPUT_WAIT_MAX_S + 1}), "timeout"),
        (Call("TaskOutput", {"task_id": "a", "timeout": -1}), "timeout"),
        (Call("TaskStop", {}), "task_id"),
    ],
    ids=lambda value: value.tool if isinstance(value, Call) else value,
)
async def test_wrong_arguments_are_named(call: Call, complaint: str) -> None:
    """The model receives a short error for unknown and missing arguments and for bad values, and nothing happens."""
    async with Session(ScriptedModel([call, "ok"])) as session:
        await session.ask("Go.")
        (result,) = answers(session.messages).values()
        spawns = of_kind(session_events(session), RunSpawned)

    assert complaint in result
    assert len(result) < 1_500
    assert len(spawns) == 1


async def test_a_call_becomes_a_recorded_spawn() -> None:
    """Name, brief, description and the id of the call are recorded with the spawn."""
    call = Call("Agent", {"prompt": "toil", "name": "log reader!", "subagent_type": "general-purpose"}, id="call-7")
    async with Session(ScriptedModel({"toil": ["done"], "": [call, "ok"]})) as session:
        await session.ask("Go.")
        (_, spawn_event) = of_kind(session_events(session), RunSpawned)

    assert (spawn_event.name, spawn_event.prompt, spawn_event.parent_call, spawn_event.mode) == (
        "log-reader",
        "toil",
        "call-7",
        "fresh",
    )
    assert spawn_event.description == "log reader!"  # falls back to the name
    assert spawn_event.background is False


async def test_empty_strings_count_as_missing() -> None:
    """Models fill in empty strings for what they omit: those mean nothing, not a type called ''."""
    call = Call("Agent", {"prompt": "toil", "name": "", "subagent_type": "", "model": "", "cwd": "", "description": ""})
    async with Session(ScriptedModel({"toil": ["done"], "": [call, "ok"]})) as session:
        await session.ask("Go.")
        (_, spawn_event) = of_kind(session_events(session), RunSpawned)

    assert spawn_event.mode == "fork"
    assert spawn_event.path == "main/1"


async def test_a_definition_may_run_its_agent_in_the_background() -> None:
    """`background` of a definition holds where the call says nothing, and not where it says no."""
    worker = Agent(name="worker", description="Works.", instructions="You are a worker.", background=True)
    calls = [
        Call("Agent", {"prompt": "a", "subagent_type": "worker"}),
        Call("Agent", {"prompt": "b", "subagent_type": "worker", "run_in_background": False}),
    ]
    model = ScriptedModel({"You are a worker": ["done"], "": [calls, "ok", "noted"]})
    async with Session(model, agents=[worker]) as session:
        await session.ask("Go.")
        first, second = answers(session.messages).values()

    assert first.startswith("Started in the background: task_id=run-")
    assert second == "done"


async def test_output_can_be_read_without_waiting() -> None:
    """`block: false` gives the state and the text so far; with `block`, the wait has a limit."""
    hang = Call("TaskOutput", {"task_id": "w", "block": False})
    wait = Call("TaskOutput", {"task_id": "w", "timeout": 0})
    script: Script = {
        "toil": [Call("TaskOutput", {"task_id": "nobody"}), "found"],
        "": [background_call("toil", "w"), hang, wait, "ok", "ok"],
    }
    async with Session(ScriptedModel(script)) as session:
        await session.ask("Go.")
        results = list(answers(session.messages).values())

    assert results[1].startswith(("status: starting\n", "status: running\n", "status: completed\n"))
    assert results[2].startswith(("status: starting\n", "status: running\n", "status: completed\n"))


async def test_only_descendants_can_be_read_or_stopped() -> None:
    """A run cannot read the findings of a sibling, nor stop it."""
    model = ScriptedModel(
        {
            "TOIL-B": [[Call("TaskOutput", {"task_id": "a"}), Call("TaskStop", {"task_id": "a"})], "ok"],
            "TOIL-A": ["found"],
            "": [specialist_call("TOIL-A", "a"), specialist_call("TOIL-B", "b"), "ok"],
        }
    )
    async with Session(model) as session:
        await session.ask("Go.")
        results = list(answers(run_of(session, "b").context.history).values())

    assert results == ["read a denied: it is not below you", "stop a denied: it is not below you"]
