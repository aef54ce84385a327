"""A plain function is a tool.

An object that cannot be a tool is refused where the code passes it, before a model is asked.
"""

from __future__ import annotations

import functools
import pathlib
from typing import Annotated, Any

import pytest
from langchain_core.messages import ToolMessage
from langchain_core.tools import InjectedToolCallId, tool
from pydantic import BaseModel

from ramet import Agent, AgentRuntime, Session
from ramet.core.errors import InvalidValue, Unknown
from ramet.models.scripted.model import Call, ScriptedModel
from ramet.tools.functions import as_tools
from ramet.tools.workspace import workspace_tools
from tests.trips.kits.sessions import specialist_call


def get_weather(city: str, days: int = 1) -> str:
    """Return the weather of a city."""
    return f"sun in {city} for {days} days"


async def find_mail(subject: str) -> str:
    """Find a mail by its subject."""
    return f"no mail about {subject}"


class Shop:
    """A class with a method that is used as a tool."""

    def price(self, article: str) -> int:
        """Return the price of an article."""
        return len(article)


async def test_a_session_takes_functions_methods_and_names_as_tools(tmp_path: pathlib.Path) -> None:
    """Arguments are checked, and the model sees name, docstring and parameters."""
    (tmp_path / "note.txt").write_text("kept")
    calls = [
        Call("get_weather", {"city": "Bonn", "days": 2}),
        Call("find_mail", {"subject": "rent"}),
        Call("price", {"article": "tea"}),
        Call("Read", {"file_path": "note.txt"}),
    ]
    model = ScriptedModel([calls, "done"])
    async with Session(model, [get_weather, find_mail, Shop().price, "Read"], cwd=tmp_path) as session:
        assert (await session.ask("go")).value == "done"
        texts = [each.text for each in session.messages if isinstance(each, ToolMessage)]
    assert texts[:3] == ["sun in Bonn for 2 days", "no mail about rent", "3"]
    assert "kept" in texts[3]
    tools = {each.name: each for each in as_tools([get_weather], "tools")}
    assert tools["get_weather"].description == "Return the weather of a city."
    assert tools["get_weather"].args["days"]["type"] == "integer"


async def test_an_agent_definition_has_its_own_function_tools() -> None:
    """A child has them, whatever tools its parent has."""
    worker = Agent(name="worker", description="Works.", tools=[get_weather])
    plan: dict[str, Any] = {
        "": [[specialist_call("What is it like?", "bob", subagent_type="worker")], "done"],
        "What is it like?": [[Call("get_weather", {"city": "Rome"})], "fine"],
    }
    async with Session(ScriptedModel(plan), agents=[worker]) as session:
        await session.ask("go")
        history = session.handle("bob").run.context.history
    assert [each.text for each in history if isinstance(each, ToolMessage)] == ["sun in Rome for 1 days"]


async def test_a_runtime_takes_functions_as_tools() -> None:
    """`spawn` accepts functions as a session does."""
    model = ScriptedModel([[Call("get_weather", {"city": "Rome"})], "fine"])
    async with AgentRuntime() as runtime:
        handle = await runtime.spawn(Agent(name="lead", model=model), "go", tools=[get_weather])
        assert (await handle.result()).value == "fine"
        assert any(each.text == "sun in Rome for 1 days" for each in handle.run.context.history)


def no_words(city: str) -> str:
    return city


def many(*cities: str) -> str:
    """Takes any number."""
    return " ".join(cities)


def größe(x: int) -> int:
    """No provider takes its name."""
    return x


def opaque(x: Opaque) -> str:
    """Takes what no model can write."""
    return str(x)


class Opaque:
    """Something with no schema."""


BAD = {
    "no docstring": (no_words, "docstring"),
    "a lambda": (lambda x: x, "def"),
    "a partial": (functools.partial(get_weather, "Rome"), "def"),
    "any number of arguments": (many, r"\*cities"),
    "a name that no provider takes": (größe, "name"),
    "a parameter without a schema": (opaque, "x"),
    "a class": (Shop, "function"),
    "an object": (object(), "function"),
    "nothing": (None, "function"),
    "an agent": (Agent(name="worker"), "agents="),
}


