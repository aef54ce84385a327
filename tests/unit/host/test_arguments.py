"""Arguments of a wrong type are refused at once: the error names the field, the value and the accepted types."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from langchain_core.runnables import RunnableLambda

import ramet
from ramet.agent.definition import Agent
from ramet.core.errors import InvalidValue
from ramet.core.limits import Limits, SpawnLimits
from ramet.core.policy.policy import Policy
from ramet.host.runtime import AgentRuntime
from ramet.host.session import Session
from ramet.models.scripted.model import ScriptedModel
from ramet.tools.spawn_request import SpawnRequest

CANARY = "canary-71fe"
NO_MODEL: Any = RunnableLambda(lambda prompt: prompt)
UNTYPED: Any = ramet  #: as a program without a type checker sees it


def refusal(make: Callable[[], Any]) -> str:
    with pytest.raises(InvalidValue) as refusal:
        make()
    return str(refusal.value)


#: argument of a session, and how the refusal begins
OF_A_SESSION: list[tuple[dict[str, Any], str]] = [
    ({"policy": {"memory_mb": 64}}, "policy: {'memory_mb': 64} is not accepted; expected ramet.Policy"),
    ({"root_policy": {"memory_mb": 64}}, "root_policy: {'memory_mb': 64} is not accepted; expected ramet.Policy"),
    ({"limits": 5}, "limits: 5 is not accepted; expected ramet.Limits"),
    ({"limits": {"tokens": 5}}, "limits: {'tokens': 5} is not accepted; expected ramet.Limits"),
    ({"spawn_limits": 5}, "spawn_limits: 5 is not accepted; expected ramet.SpawnLimits"),
    ({"omitted_type": "frok"}, "omitted_type: 'frok' is not accepted; expected 'fork' or 'general-purpose'"),
    ({"approver": True}, "approver: True is not accepted; expected a function"),
    ({"unattended": "no"}, "unattended: 'no' is not accepted; expected True or False"),
    ({"compaction": 5}, "compaction: 5 is not accepted; expected "),
    ({"compaction": True}, "compaction: True is not accepted; expected "),
    ({"history": ["Hello"]}, "history[0]: 'Hello' is not accepted; expected a LangChain message"),
    ({"history": 5}, "history: 5 is not accepted; expected a list of LangChain messages"),
    ({"agents": 5}, "agents: 5 is not accepted; expected a list"),
    ({"runtime": 5}, "runtime: 5 is not accepted; expected ramet.AgentRuntime"),
    ({"cwd": 5}, "cwd: 5 is not accepted; expected an existing folder"),
    ({"system_prompt": 5}, "system_prompt: 5 is not accepted; expected text"),
    ({"model": "anthropic:claude-sonnet-5-5"}, "model: 'anthropic:claude-sonnet-5-5' is not accepted; expected None"),
]


@pytest.mark.parametrize(("arguments", "begins"), OF_A_SESSION, ids=lambda each: str(each)[:40])
def test_a_session_refuses_an_argument_of_a_wrong_type(arguments: dict[str, Any], begins: str) -> None:
    assert refusal(lambda: Session(ScriptedModel(["ok"]), **arguments)).startswith(begins)


@pytest.mark.parametrize("model", [NO_MODEL, 5, ["a"]], ids=["runnable", "number", "list"])
def test_a_model_argument_must_be_a_chat_model(model: Any) -> None:
    """A chain around a model cannot get tools or be charged."""
    message = "is not accepted; expected a LangChain chat model itself"
    assert refusal(lambda: Session(model)).startswith("llm: ")
    assert message in refusal(lambda: Session(model))
    assert refusal(lambda: Session(model=model)).startswith("model: ")
    assert message in refusal(lambda: Agent(name="a", model=model))


async def test_a_resumed_session_refuses_an_approver_that_is_not_a_function(tmp_path: Path) -> None:
    approver: Any = 5
    with pytest.raises(InvalidValue, match=r"^approver: 5 is not accepted; expected a function"):
        await Session.resume("nightly", ScriptedModel(["ok"]), cwd=tmp_path, approver=approver)


@pytest.mark.parametrize(
    ("arguments", "begins"),
    [
        ({"grace_s": "5"}, "grace_s: '5' is not accepted; expected a number of seconds from 0"),
        ({"grace_s": -1}, "grace_s: -1 is not accepted; expected a number of seconds from 0"),
        ({"grace_s": float("nan")}, "grace_s: nan is not accepted"),
        ({"clock": 5}, "clock: 5 is not accepted; expected a clock"),
        ({"prices": 5}, "prices: 5 is not accepted; expected a mapping"),
        ({"retry": 5}, "retry: 5 is not accepted; expected a ramet.models.rate_limit.RetryPolicy"),
        ({"store": 5}, "store: 5 is not accepted; expected a store"),
        ({"audit": 5}, "audit: 5 is not accepted; expected a ramet.host.observability.audit.Audit"),
        ({"keep_folders": 5}, "keep_folders: 5 is not accepted; expected "),
        ({"keep_trees": "x"}, "keep_trees: 'x' is not accepted; expected a whole number from 0"),
        ({"working_dir": 5}, "working_dir: 5 is not accepted; expected the path of a folder"),
    ],
    ids=lambda each: str(each)[:30],
)
def test_a_runtime_refuses_an_argument_of_a_wrong_type(arguments: dict[str, Any], begins: str) -> None:
    assert refusal(lambda: AgentRuntime(**arguments)).startswith(begins)


@pytest.mark.parametrize(
    ("arguments", "begins"),
    [
        ({"policy": {"memory_mb": 64}}, "policy: {'memory_mb': 64} is not accepted; expected ramet.Policy"),
        ({"limits": 5}, "limits: 5 is not accepted; expected ramet.Limits"),
        ({"spawn_limits": 5}, "spawn_limits: 5 is not accepted; expected ramet.SpawnLimits"),
        ({"args": 5}, "args: 5 is not accepted; expected a tuple"),
        ({"args": "abc"}, "args: 'abc' is not accepted; expected a tuple"),
        ({"kwargs": 5}, "kwargs: 5 is not accepted; expected a mapping"),
        ({"prompt": 5}, "prompt: 5 is not accepted; expected text"),
        ({"agents": [Agent(name="x")]}, "agents: "),
    ],
    ids=lambda each: str(each)[:30],
)
async def test_a_run_refuses_an_argument_of_a_wrong_type(arguments: dict[str, Any], begins: str) -> None:
    """Nothing starts, and no tree stays open."""
    async with AgentRuntime() as runtime:
        with pytest.raises(InvalidValue) as refusal:
            await runtime.run_agent(print, **arguments)

        assert str(refusal.value).startswith(begins)
        assert not runtime.trees


async def test_a_spawn_takes_a_request_and_nothing_else() -> None:
    request: Any = {"prompt": "Look."}
    async with Session(ScriptedModel(["ok"])) as session:
        with pytest.raises(InvalidValue, match=r"^request: .* is not accepted; expected a ramet\.SpawnRequest"):
            await session.spawn(request)


@pytest.mark.parametrize(
    "fields",
    [{}, {"prompt": "  "}, {"subagent_type": "general-purpose"}, {"agent": Agent(name="reader")}],
    ids=["fork", "blank", "type", "definition"],
)
async def test_an_agent_with_a_model_is_not_spawned_without_a_prompt(fields: dict[str, Any]) -> None:
    """Such an agent has no task, and the model must not be asked."""
    model = ScriptedModel(["ok", "ok"])
    async with Session(model) as session:
        with pytest.raises(InvalidValue, match=r"^prompt: .* is not accepted; expected text: what the agent is to do"):
            await session.spawn(SpawnRequest(**fields))

    assert not model.requests


async def test_a_tree_of_an_agent_with_a_model_needs_a_prompt() -> None:
    """The run would complete without an answer if it had no prompt."""
    async with AgentRuntime() as runtime:
        with pytest.raises(InvalidValue, match=r"^prompt: '' is not accepted; expected text: what the agent is to do"):
            await runtime.spawn(Agent(name="reader", model=ScriptedModel(["ok"])))

        assert not runtime.trees


async def test_an_agent_with_an_initial_prompt_needs_no_other() -> None:
    reader = Agent(name="reader", initial_prompt="Read the page.")
    async with Session(ScriptedModel(["done"])) as session:
        result = await (await session.spawn(SpawnRequest(agent=reader))).result()

    assert result.value == "done"


@pytest.mark.parametrize(
    ("arguments", "begins"),
    [
        ({"policy": {"memory_mb": 1}}, "policy: {'memory_mb': 1} is not accepted; expected ramet.Policy"),
        ({"limits": 5}, "limits: 5 is not accepted; expected ramet.Limits"),
        ({"prompt": 5}, "prompt: 5 is not accepted; expected text"),
        ({"name": 5}, "name: 5 is not accepted; expected text, or None"),
        ({"mode": "frok"}, "mode: 'frok' is not accepted; expected 'fresh', 'fork', or None"),
        ({"args": 5}, "args: 5 is not accepted; expected a tuple"),
        ({"kwargs": 5}, "kwargs: 5 is not accepted; expected a mapping"),
        ({"on_output": 5}, "on_output: 5 is not accepted; expected a function"),
    ],
    ids=lambda each: str(each)[:30],
)
def test_a_request_refuses_a_field_of_a_wrong_type(arguments: dict[str, Any], begins: str) -> None:
    assert refusal(lambda: SpawnRequest(**arguments)).startswith(begins)


@pytest.mark.parametrize(
    ("make", "begins"),
    [
        (
            lambda: UNTYPED.Policy(unknown=1),
            "policy.unknown: 'unknown' is not accepted; expected one of the fields cpu_cores, ",
        ),
        (
            lambda: UNTYPED.Limits(token=1),
            "limits.token: 'token' is not accepted; expected one of the fields tokens, usd, ",
        ),
        (
            lambda: UNTYPED.SpawnLimits(dept=1),
            "spawn_limits.dept: 'dept' is not accepted; expected one of the fields depth, ",
        ),
        (lambda: UNTYPED.Agent(nmae="a"), "agent.nmae: 'nmae' is not accepted; expected one of the fields "),
        (
            lambda: UNTYPED.SpawnRequest(promt="a"),
            "spawn_request.promt: 'promt' is not accepted; expected one of the fields ",
        ),
        (
            lambda: UNTYPED.Agent(name="a").with_limits(token=1),
            "limits.token: 'token' is not accepted; expected one of the ",
        ),
        (
            lambda: UNTYPED.Agent(name="a").replace(prompt="a"),
            "agent.prompt: 'prompt' is not accepted; expected one of the ",
        ),
        (lambda: UNTYPED.Agent(name="a").with_limits(5), "limits: 5 is not accepted; expected ramet.Limits"),
        (lambda: UNTYPED.Agent(name="a", tools=5), "tools: 5 is not accepted; expected a list"),
        (lambda: UNTYPED.Agent(name="a", background="no"), "background: 'no' is not accepted; expected True or False"),
        (lambda: UNTYPED.Agent(), "agent.name is missing; expected str"),
    ],
)
def test_an_unknown_field_is_refused_by_name(make: Callable[[], Any], begins: str) -> None:
    assert refusal(make).startswith(begins)


@pytest.mark.parametrize("kind", [Policy, Limits, SpawnLimits])
def test_a_mapping_of_fields_is_refused_and_not_shown(kind: Any) -> None:
    """A mapping of a policy's fields may hold values of secrets."""
    message = refusal(lambda: kind({"secrets": {"KEY": CANARY}}))

    assert f"expected its fields by name, as in {kind.__name__}(" in message
    assert CANARY not in message


def test_checked_data_can_be_copied_and_compared() -> None:
    policy, limits = Policy(memory_mb=64), Limits(tokens=5)

    assert dataclasses.replace(limits, tokens=6) == Limits(tokens=6)
    assert policy == Policy(memory_mb=64)
