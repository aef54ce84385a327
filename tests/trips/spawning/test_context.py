"""AC-S1-2 to AC-S1-4: what a child knows and may use, and how little of its work shows in its parent."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import AIMessage, ToolMessage
from langchain_core.tools import BaseTool, tool

from ramet.agent.context import FORK_PENDING
from ramet.agent.definition import Agent
from ramet.core.events import RunSpawned
from ramet.core.limits import SpawnLimits
from ramet.core.outcome import Status
from ramet.host.session import Session
from ramet.models.scripted.dialogue import Script
from ramet.models.scripted.model import Call, ScriptedModel
from ramet.tools.context import current
from ramet.tools.workspace import workspace_tools
from tests.support.providers import provider
from tests.trips.kits.sessions import (
    answers,
    async_tool,
    brief_of,
    encoded_messages,
    fork_call,
    is_valid,
    of_kind,
    run_of,
    session_events,
    specialist_call,
    typed_texts,
    write_files,
)


@tool
def note(text: str) -> str:
    """Keep a note."""
    return f"kept {text}"


# --- AC-S1-2: fresh and fork


async def test_a_fresh_child_knows_its_brief_and_its_definition_only() -> None:
    """AC-S1-2: its first request has its own system prompt and brief, and no text of its parent."""
    scout = Agent(name="scout", description="Looks.", instructions="You are a scout.")
    call = Call("Agent", {"prompt": "look around", "subagent_type": "scout"})
    model = ScriptedModel({"You are a scout": ["All quiet."], "": [Call("note", {"text": "private"}), call, "ok"]})
    async with Session(model, [note], agents=[scout], system_prompt="You are the root.") as session:
        await session.ask("A private question.")

    (request,) = [each for each in model.requests if brief_of(each.messages) == "look around"]
    assert typed_texts(request.messages) == [("system", "You are a scout."), ("human", "look around")]


#: The second turn spawns two forks in one reply, behind a call that is answered before they are born.
FORKING: Script = {
    "FORK ONE": [Call("note", {"text": "mine"}), "one is done"],
    "FORK TWO": ["two is done"],
    "The question": [
        [
            Call("note", {"text": "first"}, id="note-1"),
            Call("Agent", {"prompt": "FORK ONE"}, id="fork-1"),
            Call("Agent", {"prompt": "FORK TWO"}, id="fork-2"),
        ],
        "both are done",
    ],
    "Earlier": [Call("note", {"text": "earlier"}), "An earlier answer."],
}


async def test_a_fork_s_first_request_begins_with_its_parent_s_exact_input() -> None:
    """AC-S1-2: the parent's exact input comes first, then its reply, an answer to every open call, and the brief."""
    model = ScriptedModel(FORKING)
    async with Session(model, [note], system_prompt="You are the root.") as session:
        await session.ask("Earlier question.")
        await session.ask("The question.")
        reply = session.messages[5]

    parent = next(each for each in model.requests if each.messages[-1].text == "The question.")
    for brief in ("FORK ONE", "FORK TWO"):
        request = next(each for each in model.requests if each.messages[-1].text.endswith(brief))
        size = len(parent.messages)
        assert encoded_messages(request.messages[:size]) == encoded_messages(parent.messages)
        assert isinstance(reply, AIMessage)
        assert encoded_messages([request.messages[size]]) == encoded_messages([reply])
        assert request.tools == parent.tools
        assert answers(request.messages[size:]) == dict.fromkeys(("note-1", "fork-1", "fork-2"), FORK_PENDING)
        assert is_valid(request.messages)
        assert len(request.messages) == size + 5


async def test_only_a_fork_s_result_comes_back() -> None:
    """AC-S1-2: the parent's history gets the fork's final answer, and no other message of the fork."""
    async with Session(ScriptedModel(FORKING), [note]) as session:
        await session.ask("Earlier question.")
        before = len(session.messages)

        await session.ask("The question.")

        added_messages = session.messages[before:]
    assert [message.type for message in added_messages] == ["human", "ai", "tool", "tool", "tool", "ai"]
    assert answers(added_messages) == {"note-1": "kept first", "fork-1": "one is done", "fork-2": "two is done"}


