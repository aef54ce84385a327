"""AC-S1-3: The tools of an agent, row by row."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import pytest
from langchain_core.tools import BaseTool, StructuredTool

from ramet.agent.builtin import builtin_agents
from ramet.agent.definition import Agent
from ramet.agent.toolset import Toolset, allows_server_tool, resolve_tools
from ramet.core.errors import InvalidValue, NoToolsLeft


def tool(name: str, **metadata: Any) -> BaseTool:
    """Return a tool that does nothing."""

    def work() -> str:
        """Do nothing."""
        return name

    return StructuredTool.from_function(work, name=name, metadata=metadata or None)


AVAILABLE = [tool("Read"), tool("Grep"), tool("Write"), tool("Bash"), tool("Agent"), tool("Host", children=False)]
ALL = ("Read", "Grep", "Write", "Bash", "Agent", "Host")


def resolve(
    tools: Any = None, disallowed: Any = (), *, may_spawn: bool = True, is_child: bool = False, **fields: Any
) -> Toolset:
    agent = Agent(name="x", tools=tools, disallowed_tools=disallowed, **fields)
    return resolve_tools(agent, AVAILABLE, may_spawn=may_spawn, is_child=is_child)


def names(toolset: Toolset) -> tuple[str, ...]:
    return tuple(each.name for each in toolset.tools)


class Row(NamedTuple):
    case: str
    tools: tuple[str, ...] | None
    denied: tuple[str, ...]
    expected: tuple[str, ...]
    unknown: tuple[str, ...] = ()
    given: Mapping[str, Any] = MappingProxyType({})


@pytest.mark.parametrize(
    "row",
    [
        Row("neither list: everything is inherited", None, (), ALL),
        Row("an empty list is no tool, not every tool", (), (), ()),
        Row("allow", ("Read", "Bash"), (), ("Read", "Bash")),
        Row("the order is that of what is available, not of the list", ("Bash", "Read"), (), ("Read", "Bash")),
        Row("deny", None, ("Write", "Bash"), ("Read", "Grep", "Agent", "Host")),
        Row("both: deny wins", ("Read", "Bash"), ("Bash",), ("Read",)),
        Row("unknown among known ones is reported", ("Read", "Teleport"), (), ("Read",), ("Teleport",)),
        Row("a denial of something unknown is reported too", None, ("Wirte",), ALL, ("Wirte",)),
        Row("names are case-sensitive", ("Read", "bash"), (), ("Read",), ("bash",)),
        Row("an alias", ("Task", "Read"), (), ("Read", "Agent")),
        Row("an alias denies as well", ("Agent", "Read"), ("Task",), ("Read",)),
        Row("everything by its sign", ("*",), ("Write",), ("Read", "Grep", "Bash", "Agent", "Host")),
        Row("everything denied", None, ("*",), ()),
        Row("part of a tool gives none of it", ("Read", "Bash(git:*)"), (), ("Read",), ("Bash(git:*)",)),
        Row("part of a tool denies all of it", ("Read", "Bash"), ("Bash(rm:*)",), ("Read",)),
        Row("not for children", ("Read", "Host"), (), ("Read",), given={"is_child": True}),
        Row("nor inherited by them", None, (), ALL[:-1], given={"is_child": True}),
        Row(
            "at the depth limit the Agent tool is withheld",
            ("Read", "Agent"),
            (),
            ("Read",),
            given={"may_spawn": False},
        ),
        Row("also when inherited", None, (), (*ALL[:4], "Host"), given={"may_spawn": False}),
        Row("read-only keeps what reads", None, (), ("Read", "Grep"), given={"read_only": True}),
        Row("read-only goes before allow", ("Read", "Write"), (), ("Read",), given={"read_only": True}),
    ],
    ids=lambda row: row.case,
)
def test_tool_lists_resolve_as_in_the_table(row: Row) -> None:
    """AC-S1-3: The rows are none, allow, deny, both, unknown, not for children, and at the depth limit."""
    toolset = resolve(row.tools, row.denied, **row.given)

    assert (names(toolset), toolset.unknown) == (row.expected, row.unknown)


@pytest.mark.parametrize(
    ("tools", "denied", "arguments"),
    [
        (("Teleport", "read"), (), {}),
        (("Read", "Bash"), ("Read", "Bash"), {}),
        (("Read",), ("*",), {}),
        (("Host",), (), {"is_child": True}),
        (("Agent(explore)",), (), {"may_spawn": False}),
        (("Write", "Bash"), (), {"read_only": True}),
    ],
    ids=["all unknown", "all denied", "everything denied", "none for children", "depth limit", "read-only"],
)
def test_a_list_without_any_usable_tool_is_refused(
    tools: tuple[str, ...], denied: tuple[str, ...], arguments: dict[str, Any]
) -> None:
    """AC-S1-3: An agent that asked for tools and would get none does not start."""
    with pytest.raises(NoToolsLeft) as refusal:
        resolve(tools, denied, **arguments)

    assert refusal.value.entries == tools


@pytest.mark.parametrize(
    ("tools", "denied", "allowed"),
    [
        (None, (), ("add", "sub")),
        ((), (), ()),
        (("*",), ("mcp__calc__sub",), ("add",)),
        (("Read",), (), ()),
        (("Read", "mcp__calc"), (), ("add", "sub")),
        (("mcp__calc__*",), ("mcp__calc__add(1)",), ("sub",)),
        (("mcp__calc__add",), (), ("add",)),
        (("mcp__calc__add", "mcp__calc__sub(1)"), (), ("add",)),
        (None, ("mcp__calc",), ()),
        (None, ("mcp__calc__*",), ()),
        (None, ("*",), ()),
    ],
)
def test_tool_lists_select_tools_of_servers(tools: Any, denied: Any, allowed: tuple[str, ...]) -> None:
    """Entries for a server name it or its tools, are not reported as unknown, and are tools enough for an agent."""
    agent = Agent(name="x", tools=tools, disallowed_tools=denied, mcp=[{"name": "calc", "command": "calc"}])
    [server] = agent.mcp_servers
    toolset = resolve_tools(agent, AVAILABLE, may_spawn=True, is_child=False)

    assert tuple(each for each in ("add", "sub") if allows_server_tool(agent, server, f"mcp__calc__{each}")) == allowed
    assert toolset.unknown == ()
    assert not allows_server_tool(agent.replace(read_only=True), server, "mcp__calc__add")
    assert not server.covers("mcp__calculator__add")


def test_withheld_tools_are_reported_apart_from_unknown_ones() -> None:
    """A tool that exists, but not for this run, is not called unknown."""
    toolset = resolve(("Read", "Agent", "Host"), may_spawn=False, is_child=True)

    assert (toolset.withheld, toolset.unknown) == (("Agent", "Host"), ())


@pytest.mark.parametrize(
    ("tools", "denied", "may", "may_not"),
    [
        (None, (), ["explore", "plan"], []),
        (("Agent(explore, plan)",), (), ["explore", "plan"], ["general-purpose"]),
        (("Task(explore)",), (), ["explore"], ["plan"]),
        (("Agent(explore)", "Agent(plan)"), (), ["explore", "plan"], ["general-purpose"]),
        (("Agent", "Agent(explore)"), (), ["explore"], ["plan"]),
        (("*", "Agent(explore)"), (), ["explore"], ["plan"]),
        (("Agent()",), (), [], ["explore"]),
        (None, ("Agent(plan)",), ["explore"], ["plan"]),
        (("Agent(explore, plan)",), ("Task(plan)",), ["explore"], ["plan"]),
    ],
)
def test_tool_lists_restrict_the_types_that_may_be_spawned(
    tools: tuple[str, ...] | None, denied: tuple[str, ...], may: list[str], may_not: list[str]
) -> None:
    """`Agent(a, b)` allows these types; several entries add up, and denied types stay denied."""
    toolset = resolve(tools, denied)

    assert "Agent" in names(toolset)
    assert all(map(toolset.may_spawn_type, may))
    assert not any(map(toolset.may_spawn_type, may_not))


@pytest.mark.parametrize("entry", ["Agent(explore", "Read)", "", "(explore)", "Read Write", "Agent)explore("])
def test_an_unreadable_entry_is_refused(entry: str) -> None:
    """No half entry is guessed at, in either list."""
    with pytest.raises(InvalidValue) as refusal:
        resolve((entry,))
    assert (refusal.value.field, refusal.value.value) == ("tools", entry)
    with pytest.raises(InvalidValue) as refusal:
        resolve(None, (entry,))
    assert refusal.value.field == "disallowed_tools"


def test_a_definition_in_code_brings_its_own_tools() -> None:
    """The definition's tool objects come after the available tools, and replace tools of equal name."""
    fetch, read_tool = tool("Fetch"), tool("Read")

    toolset = resolve((fetch, read_tool, "Grep"), is_child=True, scope="call")

    assert names(toolset) == ("Read", "Grep", "Fetch")
    assert toolset.tools[0] is read_tool
    assert toolset.tools[2] is fetch


