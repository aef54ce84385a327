"""Tools whose functions run in another process: only the content of their results is trusted."""

from __future__ import annotations

from typing import Any

import pytest
from langchain_core.tools import BaseTool, StructuredTool, ToolException
from langchain_core.tools.simple import Tool

from ramet.core.errors import NotShippable, ProtocolError, RametError
from ramet.core.ids import CallId, StepId
from ramet.tools.context import CurrentCall, ToolUseContext
from ramet.tools.workers.process_tools import check_tools, function_of, process_proxy
from ramet.tools.workers.process_worker import call_function
from ramet.wire.code.capsule import PackedCall, unpack
from tests.support.context import make_context


class FixedProcess:
    """Process that returns the same for every call."""

    def __init__(self, result: Any = None) -> None:
        self.result = result
        self.secrets: tuple[str, ...] = ()

    def check(self, tools: Any) -> None:
        check_tools(tools)

    async def call(self, context: ToolUseContext, tool: str, packed_call: PackedCall) -> Any:
        if self.result is not None:
            return self.result
        call = unpack(packed_call.data, packed_call.tag)
        return call.function(*call.args, **call.kwargs)


def plus(a: int, b: int) -> int:
    """Add."""
    return a + b


ADD = StructuredTool.from_function(plus)


async def call_remotely(tool: BaseTool, processes: FixedProcess, args: Any) -> Any:
    current = CurrentCall(make_context(None, (tool,)), CallId("c1"), StepId("s1"))
    request = {"type": "tool_call", "name": tool.name, "id": "c1", "args": args}
    return await process_proxy(tool, processes, current).ainvoke(request)


@pytest.mark.parametrize(
    "result",
    [
        7,
        "text",
        [],
        {},
        {"pair": [1]},
        {"pair": [1, 2, 3]},
        {"message": {"content": "x"}},
        {"message": {"content": "x", "artifact": None, "status": "ok"}},
        {"refused": 7},
        {"@type": "langchain_core.messages.ToolMessage"},
    ],
    ids=str,
)
async def test_an_invalid_result_is_refused(result: Any) -> None:
    """Nothing that a process sends in place of a result is used."""
    with pytest.raises(ProtocolError, match="invalid result"):
        await call_remotely(ADD, FixedProcess(result), {"a": 1, "b": 2})


async def test_arguments_are_checked_before_anything_is_sent() -> None:
    """The schema of the tool itself is applied here."""
    with pytest.raises(Exception, match="validation error"):
        await call_remotely(ADD, FixedProcess({"value": "never"}), {"a": "one", "b": 2})


async def test_the_tool_itself_does_not_change() -> None:
    """A proxy is for one call."""
    assert (await call_remotely(ADD, FixedProcess(), {"a": 1, "b": 2})).content == "3"
    assert (ADD.coroutine, ADD.func) == (None, plus)


async def test_a_tool_of_one_argument_is_sent_like_any_other() -> None:
    """LangChain's older `Tool` receives its argument by position."""
    shout = Tool(name="shout", func=str.upper, description="Say it loud.")
    assert (await call_remotely(shout, FixedProcess(), {"tool_input": "hey"})).content == "HEY"


async def test_a_function_with_a_secret_is_not_sent() -> None:
    """Secrets of the policy are sent in their own way only, as with an agent's packed function."""
    key = "sk-1234567890"
    holding = StructuredTool.from_function(lambda: key, name="holding", description="Hold a key.")
    processes = FixedProcess()
    processes.secrets = (key,)
    with pytest.raises(NotShippable, match="secret"):
        await call_remotely(holding, processes, {})


def test_functions_of_each_kind_of_tool_are_found() -> None:
    """A subclass that overrides `_run` is called through it, even if it has another function."""

    class Own(StructuredTool):
        def _run(self, *args: Any, **kwargs: Any) -> Any:
            return "its own"

    own_tool = Own.from_function(plus)
    assert function_of(ADD) is plus
    assert function_of(own_tool)() == "its own"


def test_each_kind_of_result_is_marked() -> None:
    """A missing context is an error that says so."""

    def refuse() -> None:
        raise ToolException("no")

    def look() -> Any:
        from ramet.tools.context import current

        return current().cwd

    assert call_function(plus, (1, 2), {}, "c", "s", False) == {"value": 3}
    assert call_function(lambda: ("a", b"b"), (), {}, "c", "s", True) == {"pair": ["a", b"b"]}
    assert call_function(lambda: ("a", "b"), (), {}, "c", "s", False) == {"value": ("a", "b")}
    assert call_function(lambda: {1}, (), {}, "c", "s", False) == {"value": "{1}"}
    assert call_function(refuse, (), {}, "c", "s", False) == {"refused": "no"}
    with pytest.raises(RametError, match="'cwd' of a run's context is not available"):
        call_function(look, (), {}, "c", "s", False)