@pytest.mark.parametrize("which", ["anthropic", "openai"])
async def test_a_fork_s_prefix_is_identical_on_the_wire(which: str) -> None:
    """AC-S1-2: tools, system and messages have the same bytes for parent and fork, so a provider can cache them."""
    async with provider(FORKING) as server:
        llm = server.anthropic() if which == "anthropic" else server.openai()
        async with Session(llm, [note], system_prompt="You are the root.") as session:
            await session.ask("Earlier question.")
            await session.ask("The question.")

    def bytes_of(value: Any) -> str:
        return json.dumps(value)

    parent = next(body for body in server.bodies if body["messages"][-1]["content"] == "The question.")
    for brief in ("FORK ONE", "FORK TWO"):
        child = next(body for body in server.bodies if brief in bytes_of(body["messages"][-1]))
        assert bytes_of(child["tools"]) == bytes_of(parent["tools"])
        assert bytes_of(child.get("system")) == bytes_of(parent.get("system"))
        assert bytes_of(child["messages"]).startswith(bytes_of(parent["messages"])[:-1])
        assert child["messages"][len(parent["messages"])]["role"] == "assistant"


async def test_a_fork_can_fork_again() -> None:
    """The second fork has the first fork's own input as its prefix."""
    model = ScriptedModel(
        {
            "SECOND LEVEL": ["deep"],
            "FIRST LEVEL": [fork_call("SECOND LEVEL"), "middle"],
            "": [fork_call("FIRST LEVEL"), "top"],
        }
    )
    async with Session(model) as session:
        result = await session.ask("Go.")

    assert result.value == "top"
    first = next(each for each in model.requests if each.messages[-1].text.endswith("FIRST LEVEL"))
    second = next(each for each in model.requests if each.messages[-1].text.endswith("SECOND LEVEL"))
    assert encoded_messages(second.messages[: len(first.messages)]) == encoded_messages(first.messages)
    assert is_valid(second.messages)


async def test_at_the_depth_limit_a_fork_keeps_the_agent_tool_and_is_refused() -> None:
    """A fork's tools are exactly its parent's. Its spawn is refused, with the limit as the reason."""
    model = ScriptedModel({"LEVEL ONE": [fork_call("LEVEL TWO"), "did it myself"], "": [fork_call("LEVEL ONE"), "ok"]})
    async with Session(model, spawn_limits=SpawnLimits(depth=1)) as session:
        await session.ask("Go.")

    first, last = [each for each in model.requests if "LEVEL ONE" in str(each.messages[3:])][:2]
    assert first.tools == model.requests[0].tools
    assert "spawn refused (depth)" in str(last.messages[-1].text)
    assert "free now: 0" in str(last.messages[-1].text)


async def test_at_the_depth_limit_a_fresh_child_does_not_see_the_agent_tool() -> None:
    """A fresh child that may not spawn is not offered the tool for it."""
    model = ScriptedModel({"brief": ["done"], "": [specialist_call("brief"), "ok"]})
    async with Session(model, [note], spawn_limits=SpawnLimits(depth=1)) as session:
        await session.ask("Go.")

    assert "Agent" in model.requests[0].tools
    assert "Agent" not in model.requests[1].tools
    assert "note" in model.requests[1].tools


async def test_omitted_type_configures_spawns_without_a_type() -> None:
    """A spawn without a type is a fresh child under `omitted_type="general-purpose"`. `mode="fork"` still forks."""
    model = ScriptedModel(
        {"PLAIN": ["a"], "COPY": ["b"], "": [fork_call("PLAIN"), fork_call("COPY", mode="fork"), "ok"]}
    )
    async with Session(model, omitted_type="general-purpose") as session:
        await session.ask("Go.")
        modes = [event.mode for event in of_kind(session_events(session), RunSpawned)[1:]]

    assert modes == ["fresh", "fork"]
    assert typed_texts(model.requests[1].messages)[1:] == [("human", "PLAIN")]


# --- AC-S1-3: which tools


def reader(**metadata: Any) -> BaseTool:
    async def peek() -> str:
        """Look at something."""
        return "seen"

    return async_tool(peek, **metadata)


LEADING = {"Agent", "SendMessage", "TaskOutput", "TaskStop", "ListAgents"}