def test_a_definition_that_is_not_the_hosts_brings_no_tools() -> None:
    """Rights never widen: a tool object means the parent's tool of that name, or nothing."""
    toolset = resolve((tool("Fetch"), tool("Read")), is_child=True, scope="plugin")

    assert toolset.tools == (AVAILABLE[0],)
    assert toolset.unknown == ("Fetch",)


def test_brought_tools_can_be_denied() -> None:
    """Deny goes before them too."""
    assert names(resolve((tool("Fetch"), "Read"), ("Fetch",), scope="call")) == ("Read",)


def test_the_memory_tool_needs_no_entry_in_a_list() -> None:
    """`memory: project` gives this agent the Memory tool beside any list; the parent's is not inherited."""
    parents, own_tool = tool("Memory", children=False), tool("Memory", children=False)
    agent = Agent(name="x", tools=("Read",))

    with_own = resolve_tools(agent, [*AVAILABLE, parents], may_spawn=True, is_child=True, own=[own_tool])
    without = resolve_tools(agent.replace(tools=None), [*AVAILABLE, parents], may_spawn=True, is_child=True)
    toolset = resolve_tools(
        agent.replace(disallowed_tools=("Memory",)), AVAILABLE, may_spawn=True, is_child=True, own=[own_tool]
    )

    assert with_own.tools == (AVAILABLE[0], own_tool)
    assert with_own.tools[1] is own_tool
    assert "Memory" not in names(without)
    assert names(toolset) == ("Read",)


