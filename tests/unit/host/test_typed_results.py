"""Static types of results of an agent with an `output`. `assert_type` does nothing here: mypy reads this file."""

from __future__ import annotations

import dataclasses
from typing import Any, assert_type

import pytest

from ramet import Agent, Result, Session, SyncSession
from ramet.models.scripted.model import ScriptedModel

ANSWER = '{"path": "api.py", "line": 3}'


@dataclasses.dataclass
class Finding:
    path: str
    line: int


def finder() -> Agent[Finding]:
    return Agent(name="finder", output=Finding, model=ScriptedModel([ANSWER]))


async def test_the_value_of_a_turn_has_the_type_of_the_agents_output() -> None:
    async with Session(agent=finder().with_instructions("Be quick.")) as session:
        result = await session.ask("Where?")
    assert_type(result, Result[Finding])
    assert result.value.line == 3


def test_a_session_without_an_event_loop_has_the_type_of_the_agents_output() -> None:
    with SyncSession(agent=finder()) as session:
        result = session.ask("Where?")
    assert_type(result, Result[Finding])
    assert result.value.line == 3


async def test_without_an_output_a_value_is_anything() -> None:
    async with Session(ScriptedModel(["done"])) as session:
        result = await session.ask("Go.")
    assert_type(result, Result[Any])
    assert result.value == "done"


def test_another_output_is_another_type() -> None:
    assert_type(Agent(name="a").with_output(Finding), Agent[Finding])
    untyped: Agent = finder().with_output({"type": "object"})
    assert_type(untyped, Agent[Any])


@pytest.mark.parametrize("kind", [Result, Agent, Session, SyncSession])
def test_a_program_may_name_the_type(kind: Any) -> None:
    assert kind[Finding].__origin__ is kind
