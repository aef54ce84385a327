"""Synchronous tools that run in processes: the tool stays here, with its schema and manners; its function travels."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import Any

from langchain_core.messages import ToolMessage
from langchain_core.tools import BaseTool, StructuredTool, ToolException
from langchain_core.tools.simple import Tool

from ramet.core.errors import NotShippable, ProtocolError
from ramet.tools.context import CurrentCall, ToolProcesses
from ramet.tools.workers.process_worker import perform
from ramet.tools.workers.thread_tools import is_async
from ramet.wire.code import capsule

_REMEDY = "or make the tool async, or open the session with sync_tools='thread'"
#: What LangChain gives a function that asks for it, and no other process can have.
_LIVE = ("callbacks", "run_manager")
_KEPT = (
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
    """Raise NotShippable for a synchronous tool that cannot run in a process of its own, naming it and what to do."""
    for tool in tools:
        if is_async(tool):
            continue
        function = function_of(tool)
        for name, each in _parameters(function).items():
            if (name in _LIVE and each.default is each.empty) or "RunnableConfig" in str(each.annotation):
                why = f"its function is given {name!r}, an object of this process"
                raise NotShippable(f"tool {tool.name!r}", why, f"take {name!r} away, {_REMEDY}")
        try:
            capsule.pack(function)
        except NotShippable as refused:
            why = f"{refused.what}: {refused.why}"
            raise NotShippable(f"tool {tool.name!r}", why, f"{refused.remedy}, {_REMEDY}") from None


def function_of(tool: BaseTool) -> Callable[..., Any]:
    """What a synchronous tool calls."""
    if _has_function(tool):
        assert isinstance(tool, StructuredTool | Tool)
        assert tool.func is not None, "what has neither func nor coroutine is no tool"
        return tool.func
    return tool._run


def process_proxy(tool: BaseTool, processes: ToolProcesses, call: CurrentCall) -> BaseTool:
    """The tool for one call: arguments are checked, and results put into words here; its function is called there."""
    function, has_artifact = function_of(tool), tool.response_format == "content_and_artifact"

    async def send(*args: Any, **kwargs: Any) -> Any:
        step = (str(call.call_id), str(call.step_id))
        packed = capsule.pack(perform, (function, args, kwargs, *step, has_artifact), secrets=processes.secrets)
        return _told(await processes.call(call.context, tool.name, packed))

    if _has_function(tool):
        return tool.model_copy(update={"coroutine": send})
    kept = {name: getattr(tool, name) for name in _KEPT}
    return StructuredTool(args_schema=tool.args_schema or tool.get_input_schema(), coroutine=send, **kept)


def _told(said: Any) -> Any:
    """What a function gave back, as it would have here. Its process is not believed in anything but the content."""
    match said:
        case {"value": value}:
            return value
        case {"pair": [content, artifact]}:
            return content, artifact
        case {"message": {"content": content, "artifact": artifact, "status": "success" | "error" as status}}:
            return ToolMessage(content=content, artifact=artifact, status=status, tool_call_id="")
        case {"refused": str() as why}:
            raise ToolException(why)
    raise ProtocolError("a tool's process gave back what is no result")


def _has_function(tool: BaseTool) -> bool:
    """Whether it is a function in LangChain's own wrapping, and no class with a `_run` of its own."""
    return type(tool)._run in (StructuredTool._run, Tool._run)


def _parameters(function: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    try:
        return dict(inspect.signature(function).parameters)
    except (TypeError, ValueError):  # a builtin that does not say
        return {}
