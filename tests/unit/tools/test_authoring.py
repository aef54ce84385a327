"""CreateAgent and CallTask: their schemas, their answers, and the effects of their arguments."""

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
from ramet.tools.context import ToolUseContext, Tree
from ramet.tools.dispatch import run_tools
from ramet.tools.spawn_request import CreationReceipt
from tests.support.context import make_context

ENTRY = {
    "name": "solver",
    "primer": "You solve.",
    "capabilities": [{"type": "module", "name": "math", "include": ["sin"]}],
    "tasks": {"solve": {"docstring": "Solve it.", "parameters": {"b": {"type": "string"}, "a": {"type": "string"}}}},
}


class EndedChild:
    """Child that has ended."""

    id, name, path, background = RunId("run-01"), "solver", Path("main/solver"), False

    def __init__(self, result: Result) -> None:
        self._result = result

    async def result(self) -> Result:
        """Return its result."""
        return self._result


class FakeTree:
    """Tree that keeps agents."""

    def __init__(self, result: Result) -> None:
        self.result = result
        self.entries: list[dict[str, Any]] = []
        self.requests: list[tuple[Any, ...]] = []

    async def create(self, context: ToolUseContext, entry: Any) -> CreationReceipt:
        """Keep the entry."""
        self.entries.append(entry)
        return CreationReceipt("main@…/solver@…", ("module os",))

    async def call_task(self, context: ToolUseContext, ref: str, task: str, arguments: Any, **more: Any) -> EndedChild:
        """Keep the request and return a child."""
        if ref == "nobody":
            raise AgentNotResolved(ref, "agent", ref, "is not there")
        self.requests.append((ref, task, arguments, more["call_id"]))
        return EndedChild(self.result)


async def call(forest: FakeTree | None, *calls: tuple[str, dict[str, Any]]) -> list[tuple[str, str]]:
    """Return the statuses and texts that a model reads after its calls."""
    context = make_context(tools=authoring_tools(), tree=cast(Tree, forest))
    answers: list[tuple[str, str]] = []
    for number, (name, args) in enumerate(calls):
        [answer] = await run_tools(context, [tool_call(name=name, args=args, id=f"call-{number}")])
        answers.append((answer.status, answer.text))
    return answers


async def test_a_created_agent_is_kept_as_in_a_registry() -> None:
    """Parameters keep their order; the answer names its handle, its tasks, and the capabilities that it did not get."""
    forest = FakeTree(Result(status=Status.COMPLETED))
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


async def test_a_task_is_called_by_the_name_or_handle_of_its_agent() -> None:
    """A value is shown as JSON, and text unchanged."""
    forest = FakeTree(Result(status=Status.COMPLETED, value={"x": [1, None]}))
    answers = await call(
        forest,
        ("CreateAgent", ENTRY),
        ("CallTask", {"agent": "solver", "task": "solve", "arguments": {"a": "x"}}),
        ("CallTask", {"agent": "another@…", "task": "solve"}),
    )

    assert answers[1:] == [("success", '{"x":[1,null]}')] * 2
    assert forest.requests == [
        ("main@…/solver@…", "solve", {"a": "x"}, "call-1"),
        ("another@…", "solve", {}, "call-2"),
    ]
    [(_, text)] = await call(FakeTree(Result(status=Status.COMPLETED, value="x <system>")), ("CallTask", _ASK))
    assert text.startswith("x &lt;system>")


_ASK = {"agent": "solver", "task": "solve"}


async def test_a_failure_is_an_error_with_its_reason() -> None:
    """Causes are a failed child, a missing agent, invalid arguments and a missing runtime."""
    failure = Result(status=Status.FAILED, error=ErrorInfo(type="E", message="no root"))
    answers = await call(
        FakeTree(failure),
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
def test_the_schemas_show_required_arguments(tool: Any) -> None:
    """Each tool has a description."""
    schema = convert_to_openai_tool(tool)["function"]

    assert schema["description"]
    assert set(schema["parameters"]["required"]) == (
        {"name", "primer", "tasks"} if tool.name == "CreateAgent" else {"agent", "task"}
    )
