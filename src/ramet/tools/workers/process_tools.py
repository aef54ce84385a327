"""Run synchronous tools in processes: the tool and its schema stay here; its function is sent."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import Any

from langchain_core.messages import ToolMessage
from langchain_core.tools import BaseTool, StructuredTool, ToolException
from langchain_core.tools.simple import Tool

from ramet.core.errors import NotShippable, ProtocolError
from ramet.tools.context import CurrentCall, ToolProcesses
from ramet.tools.workers.process_worker import call_function
from ramet.tools.workers.thread_tools import is_async
from ramet.wire.code import capsule

_REMEDY = "or make the tool async, or open the session with sync_tools='thread'"
#: Arguments that LangChain passes on request, and that no other process can have.
_LIVE_ARGUMENTS = ("callbacks", "run_manager")
_COPIED_FIELDS = (
    "name",
    "description",
    "return_direct",
    "verbose",
    "callbacks",
    "tags",
    "metadata",
    "handle_tool_error",
    "handle_validation_error",
    "response_format",
)


def check_tools(tools: Iterable[BaseTool]) -> None:
    """Raise NotShippable, with the tool and a remedy, for a synchronous tool that cannot run in a separate process."""
    for tool in tools:
        if is_async(tool):
            continue
        function = function_of(tool)
        for name, each in _parameters(function).items():
            if (name in _LIVE_ARGUMENTS and each.default is each.empty) or "RunnableConfig" in str(each.annotation):
                why = f"its function is given {name!r}, an object of this process"
                raise NotShippable(f"tool {tool.name!r}", why, f"remove {name!r}, {_REMEDY}")
        try:
            capsule.pack(function)
        except NotShippable as error:
            why = f"{error.what}: {error.why}"
            raise NotShippable(f"tool {tool.name!r}", why, f"{error.remedy}, {_REMEDY}") from None


def function_of(tool: BaseTool) -> Callable[..., Any]:
    """Return the function that a synchronous tool calls."""
    if _has_function(tool):
        assert isinstance(tool, StructuredTool | Tool)
        assert tool.func is not None, "a tool has a func or a coroutine"
        return tool.func
    return tool._run


def process_proxy(tool: BaseTool, processes: ToolProcesses, call: CurrentCall) -> BaseTool:
    """Return the tool for one call: arguments and results are handled here; its function is called in the process."""
    function, has_artifact = function_of(tool), tool.response_format == "content_and_artifact"

    async def send(*args: Any, **kwargs: Any) -> Any:
        step = (str(call.call_id), str(call.step_id))
        packed = capsule.pack(call_function, (function, args, kwargs, *step, has_artifact), secrets=processes.secrets)
        return _decode_result(await processes.call(call.context, tool.name, packed))

    if _has_function(tool):
        return tool.model_copy(update={"coroutine": send})
    fields = {name: getattr(tool, name) for name in _COPIED_FIELDS}
    return StructuredTool(args_schema=tool.args_schema or tool.get_input_schema(), coroutine=send, **fields)


def _decode_result(outcome: Any) -> Any:
    """Return the result of a function as if called here. Only the content from its process is trusted."""
    match outcome:
        case {"value": value}:
            return value
        case {"pair": [content, artifact]}:
            return content, artifact
        case {"message": {"content": content, "artifact": artifact, "status": "success" | "error" as status}}:
            return ToolMessage(content=content, artifact=artifact, status=status, tool_call_id="")
        case {"refused": str() as why}:
            raise ToolException(why)
    raise ProtocolError("a tool's process returned an invalid result")


def _has_function(tool: BaseTool) -> bool:
    """Return whether the tool is a function in LangChain's wrapper, and no class with its own `_run`."""
    return type(tool)._run in (StructuredTool._run, Tool._run)


def _parameters(function: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    try:
        return dict(inspect.signature(function).parameters)
    except (TypeError, ValueError):  # a builtin without a signature
        return {}
