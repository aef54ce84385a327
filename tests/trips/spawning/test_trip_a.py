"""Trip A, and AC-S1-1: prompt → loop → Agent tool → sub-agent → result, and its record in the journal."""

from __future__ import annotations

import asyncio
import itertools
import json
from pathlib import Path
from typing import Any

from langchain_core.messages import ToolMessage
from langchain_core.tools import tool

from ramet.agent.definition import Agent
from ramet.concurrency.clock import FakeClock
from ramet.core.events import Event, decode, encode
from ramet.core.limits import Limits, SpawnLimits
from ramet.core.outcome import Status
from ramet.host.runtime import AgentRuntime
from ramet.host.session import Session
from ramet.models.rate_limit import RetryPolicy
from ramet.models.scripted.dialogue import Script
from ramet.models.scripted.model import Call, Fail, ScriptedModel
from ramet.tools.workspace import workspace_tools
from tests.support.waiting import eventually
from tests.trips.kits.sessions import (
    background_call,
    fork_call,
    run_of,
    session_events,
    specialist_call,
    typed_texts,
    write_files,
)
from tests.unit.cli.golden import assert_golden


def countable() -> AgentRuntime:
    """A runtime whose ids count up and whose clock stands still: the same dialogue gives the same record."""
    numbers = itertools.count(1)

    def entropy(size: int) -> bytes:
        return next(numbers).to_bytes(size, "big")

    return AgentRuntime(clock=FakeClock(), entropy=entropy, retry=RetryPolicy(attempts=2, base_s=0))


def lines(session: Session) -> str:
    """Return the record as JSON lines without times, which are all equal."""
    return "".join(line(event) for event in session_events(session))


def line(event: Event) -> str:
    """Return one event of the record as a JSON line."""
    data = json.loads(encode(event))
    del data["at"]
    return json.dumps(data, ensure_ascii=False) + "\n"


# --- AC-S1-1


LOGS = {f"logs/day-{number}.log": f"ok\nok {number}\n" for number in range(8)}
FOLDER = {**LOGS, "logs/day-5.log": "ok\npayment timed out after 30 s\n", "api.py": "TIMEOUT_S = 30\n"}


async def test_an_investigator_reports_only_a_summary(tmp_path: Path) -> None:
    """AC-S1-1: an agent that can only read reads many files, and its parent gets the summary and no more."""
    write_files(tmp_path, FOLDER)
    investigator = Agent(
        name="investigator",
        description="Digs through logs.",
        instructions="You are an investigator.",
        tools=["Read", "Grep", "Glob"],
    )
    reads = [Call("Read", {"file_path": name}) for name in FOLDER]
    model = ScriptedModel(
        {
            "You are an investigator": [
                Call("Glob", {"pattern": "**/*"}),
                reads,
                Call("Grep", {"pattern": "timed out"}),
                "I found a timeout: logs/day-5.log:2, set in api.py:1.",
            ],
            "": [
                Call("Agent", {"prompt": "Why do payments fail?", "subagent_type": "investigator", "name": "searcher"}),
                "The payment API fails because of a timeout of 30 s (api.py:1).",
            ],
        }
    )
    async with Session(model, workspace_tools(), agents=[investigator], cwd=tmp_path) as session:
        result = await session.ask("Why is the payment API failing?")
        searcher = run_of(session, "searcher")

    assert result.value == "The payment API fails because of a timeout of 30 s (api.py:1)."
    assert typed_texts(session.messages) == [
        ("human", "Why is the payment API failing?"),
        ("ai", ""),
        ("tool", "I found a timeout: logs/day-5.log:2, set in api.py:1."),
        ("ai", "The payment API fails because of a timeout of 30 s (api.py:1)."),
    ]
    results = [message for message in searcher.context.history if isinstance(message, ToolMessage)]
    assert len(results) == len(FOLDER) + 2
    assert {message.status for message in results} == {"success"}
    assert "payment timed out after 30 s" in str(results)
    assert {each.name for each in searcher.context.tools} == {"Read", "Grep", "Glob"}