@pytest.mark.parametrize(("entry", "word"), BAD.values(), ids=BAD.keys())
def test_an_invalid_tool_is_refused_by_its_place_in_the_list(entry: Any, word: str) -> None:
    """The error names the place in the list, the value, and the accepted values."""
    for make in (
        lambda: Session(ScriptedModel([]), [get_weather, entry]),
        lambda: Agent(name="worker", tools=[get_weather, entry]),
    ):
        with pytest.raises(InvalidValue, match=word) as refusal:
            make()
        assert refusal.value.field == "tools[1]"


def test_an_unknown_tool_name_is_refused_with_the_known_ones() -> None:
    """A session refuses the name. An agent definition accepts it, since its parent may have such a tool."""
    with pytest.raises(Unknown, match=r"'Reed'.*Read"):
        Session(ScriptedModel([]), ["Reed"])
    assert Agent(name="worker", tools=["Reed"]).tools == ("Reed",)


def test_two_tools_of_one_name_are_refused() -> None:
    """A call could mean either of them."""

    @tool
    def get_weather(city: str) -> str:
        """Return another weather."""
        return city

    with pytest.raises(InvalidValue, match="one tool of each name"):
        Session(ScriptedModel([]), [globals()["get_weather"], get_weather])


def test_a_tool_object_is_used_unchanged() -> None:
    """A tool is not wrapped again, and a value that is no list is refused."""
    tools = workspace_tools()
    assert as_tools(tools, "tools") == tuple(tools)
    with pytest.raises(InvalidValue, match="tools"):
        Session(ScriptedModel([]), "Read")


async def test_numbers_with_one_hash_are_refused_as_a_set() -> None:
    """A model can choose such numbers, and comparing each with all others would block the host."""
    counts = list[int]()

    async def count(numbers: set[int]) -> int:
        """Count different numbers."""
        counts.append(len(numbers))
        return len(numbers)

    large_numbers, honest = [str(each * (2**61 - 1)) for each in range(1, 8_000)], list(range(8_000))
    model = ScriptedModel([[Call("count", {"numbers": large_numbers}), Call("count", {"numbers": honest})], "done"])
    async with Session(model, [count]) as session:
        await session.ask("go")
        first, second = [each.text for each in session.messages if isinstance(each, ToolMessage)]
    assert "at most 100 different numbers of one hash" in first
    assert (second, counts) == ("8000", [8_000])


class Row(BaseModel):
    """One of many."""

    a: int
    b: int
    c: int
    d: int


async def test_large_invalid_arguments_give_one_error() -> None:
    """pydantic would otherwise build every error: gigabytes for a class of many fields."""
    counts = list[int]()

    async def count(rows: list[Row], id: Annotated[str, InjectedToolCallId]) -> int:
        """Count rows."""
        counts.append(len(rows))
        return len(rows)

    async def total(rows: dict[str, Row]) -> int:
        """Count rows by name."""
        return len(rows)

    honest = [{"a": 1, "b": 2, "c": 3, "d": 4}] * 10_000
    calls = [
        Call("count", {"rows": [{}] * 100_000}),
        Call("count", {"rows": honest}),
        Call("total", {"rows": {str(each): "x" for each in range(50_000)}}),
        Call("count", {"rows": [{}] * 3}),
    ]
    async with Session(ScriptedModel([*([each] for each in calls), "done"]), [count, total]) as session:
        await session.ask("go")
        first, second, third, last = [each.text for each in session.messages if isinstance(each, ToolMessage)]
    assert "4 validation errors" in first or "1 validation error" in first
    assert (second, counts) == ("10000", [10_000])
    assert "1 validation error " in third
    assert "12 validation errors" in last, "of few parts each error is told"
