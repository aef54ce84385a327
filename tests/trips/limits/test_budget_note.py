"""A model that knows its budget: one line at the end of each request, in no record, for every provider's format."""

from __future__ import annotations

import asyncio
import pathlib
from typing import Any

import pytest
from langchain_core.messages import BaseMessage

from ramet.agent.definition import Agent
from ramet.core.errors import InvalidValue
from ramet.core.events import MessageRecorded, ModelAsked
from ramet.core.limits import Limits
from ramet.core.policy.policy import Policy
from ramet.host.runtime import AgentRuntime
from ramet.host.serialize.recipes import agent_of, recipe
from ramet.host.session import Session
from ramet.models.rate_limit import RetryPolicy
from ramet.models.scripted.dialogue import Call, Fail
from ramet.models.scripted.model import ScriptedModel
from ramet.store.memory import MemoryStore
from ramet.tools.spawn_request import SpawnRequest
from tests.support.providers import Provider, provider
from tests.trips.kits.pausing import noting, open_gate, paused, pausing
from tests.trips.kits.sessions import of_kind, session_events, typed_texts

TOLD = Agent(name="main", budget_note=True)
LIMITS = Limits(model_calls=9, tool_calls=3)


def note(model: int, tool: int) -> str:
    """Return the note for so many calls that are left."""
    return f"[limits, this request included: {model} of 9 model calls left, {tool} of 3 tool calls left]"


NOTES = [note(8, 3), note(7, 2), note(6, 1)]  # One call is kept for a last answer.


def client(server: Provider, kind: str) -> Any:
    """Return a real client of a provider."""
    if kind == "anthropic":
        return server.anthropic()
    return server.openai(use_responses_api=kind == "responses")


def last_text(body: dict[str, Any]) -> str:
    """Return the last text of a request."""
    content = (body.get("messages") or body["input"])[-1]["content"]
    return str(content if isinstance(content, str) else content[-1]["text"])


@pytest.mark.parametrize("kind", ["chat", "responses", "anthropic"])
async def test_each_request_ends_with_what_is_left(kind: str) -> None:
    """The rest of each request is the same as without the note, in the order that its provider requires."""
    bodies = []
    for agent in (Agent(name="main"), TOLD):
        async with (
            provider(noting(2)) as server,
            Session(client(server, kind), [open_gate().tool], agent=agent, spawn=False, limits=LIMITS) as session,
        ):
            result = await session.ask("go")
            assert (result.value, server.count) == ("done", 3)
            bodies.append(server.bodies)
            assert "limits" not in str(typed_texts(session.messages))
            assert not any("[limits" in str(each.message) for each in of_kind(session_events(session), MessageRecorded))
    assert [last_text(body) for body in bodies[1]] == NOTES
    field = "input" if kind == "responses" else "messages"
    for plain, told in zip(*bodies, strict=True):
        *before, last = told[field]
        if kind == "anthropic":
            blocks = last["content"]
            assert last["role"] == "user"
            assert [each["type"] for each in blocks][-1] == "text"
            assert "tool_result" not in [each["type"] for each in blocks[1:]]
            assert len(before) == len(plain[field]) - 1  # One message has both, the results first.
            assert before == plain[field][:-1]
        else:
            assert last["role"] == "user"
            assert _without_ids(before) == _without_ids(plain[field])


def _without_ids(messages: list[Any]) -> list[Any]:
    return [{name: value for name, value in each.items() if name != "id"} for each in messages]


async def test_a_model_is_told_nothing_unless_its_definition_says_so() -> None:
    """The default is as before, also for limits that are set; without limits there is no note."""
    for agent, limits in ((Agent(name="main"), LIMITS), (TOLD, Limits())):
        model = ScriptedModel(["done"])
        async with Session(model, agent=agent, spawn=False, limits=limits) as session:
            await session.ask("go")
        assert [each.text for each in model.requests[0].messages] == ["go"]


async def test_the_note_names_all_limits_that_bind() -> None:
    """A child reads its own calls, and what the tree has left of the rest; the reservation covers the note."""
    model = ScriptedModel({"": ["done"]})
    limits = Limits(model_calls=9, tokens=100_000, agents=4, seconds=3_600)
    asked = []
    for is_told in (False, True):
        agent = TOLD.replace(budget_note=is_told)
        async with Session(model, agent=agent, limits=limits) as session:
            child = await session.spawn(
                SpawnRequest(agent=Agent(name="dig", limits=Limits(model_calls=3)), prompt="dig", name="dig")
            )
            await child.result()
            asked.append(of_kind(session_events(session), ModelAsked)[0].reserved_tokens)
    text = model.requests[-1].messages[-1].text
    assert text.startswith(
        "[limits, this request included: 2 of 3 model calls left, 3 of 4 agents left, 95,904 tokens left"
    )
    assert text.endswith(" s left, depth 1 of 3]")
    assert asked[1] - asked[0] == len(text) + 16