@pytest.mark.parametrize(
    ("definition", "tools"),
    [
        ({}, {"note", "peek"} | LEADING),
        ({"tools": ["note"]}, {"note"}),
        ({"tools": ["note", "Agent"]}, {"note", "Agent"}),
        ({"tools": ["note", "Task"]}, {"note", "Agent"}),
        ({"disallowed_tools": ["note"]}, {"peek"} | LEADING),
        ({"tools": ["note", "peek"], "disallowed_tools": ["note"]}, {"peek"}),
        ({"tools": ["note", "nonsense"]}, {"note"}),
        ({"tools": []}, set()),
        ({"tools": ["*"], "disallowed_tools": ["Agent"]}, {"note", "peek"} | LEADING - {"Agent"}),
    ],
    ids=["inherit", "allow", "allow Agent", "alias", "deny", "deny first", "one unknown", "none", "all but one"],
)
async def test_a_child_gets_the_tools_of_its_definition(definition: dict[str, Any], tools: set[str]) -> None:
    """AC-S1-3: the first request offers the result of the allow and deny lists, and no unknown tool."""
    worker = Agent(name="worker", description="Works.", instructions="You are a worker.", **definition)
    call = Call("Agent", {"prompt": "work", "subagent_type": "worker"})
    model = ScriptedModel({"You are a worker": ["done"], "": [call, "ok"]})
    async with Session(model, [note, reader()], agents=[worker]) as session:
        await session.ask("Go.")

    assert set(model.requests[1].tools) == tools


@pytest.mark.parametrize(
    "definition", [{"tools": ["nonsense", "Writ"]}, {"tools": ["note"], "disallowed_tools": ["note"]}]
)
async def test_a_child_without_any_known_tool_is_refused(definition: dict[str, Any]) -> None:
    """AC-S1-3: every entry is unknown or denied, so no child starts, and the parent's model reads the entries."""
    worker = Agent(name="worker", description="Works.", **definition)
    model = ScriptedModel([Call("Agent", {"prompt": "work", "subagent_type": "worker"}), "ok"])
    async with Session(model, [note], agents=[worker]) as session:
        await session.ask("Go.")
        spawns = of_kind(session_events(session), RunSpawned)

    assert len(spawns) == 1
    for entry in definition["tools"]:
        assert entry in model.requests[1].messages[-1].text


async def test_a_tool_that_is_not_for_children_stays_with_the_root() -> None:
    """AC-S1-3: a tool with `children: False` is offered to the root and to no child, whatever its definition lists."""
    worker = Agent(name="worker", description="Works.", instructions="You are a worker.", tools=["note", "peek"])
    call = Call("Agent", {"prompt": "work", "subagent_type": "worker"})
    model = ScriptedModel({"You are a worker": ["done"], "": [call, "ok"]})
    async with Session(model, [note, reader(children=False)], agents=[worker]) as session:
        await session.ask("Go.")

    assert "peek" in model.requests[0].tools
    assert model.requests[1].tools == ("note",)


async def test_an_agent_may_be_restricted_to_some_types() -> None:
    """`Agent(helper)` in a definition offers that type only, and refuses others, also below that agent."""
    boss = Agent(name="boss", description="Leads.", instructions="You are a boss.", tools=["Agent(helper)"])
    helper = Agent(name="helper", description="Helps.", instructions="You are a helper.")
    model = ScriptedModel(
        {
            "You are a boss": [
                [Call("Agent", {"prompt": "x", "subagent_type": name}) for name in ("explore", "helper")],
                "ok",
            ],
            "You are a helper": [Call("Agent", {"prompt": "y", "subagent_type": "explore"}), "helped"],
            "": [Call("Agent", {"prompt": "lead", "subagent_type": "boss"}), "ok"],
        }
    )
    async with Session(model, agents=[boss, helper]) as session:
        await session.ask("Go.")
        boss_run, helper_run = run_of(session, "main/1"), run_of(session, "main/1/1")
        spawns = [event.agent for event in of_kind(session_events(session), RunSpawned)]
        assert offered_builtin_types(session) == ["general-purpose"], "the session has none of the tools of the others"

    listing = next(each.description for each in boss_run.context.tools if each.name == "Agent")
    assert ("- helper: Helps." in listing, "- explore:" in listing) == (True, False)
    assert spawns == ["main", "boss", "helper"]
    assert "unknown agent type 'explore'" in str(typed_texts(boss_run.context.history))
    assert "unknown agent type 'explore'" in str(typed_texts(helper_run.context.history))


