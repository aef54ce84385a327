"""A result above `max_output_bytes` fails with OutputTooLarge, with size and limit, wherever the result comes from."""

from __future__ import annotations

import pathlib
import re
from typing import Any

import pytest
from langchain_core.tools import StructuredTool

import ramet
from ramet import Agent, AgentRuntime, Policy, ScriptedModel, Session, chain, parallel
from ramet.core.errors import OutputTooLarge
from ramet.core.outcome import ErrorInfo, Result, Status
from ramet.models.scripted.dialogue import Call
from ramet.services.agent_types.function.type import FunctionInfo, FunctionType
from ramet.services.agent_types.outcome import problem_of
from ramet.services.problems import to_problem as http_problem
from tests.trips.agents import isolated as agents
from tests.trips.isolation.test_code_agents import agent as coder
from tests.trips.isolation.test_code_agents import code
from tests.trips.kits.isolated import BackendName, backend, runtime
from tests.trips.kits.sessions import answers
from tests.trips.teams.test_agent_types import agent_spec, open_agent, request_body

__all__ = ["backend", "runtime"]

MOST = 1_000
SMALL = Policy(max_output_bytes=MOST)
SAID = re.compile(r"bytes of the result: (\d+) were left, at most 1000 are taken; return less, .*max_output_bytes.*")


def is_too_large(result: Result[Any] | ramet.AgentResult, size: int = 2_000) -> bool:
    """Return whether a result is that failure, with its size and its limit."""
    error = result.error
    match = SAID.fullmatch(error.message) if error is not None else None
    assert match is not None, result
    assert error is not None
    return (result.status, error.type) == (Status.FAILED, "OutputTooLarge") and int(match[1]) >= size


async def test_output_too_large_for_a_sandboxed_function(runtime: ramet.AgentRuntime) -> None:
    """The guest measures text, data, and values with binary parts, and does not send them."""
    for function, args in ((agents.big, (2_000,)), (agents.echo, ("x" * 2_000,)), (agents.echo, (b"x" * 2_000,))):
        assert is_too_large(await runtime.run_agent(agent=function, args=args, policy=SMALL))
    assert (await runtime.run_agent(agent=agents.big, args=(900,), policy=SMALL)).output == "b" * 900


async def test_output_too_large_for_a_sandboxed_child(runtime: ramet.AgentRuntime) -> None:
    """The parent in the sandbox reads the same error as the host."""
    policy = Policy(allow_sub_agents=True, memory_mb=512)
    asked_for = (agents.big, {"max_output_bytes": MOST}, (2_000,))
    result = await runtime.run_agent(agent=agents.spawn, args=asked_for, policy=policy)

    assert result.output["status"] == "failed"
    assert SAID.fullmatch(result.output["error"])


async def test_output_too_large_for_a_sandboxed_model_agent(runtime: ramet.AgentRuntime) -> None:
    """The host measures the last reply, which is the result."""
    for size, is_within in ((2_000, False), (900, True)):
        agent = Agent(name="speaker", model=ScriptedModel(["w" * size]), policy=SMALL)
        result = await (await runtime.spawn(agent, "go")).result()
        assert result.status is Status.COMPLETED if is_within else is_too_large(result)


@pytest.mark.parametrize("value", ["'x' * 2_000", "{'n': list(range(2_000))}"])
async def test_output_too_large_for_the_value_of_task_success(
    tmp_path: pathlib.Path, backend: BackendName, value: str
) -> None:
    """An agent that writes code passes a value above the limit to `task_success`."""
    agent = coder().replace(policy=SMALL)
    script: dict[str, Any] = {
        "Begin!": [Call("Agent", {"subagent_type": "coder", "prompt": "Play."}), "Done."],
        "Play.": [code(f"task_success({value})"), "never"],
    }
    async with Session(
        ScriptedModel(script), agents=[agent], cwd=tmp_path, backend=backend, unattended=True
    ) as session:
        await session.ask("Begin!")

        assert is_too_large(await session.handle("main/1").result())


async def test_output_too_large_for_a_tool_in_a_process(tmp_path: pathlib.Path) -> None:
    """The model reads the size and the limit."""

    def wide() -> str:
        """Return much."""
        return "w" * 2_000

    model = ScriptedModel([Call("wide", id="call-1"), "done"])
    tools = [StructuredTool.from_function(wide)]
    async with Session(model, tools, sync_tools="process", policy=SMALL, cwd=tmp_path) as session:
        await session.ask("Go.")

        assert SAID.search(answers(session.messages)["call-1"])


def wide(text: str) -> str:
    """Return much."""
    return text * 600


async def test_output_too_large_for_a_composition(tmp_path: pathlib.Path) -> None:
    """Each step in the host is within the limit, and the joined result is not."""
    both_branches = parallel(wide, wide, name="both").with_policy(SMALL)
    async with AgentRuntime(tmp_path / "work") as runtime:
        together = await (await runtime.spawn(both_branches, args=("w",))).result()
        single_result = await (await runtime.spawn(chain(wide, name="one").with_policy(SMALL), args=("w",))).result()

        assert is_too_large(together, 1_200)
        assert single_result.value == "w" * 600


async def test_output_too_large_over_http(tmp_path: pathlib.Path, backend: BackendName) -> None:
    """A turn of a function agent ends with the problem `output-too-large`, with size and limit."""
    async with AgentRuntime(tmp_path / "work", backend=backend) as runtime:
        info = FunctionInfo(function=f"{__name__}:wide")
        start = agent_spec(runtime, tmp_path / "ada", info, policy=SMALL)
        async with open_agent(FunctionType(allowed=["tests.trips"]), start) as agent:
            with pytest.raises(OutputTooLarge) as refusal:
                [chunk async for chunk in agent.turn(request_body("four"), "openai")]

    assert (refusal.value.what, refusal.value.size >= 2_400, refusal.value.limit) == ("bytes of the result", True, MOST)
    problem = http_problem(refusal.value)
    assert (problem.status, problem.type.rpartition(":")[2]) == (413, "output-too-large")


@pytest.mark.parametrize("message", ["", "x", "bytes: 1 were left", f"b: {'9' * 40} were left, at most 1 are taken"])
def test_an_error_that_only_has_the_name_is_a_failed_task(message: str) -> None:
    """A function may raise an error of its own with the name OutputTooLarge."""
    result = Result[Any](status=Status.FAILED, error=ErrorInfo(type="OutputTooLarge", message=message))

    assert type(problem_of(result, "run-1")).__name__ == "TaskFailed"
