"""CreateAgent and CallTask: what a model is shown, what it is told, and what becomes of what it says."""

from __future__ import annotations

from typing import Any, cast

import pytest
from langchain_core.messages.tool import tool_call
from langchain_core.utils.function_calling import convert_to_openai_tool

from ramet.core.errors import AgentNotResolved
from ramet.core.ids import Path, RunId
from ramet.core.outcome import ErrorInfo, Result, Status
from ramet.core.recipe import Recipe
from ramet.tools.agents.authoring import authoring_tools
from ramet.tools.context import Created, ToolUseContext, Tree
from ramet.tools.dispatch import run_tools
from tests.support.context import make_context

ENTRY = {
    "name": "solver",
    "primer": "You solve.",
    "capabilities": [{"type": "module", "name": "math", "include": ["sin"]}],
    "tasks": {"solve": {"docstring": "Solve it.", "parameters": {"b": {"type": "string"}, "a": {"type": "string"}}}},
}


class Child:
    """A child that has ended."""

    id, name, path, background = RunId("run-01"), "solver", Path("main/solver"), False

    def __init__(self, result: Result) -> None:
        self._result = result

    async def result(self) -> Result:
        """How it ended."""
        return self._result


class Forest:
    """A tree that keeps agents."""

    def __init__(self, result: Result) -> None:
        self.result = result
        self.entries: list[dict[str, Any]] = []
        self.asked: list[tuple[Any, ...]] = []

    async def create(self, context: ToolUseContext, entry: Any) -> Created:
        """Keep it."""
        self.entries.append(entry)
        return Created("main@…/solver@…", ("module os",))

    async def call_task(self, context: ToolUseContext, ref: str, task: str, arguments: Any, **more: Any) -> Child:
        """Have it done."""
        if ref == "nobody":
            raise AgentNotResolved(ref, "agent", ref, "is not there")
        self.asked.append((ref, task, arguments, more["call_id"]))
        return Child(self.result)


async def call(forest: Forest | None, *calls: tuple[str, dict[str, Any]]) -> list[tuple[str, str]]:
    """What a model reads of calls."""
    context = make_context(tools=authoring_tools(), tree=cast(Tree, forest))
    answers: list[tuple[str, str]] = []
    for number, (name, args) in enumerate(calls):
        [answer] = await run_tools(context, [tool_call(name=name, args=args, id=f"call-{number}")])
        answers.append((answer.status, answer.text))
    return answers


async def test_an_agent_is_written_down_as_a_registry_has_it() -> None:
    """Parameters in their order; the answer names its handle, its tasks, and what it did not get."""
    forest = Forest(Result(status=Status.COMPLETED))
    [(status, text)] = await call(forest, ("CreateAgent", ENTRY))

    assert status == "success"
    assert text.splitlines() == [
        "solver was created. Its handle: main@…/solver@…",
        "CallTask has it do one of its tasks:",
        "- solve(b, a): Solve it.",
        "It did not get these capabilities, because you do not have them: module os",
    ]
    recipe = Recipe.from_entry(forest.entries[0])
    assert list(recipe.tasks["solve"].parameters) == ["b", "a"]
    assert recipe.capabilities[0].include == ("sin",)


async def test_a_task_is_called_by_the_name_of_its_agent_or_its_handle() -> None:
    """A value is shown as JSON, text as it is."""
    forest = Forest(Result(status=Status.COMPLETED, value={"x": [1, None]}))
    answers = await call(
        forest,
        ("CreateAgent", ENTRY),
        ("CallTask", {"agent": "solver", "task": "solve", "arguments": {"a": "x"}}),
        ("CallTask", {"agent": "another@…", "task": "solve"}),
    )

    assert answers[1:] == [("success", '{"x": [1, null]}')] * 2
    assert forest.asked == [
        ("main@…/solver@…", "solve", {"a": "x"}, "call-1"),
        ("another@…", "solve", {}, "call-2"),
    ]
    [(_, text)] = await call(Forest(Result(status=Status.COMPLETED, value="x <system>")), ("CallTask", _ASK))
    assert text.startswith("x &lt;system>")


_ASK = {"agent": "solver", "task": "solve"}


async def test_what_fails_is_an_error_that_says_why() -> None:
    """A child that failed, an agent that is not there, arguments that are none, no runtime at all."""
    failed = Result(status=Status.FAILED, error=ErrorInfo(type="E", message="no root"))
    answers = await call(
        Forest(failed),
        ("CallTask", _ASK),
        ("CallTask", {"agent": "nobody", "task": "solve"}),
        ("CallTask", {"agent": 1}),
        ("CreateAgent", {**ENTRY, "colour": "red"}),
    )

    assert [status for status, _ in answers] == ["error"] * 4
    assert "did not finish: failed (no root)" in answers[0][1]
    assert "'nobody' cannot be resolved" in answers[1][1]
    assert "CallTask was called wrongly" in answers[2][1]
    assert "colour" in answers[3][1]
    assert (await call(None, ("CreateAgent", ENTRY)))[0][1].startswith("There is no runtime here")


@pytest.mark.parametrize("tool", authoring_tools(), ids=lambda tool: tool.name)
def test_a_model_is_shown_what_they_take(tool: Any) -> None:
    """With a description for each argument that needs one."""
    shown = convert_to_openai_tool(tool)["function"]

    assert shown["description"]
    assert set(shown["parameters"]["required"]) == (
        {"name", "primer", "tasks"} if tool.name == "CreateAgent" else {"agent", "task"}
    )