async def test_a_child_inherits_the_note_unless_it_says_no() -> None:
    """A definition that says nothing is told as its parent is."""
    for own, is_told in ((None, True), (False, False), (True, True)):
        model = ScriptedModel({"": ["done"]})
        async with Session(model, agent=TOLD, limits=LIMITS) as session:
            agent = Agent(name="dig", budget_note=own)
            await (await session.spawn(SpawnRequest(agent=agent, prompt="dig"))).result()
        assert model.requests[-1].messages[-1].text.startswith("[limits") is is_told


async def test_a_retry_and_a_request_that_waited_have_new_numbers() -> None:
    """The note is computed when the request is made, not when it is first tried."""
    async with (
        AgentRuntime(retry=RetryPolicy(attempts=3, base_s=0)) as runtime,
        provider([Fail(500), *noting(1)]) as server,
        Session(
            server.openai(), [open_gate().tool], agent=TOLD, spawn=False, runtime=runtime, limits=pausing(model_calls=2)
        ) as session,
    ):
        turn = asyncio.create_task(session.ask("go"))
        await paused(session)
        await session.raise_limits(Limits(model_calls=5))
        assert (await turn).value == "done"
        assert [last_text(body).partition(": ")[2] for body in server.bodies] == [
            "2 of 2 model calls left]",
            "1 of 2 model calls left]",
            "5 of 7 model calls left]",
        ]


async def test_the_last_answer_at_a_limit_has_no_note() -> None:
    """The request for it says itself that the budget is used up."""
    model = ScriptedModel(noting(9))
    async with Session(model, [open_gate().tool], agent=TOLD, spawn=False, limits=Limits(model_calls=2)) as session:
        await session.ask("go")
    assert "used up" in model.requests[-1].messages[-1].text


async def test_a_conversation_in_a_sandbox_has_the_note_and_the_same_transcript(tmp_path: pathlib.Path) -> None:
    """The host adds it: nothing in the sandbox, and nothing on record, knows of it."""
    transcripts = []
    for agent in (Agent(name="main"), TOLD):
        model = ScriptedModel([Call("Glob", {"pattern": "*"}), "done"])
        async with AgentRuntime(tmp_path / str(bool(agent.budget_note)), backend="local") as runtime:
            session = await Session(
                model, ["Glob"], agent=agent, runtime=runtime, root_policy=Policy(), spawn=False, limits=LIMITS
            ).start()
            assert (await session.ask("go")).value == "done"
            transcripts.append(typed_texts(session.messages))
        ends = [each.messages[-1].text for each in model.requests]
        is_told = [text.startswith(start.rstrip("]")) for text, start in zip(ends, NOTES, strict=False)]
        assert is_told == [agent is TOLD] * 2
    assert transcripts[0] == transcripts[1]


async def test_a_resumed_conversation_goes_on_with_the_note() -> None:
    """Its definition is on record with the setting; the conversation is not changed by it."""
    store = MemoryStore()
    async with AgentRuntime(store=store) as first:
        await Session(
            ScriptedModel(["one"]), agent=TOLD, spawn=False, runtime=first, limits=LIMITS, session_id="talk"
        ).ask("go")

    seen: list[list[BaseMessage]] = []

    def reply(messages: list[BaseMessage]) -> str:
        seen.append(messages)
        return "two"

    async with AgentRuntime(store=store) as second:
        session = await Session.resume("talk", ScriptedModel(reply), runtime=second)
        assert (await session.ask("again")).value == "two"
    assert [each.text for each in seen[0]] == ["go", "one", "again", note(7, 3)]


async def test_a_result_that_stands_is_reused_whether_the_model_was_told_or_not(tmp_path: pathlib.Path) -> None:
    """The setting says nothing about the task."""
    model = ScriptedModel({"": ["found"]})
    async with AgentRuntime(tmp_path) as runtime:
        for is_told in (None, True, False):
            agent = Agent(name="dig", model=model, cache_ttl_seconds=60, budget_note=is_told)
            assert (await (await runtime.spawn(agent, "dig", limits=LIMITS)).result()).value == "found"
    assert len(model.requests) == 1


@pytest.mark.parametrize("value", ["yes", 1, 0, []])
def test_only_yes_and_no_are_accepted(value: Any) -> None:
    """Another value is refused by the name of the field."""
    with pytest.raises(InvalidValue, match="budget_note"):
        Agent(name="x", budget_note=value)


@pytest.mark.parametrize("value", [None, True, False])
def test_the_setting_is_kept_in_the_record_of_a_definition(value: Any) -> None:
    """A definition without it is recorded as before."""
    data = recipe(Agent(name="x", budget_note=value))
    assert ("budget_note" in data) is (value is not None)
    assert agent_of(data, agents={}, model=lambda name: name).budget_note is value
