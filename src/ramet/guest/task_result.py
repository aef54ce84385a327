"""The functions task_success, task_fail and task_clarify for an agent's own code: they end the code and the task."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Never

from ramet.agent.capabilities.task import Task, handle_of
from ramet.agent.typed.values import encode_argument
from ramet.core.errors import InvalidValue
from ramet.guest.interpreter import Concluded
from ramet.tools.agents.task_result import CLARIFY, FAIL, SUCCESS
from ramet.tools.context import DeclaredResult, ToolUseContext

MAX_TEXT = 10_000  #: characters of a reason, or of a question


def conclusions(context: ToolUseContext) -> Mapping[str, Callable[[Any], Never]]:
    """Return the three functions for the code of a run.

    Each raises InvalidValue for an argument that cannot be sent; the code then continues.
    """

    def task_success(result: Any = None) -> Never:
        """End the task with its result, in the agreed form."""
        is_task = isinstance(result, Task)  # a task of an agent that it created: the handle of that agent
        data = handle_of(result, "result") if is_task else encode_argument(type(result), result, "result")
        _conclude(context, DeclaredResult("success", value=data))

    def task_fail(message: str) -> Never:
        """End the task: it cannot be done, and why."""
        _conclude(context, DeclaredResult("fail", _text("message", message)))

    def task_clarify(question: str) -> Never:
        """End the task for now, with a question to whoever asked for it."""
        _conclude(context, DeclaredResult("clarify", _text("question", question)))

    return {SUCCESS: task_success, FAIL: task_fail, CLARIFY: task_clarify}


def _conclude(context: ToolUseContext, conclusion: DeclaredResult) -> Never:
    context.declared_result = conclusion
    raise Concluded(f"[the task is concluded: {conclusion.kind}]")


def _text(field: str, text: Any) -> str:
    if not isinstance(text, str) or not text.strip() or len(text) > MAX_TEXT:
        raise InvalidValue(field, text, f"text of at most {MAX_TEXT} characters")
    return text
