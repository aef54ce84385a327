"""The call of a tool: as LangChain makes it, without the preparation for its callbacks where nobody listens.

LangChain's `invoke` reads the signature and the type hints of a function at each call, and prepares a report for
callbacks. That takes about four times as long as the rest. So a function that wants nothing of it is called here, after
the same validation and in the same context. LangChain calls everything else: tools of other classes, functions with a
parameter for callbacks or configuration, tools that handle their errors or return an artifact, and each call that
somebody listens to.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import json
import typing
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from langchain_core.callbacks import AsyncCallbackManager
from langchain_core.messages import ToolMessage
from langchain_core.runnables import RunnableConfig, ensure_config
from langchain_core.runnables.config import var_child_runnable_config
from langchain_core.tools import BaseTool, StructuredTool

from ramet.tools.arguments import BuiltinTool
from ramet.tools.workers.start_check import StartCheck, start_check, with_start_check

if TYPE_CHECKING:
    from langchain_core.messages import ToolCall

#: Whether LangChain passes nothing to a function but its arguments.
_takes_arguments_only: weakref.WeakKeyDictionary[Callable[..., Any], bool] = weakref.WeakKeyDictionary()


async def invoke_async(tool: BaseTool, call: ToolCall, check: StartCheck | None) -> Any:
    """Return the answer of an async tool, which begins only if `check` raises no StoreFailed."""
    function = tool._arun if type(tool) is BuiltinTool else _function(tool, "coroutine")
    if function is None or _is_observed(tool):
        return await with_start_check(tool, check).ainvoke(call)
    positional, arguments = tool._to_args_and_kwargs(dict(call["args"]), call["id"])

    async def begin() -> Any:
        return await start_check(function, check)(*positional, **arguments)

    return _answer(tool, call, await asyncio.create_task(begin(), context=_context()))


def invoke(tool: BaseTool, call: ToolCall) -> Any:
    """Return the answer of a synchronous tool."""
    function = _function(tool, "func")
    if function is None or _is_observed(tool):
        return tool.invoke(call)
    positional, arguments = tool._to_args_and_kwargs(dict(call["args"]), call["id"])
    return _answer(tool, call, _context().run(function, *positional, **arguments))


def _context() -> contextvars.Context:
    """Return the context of a tool, as LangChain makes it: the tool sees a configuration, and can change no other."""
    context = contextvars.copy_context()
    if var_child_runnable_config.get() is None:
        context.run(var_child_runnable_config.set, ensure_config())
    return context


def _function(tool: BaseTool, name: str) -> Callable[..., Any] | None:
    """Return the tool's function if its call is a call of that function with the arguments, and nothing else."""
    if type(tool) is not StructuredTool:
        return None
    if tool.handle_tool_error or tool.handle_validation_error or tool.response_format != "content":
        return None
    function = getattr(tool, name)
    try:
        known = _takes_arguments_only.get(function)
        if known is None:
            known = _takes_arguments_only[function] = _has_plain_parameters(function)
    except TypeError:  # neither a hash nor a weak reference, such as a callable object with slots
        return None
    return function if known else None


def _has_plain_parameters(function: Callable[..., Any]) -> bool:
    try:
        parameters, hints = inspect.signature(function).parameters, typing.get_type_hints(function)
    except Exception:  # Of a user's annotations; LangChain has its own ways with them.
        return False
    return "callbacks" not in parameters and RunnableConfig not in hints.values()


def _is_observed(tool: BaseTool) -> bool:
    """Return whether LangChain would report the call: to callbacks of the tool, of its caller, or to a tracer."""
    config = var_child_runnable_config.get()  # `ensure_config` would also copy the rest of it.
    callbacks = config.get("callbacks") if config is not None else None
    return bool(AsyncCallbackManager.configure(callbacks, tool.callbacks, tool.verbose).handlers)


class _Returned(BaseTool):
    """A tool that answers what it is called with."""

    args_schema: Any = {"type": "object", "properties": {"value": {}}}  # noqa: RUF012 - pydantic copies it
    description: str = ""

    def _run(self, value: Any) -> Any:
        return value


def _answer(tool: BaseTool, call: ToolCall, value: Any) -> Any:
    """Return what LangChain makes of a function's value: a message, unless the value is an answer itself."""
    if isinstance(value, int | float | None):
        value = json.dumps(value)
    if isinstance(value, str):
        return ToolMessage(content=value, tool_call_id=call["id"] or "", name=tool.name)
    return _Returned(name=tool.name).invoke({**call, "args": {"value": value}})