def offered_builtin_types(session: Session) -> list[str]:
    """Return the built-in types that the main agent of a session is offered."""
    listing = next(each.description for each in run_of(session, "main").context.tools if each.name == "Agent")
    return [name for name in ("general-purpose", "explore", "plan") if f"- {name}: " in listing]


async def test_read_only_agents_cannot_write(tmp_path: Path) -> None:
    """The built-in `explore` and `plan` get tools that read, and cannot spawn an agent that could write."""
    model = ScriptedModel(
        {
            "task": ["done"],
            "": [[Call("Agent", {"prompt": "task", "subagent_type": kind}) for kind in ("explore", "plan")], "ok"],
        }
    )
    async with Session(model, workspace_tools(), cwd=tmp_path) as session:
        await session.ask("Go.")
        assert offered_builtin_types(session) == ["general-purpose", "explore", "plan"]

    for request in model.requests[1:3]:
        assert set(request.tools) == {"Read", "Glob", "Grep"}


# --- AC-S1-4: own state


async def test_a_child_s_changes_do_not_show_in_its_parent() -> None:
    """AC-S1-4: a child has its own state, todo list, file cache and conversation."""

    async def scribble(todo: str) -> str:
        """Change whatever can be changed."""
        context = current()
        context.state.setdefault("todos", []).append(todo)
        context.file_cache[todo] = "read"
        return f"todos: {context.state['todos']}, read: {sorted(context.file_cache)}"

    model = ScriptedModel(
        {
            "child's task": [Call("scribble", {"todo": "child's"}), "done"],
            "": [Call("scribble", {"todo": "parent's"}), specialist_call("child's task", "child"), "ok"],
        }
    )
    async with Session(model, [async_tool(scribble)]) as session:
        await session.ask("Go.")
        parent, child = run_of(session, "main"), run_of(session, "child")

    assert parent.context.state == {"todos": ["parent's"]}
    assert set(parent.context.file_cache) == {"parent's"}
    assert child.context.state == {"todos": ["child's"]}
    assert set(child.context.file_cache) == {"parent's", "child's"}  # It starts with a copy of what was read.
    assert "child's" not in str([each for each in typed_texts(parent.context.history) if each[0] == "tool"])


async def test_a_child_s_folder_is_its_own(tmp_path: Path) -> None:
    """AC-S1-4: a child works in the folder that it was given and cannot leave it. Its parent stays where it was."""
    write_files(tmp_path, {"a.txt": "outer", "sub/a.txt": "inner"})
    model = ScriptedModel(
        {
            "read it": [Call("Read", {"file_path": "a.txt"}), Call("Read", {"file_path": "../a.txt"}), "done"],
            "": [specialist_call("read it", "child", cwd="sub"), Call("Read", {"file_path": "a.txt"}), "ok"],
        }
    )
    async with Session(model, workspace_tools(), cwd=tmp_path) as session:
        await session.ask("Go.")
        tool_texts = [each.text for each in session.messages if isinstance(each, ToolMessage)]
        child = run_of(session, "child")
        file_text, refusal = [each for each in child.context.history if isinstance(each, ToolMessage)]

    assert "inner" in file_text.text
    assert refusal.status == "error"
    assert "outer" not in refusal.text
    assert "outer" in tool_texts[1]


@pytest.mark.parametrize("cwd", ["..", "/", "nowhere", "a.txt", "sub/../..", "\0"])
async def test_a_child_cannot_get_a_folder_outside_its_parent_s(tmp_path: Path, cwd: str) -> None:
    """The refusal names the argument, and no child starts."""
    write_files(tmp_path, {"work/a.txt": "x", "work/sub/b.txt": "y"})
    model = ScriptedModel([specialist_call("read", cwd=cwd), "ok"])
    async with Session(model, cwd=tmp_path / "work") as session:
        result = await session.ask("Go.")
        spawns = of_kind(session_events(session), RunSpawned)

    assert result.status is Status.COMPLETED
    assert len(spawns) == 1
    assert "cwd" in model.requests[1].messages[-1].text
