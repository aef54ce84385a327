"""Bounds of the host's work on what a server of MCP sends, in steps that no clock counts."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace
from typing import Any

import pytest

import ramet
from ramet.agent.schemas.schema import MAX_MIXED, JsonSchema
from ramet.core.errors import InvalidValue
from ramet.core.mcp.server_entry import McpServer
from ramet.host.mcp.progress_filter import ProgressFilter
from ramet.spawn.mcp import tool_list
from ramet.spawn.mcp.tool_definitions import MAX_TOTAL_PARTS, PartsBudget, definition_of
from ramet.spawn.mcp.tool_list import MAX_TOOLS, ToolList, is_repeatable
from ramet.spawn.mcp.tool_search import OfferedTool, SearchArguments, ToolCatalogue
from ramet.tools.mcp.answer_form import form_of
from ramet.tools.mcp.connection_port import ListedTool

SERVER = McpServer(name="s", command="s")


@pytest.fixture
def looked_at(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the names of the tools whose definition is looked at."""
    names: list[str] = []

    def look(server: McpServer, listed: ListedTool, budget: PartsBudget) -> Any:
        names.append(listed.name)
        return definition_of(server, listed, budget)

    monkeypatch.setattr(tool_list, "definition_of", look)
    monkeypatch.setattr(tool_list, "masked_text", lambda run, text, size: text)
    return names


async def test_the_definitions_of_a_run_cost_a_bounded_number_of_steps(looked_at: list[str]) -> None:
    """Tools that are left out count; those above the number are not looked at; other work goes on meanwhile."""
    wide = {"type": "object", "properties": {f"p{number}": {"type": "wrong"} for number in range(1_500)}}
    listed = [ListedTool(f"wide{number}", "", wide) for number in range(30)]
    plain = [ListedTool(f"plain{number}", "", {"type": "object"}) for number in range(2 * MAX_TOOLS)]
    notices: list[str] = []

    async def fill(tools: list[ListedTool]) -> tuple[Any, ...]:
        agent = ramet.Agent(name="user", model="x", mcp=[SERVER], tool_search=False)
        context = SimpleNamespace(tools=())
        run: Any = SimpleNamespace(agent=agent, context=context, sandbox=SimpleNamespace(loaded_tools={}))
        await ToolList(run, notices.append).fill([(SERVER, tuple(tools))])
        return tuple(context.tools)

    filling = asyncio.create_task(fill(listed))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert not filling.done(), "the loop stood still for all tools"
    assert await filling == ()
    assert f"at most {MAX_TOTAL_PARTS} parts of all tools together" in notices[0]
    looked_at.clear()
    assert len(await fill(plain)) == len(looked_at) == MAX_TOOLS


def test_a_long_list_of_different_kinds_is_refused_before_it_is_compared() -> None:
    """A check for unique members takes quadratic time. Texts alone, and numbers alone, are sorted."""
    kinds = [number if number % 2 else f"a{number}" for number in range(MAX_MIXED + 1)]
    with pytest.raises(InvalidValue, match=f"lists of at most {MAX_MIXED} members of different kinds"):
        JsonSchema({"type": "object", "properties": {"x": {"type": kinds}}})
    with pytest.raises(InvalidValue, match="members of different kinds"):
        JsonSchema({"dependencies": {"anyOf": [{}] * (MAX_MIXED + 1)}})
    JsonSchema({"anyOf": [{}] * (MAX_MIXED + 1)})
    JsonSchema({"enum": [str(each) for each in kinds]})
    JsonSchema({"enum": kinds[1:]})


def test_a_search_reads_the_beginning_of_a_description() -> None:
    """Words behind it are not found: a search takes the time of what it reads, for each word."""
    texts = (f"near {'x' * 5_000} far", "")
    listed = [ListedTool("one", texts[0], {"properties": {"y" * 5_000: {}}}), ListedTool("two", texts[1], {})]
    catalogue = ToolCatalogue([OfferedTool(SERVER.tool_name(each.name), SERVER, each) for each in listed])
    found = [[each.listed.name for each in catalogue.find(SearchArguments(query=word))] for word in ("near", "far")]
    assert found == [["one"], []]


@pytest.mark.parametrize(
    "params",
    [
        {"progressToken": "x" * 1_000_000, "progress": 1},
        {"progressToken": True, "progress": 1},
        {"progressToken": 1, "progress": 10**400},
        {"progressToken": 1, "progress": float("nan")},
        {"progressToken": 1, "progress": 1, "total": -(10**400)},
        {"progressToken": 1, "progress": 1, "total": "all"},
    ],
)
def test_a_report_of_progress_has_numbers_alone(params: dict[str, Any]) -> None:
    """Tokens of any other kind are not held."""
    reports = ProgressFilter()
    assert not reports.is_shown(params)
    assert reports._reports == {}
    assert reports.is_shown({"progressToken": 1, "progress": 1, "total": 2.5})


def test_a_bound_of_a_form_that_is_no_float_is_none() -> None:
    """A person sees the field without it, and a number of that size is no answer."""
    form = form_of({"properties": {"age": {"type": "integer", "maximum": 10**400}}})
    assert form.describe() == {"age": "integer, optional"}
    with pytest.raises(InvalidValue, match=r"choices|at most"):
        form_of({"properties": {"age": {"type": "string", "enum": {"a": 1}}}})
    assert form_of({"properties": {"age": {"type": "string", "oneOf": 5}}}).fields[0].choices == ()
    with pytest.raises(InvalidValue, match=r"answer\.age"):
        form.parse(json.dumps({"age": 10**400}))


@pytest.mark.parametrize(("repeatable", "repeated"), [((), ""), (("once",), "once"), ("annotated", "again")])
def test_tools_are_repeatable_as_the_entry_of_their_server_says(repeatable: Any, repeated: str) -> None:
    """A server's words about its tools count only for `annotated`."""
    entry = McpServer(name="calc", command="calc", repeatable=repeatable)
    listed = [
        ListedTool("once", "", {"type": "object"}),
        ListedTool("again", "", {"type": "object"}, is_repeatable=True),
    ]
    definitions = [definition_of(entry, each, PartsBudget()) for each in listed]
    assert [each.is_repeatable for each in definitions] == [repeated == "once", repeated == "again"]
    assert [is_repeatable(definitions, each.name) for each in definitions] == [
        each.is_repeatable for each in definitions
    ]