def test_the_memory_tool_does_not_save_a_list_without_usable_tools() -> None:
    """An agent that asked for tools which do not exist is refused although it has a memory."""
    with pytest.raises(NoToolsLeft):
        resolve_tools(Agent(name="x", tools=("Gone",)), AVAILABLE, may_spawn=True, is_child=True, own=[tool("Memory")])
    agent = Agent(name="x", tools=("Memory",))

    assert names(resolve_tools(agent, AVAILABLE, may_spawn=True, is_child=True, own=[tool("Memory")])) == ("Memory",)


def test_two_tools_of_one_name_are_refused() -> None:
    """InvalidValue says that one tool of each name is accepted."""
    with pytest.raises(InvalidValue, match="one tool of each name"):
        resolve_tools(Agent(name="x"), [tool("Read"), tool("Read")], may_spawn=True, is_child=False)


def test_explore_and_plan_can_only_read() -> None:
    """Tools of these agents are read-only, whatever the parent has."""
    by_name = {agent.name: agent for agent in builtin_agents()}

    for name in ("explore", "plan"):
        assert names(resolve_tools(by_name[name], AVAILABLE, may_spawn=True, is_child=True)) == ("Read", "Grep")
    inherited = resolve_tools(by_name["general-purpose"], AVAILABLE, may_spawn=True, is_child=True)
    assert names(inherited) == ALL[:-1]
