"""AC-S2-1, AC-S2-9: the first program of a user, with the text of the second seed."""

from __future__ import annotations

import asyncio
import os
import sys
from typing import Any

import pytest
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessageChunk
from langchain_core.tools import tool

from ramet.core.events import Event
from ramet.core.outcome import Status
from ramet.host.session import Session
from ramet.models.scripted.model import ScriptedModel
from tests.support.providers import Call, Provider, Step, provider
from tests.trips.kits.sessions import is_valid, typed_texts

#: The seed's code, to the letter, with `ramet` for `agent_runtime`.
QUICKSTART = '''
import asyncio
from langchain_anthropic import ChatAnthropic
from langchain_core.tools import tool
from ramet import Session
from langchain_core.messages import AIMessageChunk
@tool
def get_time() -> str:
    """Return the current time."""
    from datetime import datetime
    return datetime.now().isoformat()
async def main():
    engine = Session(
        llm=ChatAnthropic(model="claude-sonnet-4-5"),
        tools=[get_time],
    )
    async for event in engine.submit_message("What time is it?"):
        if isinstance(event, AIMessageChunk):
            print(event.content, end="", flush=True)
asyncio.run(main())
'''


@tool
def get_time() -> str:
    """Return the current time."""
    return "noon"


async def test_the_quickstart_runs_as_shown() -> None:
    """AC-S2-1: the seed's program prints the answer's text, and nothing else, with the real ChatAnthropic."""
    async with provider([Call("get_time"), "It is noon, I think."]) as server:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-W", "ignore", "-c", QUICKSTART,
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
            env={**os.environ, "ANTHROPIC_API_KEY": "test", "ANTHROPIC_BASE_URL": server.url},
        )  # fmt: skip

        out, err = await process.communicate()

    assert (process.returncode, err.decode(), out.decode()) == (0, "", "It is noon, I think.")
    assert server.count == 2


async def test_the_quickstart_reports_a_providers_failure() -> None:
    """The seed's program, which reads chunks only, leaves a line on stderr."""
    async with provider([]) as server:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-W", "ignore", "-c", QUICKSTART,
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
            env={**os.environ, "ANTHROPIC_API_KEY": "test", "ANTHROPIC_BASE_URL": server.url},
        )  # fmt: skip

        out, err = await process.communicate()

    assert out == b""
    assert "HTTP 400" in err.decode()
    assert "Traceback" not in err.decode()


def provider_model(server: Provider, which: str) -> BaseChatModel:
    return server.anthropic() if which == "anthropic" else server.openai()


@pytest.mark.parametrize("which", ["anthropic", "openai"])
async def test_a_tool_result_leads_to_the_final_answer(which: str) -> None:
    """AC-S2-1: chunks stream, the tool result goes to the model, and the final answer stands; with the real clients."""
    async with provider([Call("get_time"), "It is noon, I think."]) as server:
        async with Session(llm=provider_model(server, which), tools=[get_time]) as session:
            chunks = [
                event async for event in session.submit_message("What time is it?") if isinstance(event, AIMessageChunk)
            ]
            history = session.messages

    assert [chunk.text for chunk in chunks if chunk.text] == ["It ", "is ", "noon, ", "I ", "think."]
    assert session.result is not None
    assert (session.result.status, session.result.value) == (Status.COMPLETED, "It is noon, I think.")
    assert typed_texts(history)[2] == ("tool", "noon")
    assert "noon" in str(server.bodies[1]["messages"])


@pytest.mark.parametrize("which", ["anthropic", "openai"])
async def test_the_second_message_remembers_the_first(which: str) -> None:
    """AC-S2-1: the second `submit_message` sends the whole first turn unchanged, and then the new prompt."""
    async with provider([Call("get_time"), "Noon.", "You asked for the time."]) as server:
        async with Session(llm=provider_model(server, which), tools=[get_time]) as session:
            await session.ask("What time is it?")

            await session.ask("What did I ask?")

    first, second, third = (body["messages"] for body in server.bodies)
    assert second[: len(first)] == first
    assert third[: len(second)] == second
    assert "What did I ask?" in str(third[-1])


async def run_session(model: BaseChatModel) -> tuple[list[Event], Session]:
    """Run the same session with any model."""
    async with Session(llm=model, tools=[get_time]) as session:
        events = [event async for event in session.submit_message("Time?") if isinstance(event, Event)]
    return events, session


def shape(events: list[Event]) -> list[Any]:
    return [(event.type, event.path) for event in events if hasattr(event, "type")] or [
        (type(event).__name__, event.path, event.call_id is not None) for event in events
    ]


@pytest.mark.parametrize("which", ["anthropic", "openai", "scripted", "scripted, not streaming"])
async def test_swapping_the_model_changes_nothing_else(which: str) -> None:
    """AC-S2-9: code, events, history and result are equal for each chat model."""
    script: list[Step] = [Call("get_time", id="call-a"), "It is noon."]
    expected, reference = await run_session(ScriptedModel(script))
    async with provider(script) as server:
        if which.startswith("scripted"):
            model: BaseChatModel = ScriptedModel(script, streaming="not" not in which)
        else:
            model = provider_model(server, which)

        events, session = await run_session(model)

    assert shape(events) == shape(expected)
    assert typed_texts(session.messages) == typed_texts(reference.messages)
    assert is_valid(session.messages)
    assert session.result is not None
    assert reference.result is not None
    assert (session.result.status, session.result.value) == (reference.result.status, reference.result.value)
    assert session.result.usage.model_calls == reference.result.usage.model_calls == 2
