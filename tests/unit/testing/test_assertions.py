"""Assertions on what a tree did, and the text with which each one fails."""

from __future__ import annotations

import asyncio
from unittest.mock import ANY

import pytest

from ramet import Agent, AgentRuntime, Limits, Session
from ramet.core.errors import InvalidValue, Unknown
from ramet.core.events import MessageRecorded, RunSpawned
from ramet.testing import (
    Call,
    ScriptedModel,
    assert_called,
    assert_no_run_left,
    assert_not_called,
    assert_spawned,
    assert_within,
    events_of,
)


def read(path: str) -> str:
    """Read a file."""
    return f"contents of {path}"


async def test_assertions_on_a_tree_pass_or_say_what_happened_instead() -> None:
    """Calls, spawns and usage of a tree are found in a session, also after it was closed, and in lists of events."""
    model = ScriptedModel(
        {
            "You are a scout": [Call("read", {"path": "a.txt"}), "It is empty."],
            "": [Call("Agent", {"subagent_type": "scout", "prompt": "Look."}), Call("Fly", {}), "Done."],
        }
    )
    scout = Agent(name="scout", instructions="You are a scout.")
    async with Session(model, [read], agents=[scout]) as session:
        streamed = [item async for item in session.submit_message("Go.")]
        result = session.result

    assert result is not None
    [call] = assert_called(session, "read", path="a.txt")
    assert (call.agent, call.args) == ("scout", {"path": "a.txt"})
    assert_called(session, "Agent", subagent_type="scout", prompt=ANY)
    assert_not_called(events_of(session, path="main"), "read")
    assert_not_called(session, "Fly")
    [spawn] = assert_spawned(session, "scout", below="main", times=1)
    assert events_of(session, RunSpawned)[1:] == [spawn]
    assert [event.agent for event in events_of(session, MessageRecorded, agent="scout")] == ["scout"] * 4
    assert [event.tool for event in assert_called(streamed, "Agent")] == ["Agent"]
    assert assert_within(session, Limits(model_calls=5, agents=1, seconds=60)) == result.usage_subtree
    assert assert_within(result, Limits(tool_calls=2)).tool_calls == 2

    with pytest.raises(AssertionError) as failure:
        assert_called(session, "read", path="b.txt")
    assert str(failure.value).splitlines() == [
        "no call of read(path='b.txt'); calls in all (3):",
        "  main: Agent(subagent_type='scout', prompt='Look.'), ok",
        f"  {spawn.path}: read(path='a.txt'), ok",
        "  main: Fly(…), never began, error (\"There is no tool named 'Fly'. Tools here: read, Agent, SendMessage, "
        'TaskOutput, TaskStop, ListAgents.")',
    ]
    with pytest.raises(AssertionError, match=r"calls of read\(path=<ANY>\): 1; calls in all \(3\):"):
        assert_not_called(session, "read", path=ANY)
    with pytest.raises(AssertionError) as failure:
        assert_spawned(session, "scout", times=2)
    assert str(failure.value).splitlines() == [
        "spawns of 'scout': 1, expected 2; spawns in all (1):",
        f"  {spawn.path}: scout, 'Look.'",
    ]
    with pytest.raises(AssertionError) as failure:
        assert_within(session, Limits(model_calls=4, tool_calls=2))
    assert str(failure.value).splitlines()[:2] == ["above the limits:", "  model_calls: 5 used, 4 allowed"]
    assert f"  {spawn.path}: tokens " in str(failure.value)

    with pytest.raises(InvalidValue, match=r"limits\.seconds: 'Result'"):
        assert_within(result, Limits(seconds=1))
    with pytest.raises(InvalidValue, match="an iterable of events"):
        assert_called(result, "read")  # type: ignore[arg-type]  # a mistake that is easily made


async def test_a_run_that_works_in_the_background_is_named_until_it_has_ended() -> None:
    """A runtime, a handle and a session with a run that works are refused; an idle conversation is no leak."""
    release = asyncio.Event()

    async def wait() -> str:
        """Wait."""
        await release.wait()
        return "over"

    async with AgentRuntime() as runtime:
        worker = Agent(name="worker", model=ScriptedModel([Call("wait"), "Done."]))
        handle = await runtime.spawn(worker, "Work.", tools=[wait])
        with pytest.raises(
            AssertionError, match=r"runs that have not ended \(1\):\n  main: worker, (starting|running)"
        ):
            assert_no_run_left(runtime)
        with pytest.raises(AssertionError, match="main: worker"):
            assert_no_run_left(handle)
        release.set()
        await handle.result()
        assert_no_run_left(handle)
        assert_called(handle, "wait")
        assert assert_within(handle, Limits(model_calls=2, seconds=60)).model_calls == 2

        async with Session(ScriptedModel(["Hello."]), runtime=runtime) as session:
            await session.ask("Hi.")
            assert_no_run_left(session)
            assert_no_run_left(runtime)
    with pytest.raises(Unknown, match="that has not stopped"):
        events_of(handle)
