"""The effort of an agent's model, as the providers' clients send it."""

from __future__ import annotations

from typing import Any

import pytest

from ramet.agent.definition import Agent
from ramet.core.errors import InvalidValue
from ramet.core.events import Notice
from ramet.host.serialize.recipes import agent_of, recipe
from ramet.host.session import Session
from ramet.models.scripted.dialogue import Call
from ramet.models.scripted.model import ScriptedModel
from tests.support.providers import provider
from tests.trips.kits.sessions import of_kind, session_events

AGENTS = [
    Agent(name="thorough", description="d", effort="max"),
    Agent(name="plain", description="d"),
]
SCRIPT: dict[str, list[Any]] = {
    "Go": [
        Call("Agent", {"subagent_type": "plain", "prompt": "one"}),
        Call("Agent", {"subagent_type": "thorough", "prompt": "two"}),
        "done",
    ],
    "one": ["1"],
    "two": ["2"],
}


async def test_a_model_is_asked_with_the_effort_of_its_agent() -> None:
    """A child inherits it with the model, or has its own, with which the same model is asked."""
    root = Agent(name="root", effort="low")
    async with (
        provider(SCRIPT) as server,
        Session(server.anthropic(), agent=root, agents=AGENTS) as session,
    ):
        await session.ask("Go")
        efforts = [each.body["output_config"]["effort"] for each in server.requests if "messages" in each.body]
        models = {each.body["model"] for each in server.requests if "messages" in each.body}
        notices = of_kind(session_events(session), Notice)

    assert efforts == ["low", "low", "low", "max", "low"]
    assert len(models) == 1
    assert notices == []


async def test_an_effort_that_a_model_does_not_take_is_noted_and_not_sent() -> None:
    """The agent works nevertheless: its definition may have been written for another model."""
    async with (
        provider({"Go": ["done"]}) as server,
        Session(server.anthropic(), agent=Agent(name="root", effort="minimal")) as session,
    ):
        await session.ask("Go")
        sent = [each.body for each in server.requests if "messages" in each.body]
        notices = [each.text for each in of_kind(session_events(session), Notice)]

    assert [("output_config" in each, "reasoning_effort" in each) for each in sent] == [(False, False)]
    assert notices == ["effort minimal: not honoured: the model claude-sonnet-5-5 does not take it"]
    async with Session(ScriptedModel(["x"]), agent=Agent(name="root", effort="high")) as scripted:
        assert (await scripted.ask("Go")).value == "x"
        assert "effort high: not honoured" in of_kind(session_events(scripted), Notice)[0].text


async def test_openai_is_asked_with_the_effort() -> None:
    """A client takes any text; ramet accepts the names that providers share, and records them."""
    agent = Agent(name="root", effort="xhigh")
    async with provider(["done"]) as server, Session(server.openai("gpt-5.4-mini"), agent=agent) as session:
        await session.ask("Go")
        bodies = [each.body for each in server.requests]

    assert [each.get("reasoning_effort") or each.get("reasoning", {}).get("effort") for each in bodies] == ["xhigh"]
    assert agent_of(recipe(agent), agents={}, model=str).effort == "xhigh"
    with pytest.raises(InvalidValue, match="effort: 'huge' is not accepted; expected none, minimal, low"):
        Agent(name="x", effort="huge")  # type: ignore[arg-type]  # tested
