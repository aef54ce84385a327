"""The tools with which an agent ends its task: task_success, task_fail, task_clarify.

The agent's run ends when the answers of that turn are recorded. A value must have the agreed form; otherwise the agent
is told so and continues.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage, ToolMessage
from langchain_core.tools import BaseTool
from pydantic import Field

from ramet.tools.arguments import Arguments, workspace_tool
from ramet.tools.context import DeclaredResult, current

SUCCESS, FAIL, CLARIFY = "task_success", "task_fail", "task_clarify"
CONCLUSIONS = frozenset({SUCCESS, FAIL, CLARIFY})


class _Success(Arguments):
    result: Any = Field(default=None, description="The result, in the agreed form.")


class _Fail(Arguments):
    message: str = Field(description="Why the task cannot be done.", max_length=10_000)


class _Clarify(Arguments):
    question: str = Field(description="What you must know before you can go on.", max_length=10_000)


@cache
def task_result_tools() -> tuple[BaseTool, ...]:
    """Return all three tools, shared by all runs: they have no state."""
    return (
        _tool(SUCCESS, "End the task with its result.", _Success),
        _tool(FAIL, "End the task: it cannot be done. Say why.", _Fail),
        _tool(CLARIFY, "End the task for now, with a question for the agent's caller.", _Clarify),
    )


def _tool(name: str, description: str, arguments_class: type[Arguments]) -> BaseTool:
    async def declare(arguments: Arguments) -> str:
        current().declared_result = _declared_result(name, dict(arguments))
        return "Noted."

    return workspace_tool(name, description, arguments_class, declare)


def find_declared_result(history: Sequence[BaseMessage]) -> DeclaredResult | None:
    """Return the conclusion in the newest reply, if its call was answered: equal in every process with the history."""
    answered: set[str] = set()
    for message in reversed(history):
        if isinstance(message, ToolMessage):
            if message.status != "error":
                answered.add(message.tool_call_id)
        elif isinstance(message, AIMessage):
            result = None
            for call in message.tool_calls:
                if call["id"] in answered and call["name"] in CONCLUSIONS:
                    result = _declared_result(call["name"], call["args"])
            return result
        else:
            return None
    return None


def _declared_result(tool: str, arguments: dict[str, Any]) -> DeclaredResult:
    match tool:
        case "task_success":
            return DeclaredResult("success", value=arguments.get("result"))
        case "task_fail":
            return DeclaredResult("fail", str(arguments.get("message", "")))
        case _:
            return DeclaredResult("clarify", str(arguments.get("question", "")))