# --- golden transcripts


@tool
def grep(pattern: str) -> str:
    """Search the logs."""
    return f"api.log:17: {pattern} after 30 s"


@tool
def delete(path: str) -> str:
    """Delete a file."""
    raise AssertionError("nobody may call this")


TRIP_A: Script = {
    "find the timeout": [Call("grep", {"pattern": "timeout"}), "A timeout in api.log:17."],
    "write a test": ["The test is written."],
    "watch the logs": ["The logs are quiet."],
    "Why is the payment API failing?": [
        [
            background_call("watch the logs", "watcher", description="watches"),
            specialist_call("find the timeout", "searcher", description="searches logs"),
            fork_call("write a test", "tester"),
        ],
        "It times out (api.log:17).",
        "And the logs are quiet.",
    ],
}


async def test_trip_a_matches_its_golden_record() -> None:
    """The record has a fresh, a forked and a background child. `RAMET_GOLDEN=write` refreshes it."""
    async with Session(
        ScriptedModel(TRIP_A), [grep], runtime=countable(), spawn_limits=SpawnLimits(running=1), session_id="golden"
    ) as session:
        await session.ask("Why is the payment API failing?")
        await eventually(lambda: run_of(session, "main").state == "idle")

        record = lines(session)

    assert_golden("trip-a.jsonl", record)


GONE_WRONG: Script = {
    "You are limited": [Call("grep", {"pattern": "a"}), "What I found until then."],
    "fail": [Fail(500), Fail(500)],
    "delete it": [Call("delete", {"path": "/"}), "I may not."],
    "Go.": [
        [
            Call("Agent", {"prompt": "dig", "subagent_type": "limited", "name": "limited"}),
            Call("Agent", {"prompt": "dig", "subagent_type": "nobody"}),
            Call("nonsense", {"x": 1}),
            specialist_call("fail", "failing"),
            specialist_call("delete it", "deleter"),
        ],
        "This is what I know.",
    ],
}


async def test_trip_a_gone_wrong_is_on_record_as_approved() -> None:
    """The record has a used up budget, a clamp, a refusal, an unknown tool, a failing provider and a denial."""
    limited = Agent(
        name="limited",
        description="Has limits.",
        instructions="You are limited.",
        limits=Limits(model_calls=2, tool_calls=5_000),
    )
    hooks: dict[str, Any] = {"PreToolUse": [{"matcher": "delete", "hooks": [lambda _: "deny"]}]}
    async with Session(
        ScriptedModel(GONE_WRONG),
        [grep, delete],
        agents=[limited],
        runtime=countable(),
        spawn_limits=SpawnLimits(running=1),
        limits=Limits(model_calls=30, tool_calls=40, agents=9),
        hooks=hooks,
    ) as session:
        result = await session.ask("Go.")

        record = lines(session)

    assert result.status is Status.COMPLETED
    assert_golden("trip-a-gone-wrong.jsonl", record)


def test_golden_records_can_be_decoded() -> None:
    """Every line decodes to an event, and encodes to the same JSON."""
    folder = Path(__file__).parents[2] / "golden"
    for name in ("trip-a.jsonl", "trip-a-gone-wrong.jsonl", "trip-b.jsonl", "trip-c.jsonl"):
        for text in (folder / name).read_text(encoding="utf-8").splitlines():
            assert json.loads(encode(decode(text))) == json.loads(text)


async def test_the_same_dialogue_gives_the_same_record() -> None:
    """Two sessions with the same ids and clock have equal records, byte for byte."""

    async def record() -> str:
        async with Session(
            ScriptedModel(TRIP_A), [grep], runtime=countable(), spawn_limits=SpawnLimits(running=1)
        ) as session:
            await session.ask("Why is the payment API failing?")
            await eventually(lambda: run_of(session, "main").state == "idle")
            return lines(session)

    first, second = await asyncio.gather(record(), record())

    assert first == second
