"""Convert the entries of a list of tools: plain functions, names of ramet's own tools, and tools."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from ramet.core.errors import InvalidValue, Unknown

if TYPE_CHECKING:
    from langchain_core.tools import BaseTool

#: Providers' rule for the name of a tool: OpenAI's and Anthropic's.
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_ACCEPTED = "a function with a docstring, a LangChain tool, or the name of one of ramet's tools"
_VARIADIC = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}


def as_tools(entries: Iterable[BaseTool | Callable[..., Any] | str], field: str) -> tuple[BaseTool, ...]:
    """Return the tools of a list: functions as tools, and names as ramet's tools with these names.

    Raises InvalidValue, with the place in `field`, if an entry cannot be a tool, and Unknown for an unknown name.
    """
    from ramet.tools.builtins import builtin_tools

    tools = list[Any]()
    for index, entry in enumerate(_checked_list(entries, field)):
        if isinstance(entry, str):
            builtins = builtin_tools({})
            if entry not in builtins:
                raise Unknown("tool", entry, tuple(sorted(builtins)))
            tools.append(builtins[entry])
        else:
            tools.append(as_tool(entry, f"{field}[{index}]"))
    return tuple(tools)


def as_tool(entry: Any, field: str) -> BaseTool:
    """Return a tool, or a function as a tool. Raises InvalidValue if the entry cannot be one."""
    from langchain_core.tools import BaseTool, StructuredTool
    from langchain_core.utils.function_calling import convert_to_openai_tool

    if isinstance(entry, BaseTool):
        return entry
    if not inspect.isroutine(entry):
        raise InvalidValue(field, entry, _ACCEPTED + _hint(entry))
    _check(entry, field)
    is_async = inspect.iscoroutinefunction(entry)
    try:
        tool = StructuredTool.from_function(None if is_async else entry, coroutine=entry if is_async else None)
        convert_to_openai_tool(tool)  # It creates the schema for the model.
    except Exception as problem:  # Errors of pydantic and LangChain describe a parameter.
        reason = " ".join(str(problem).split())[:300]
        raise InvalidValue(field, entry, f"parameters that a JSON schema can describe ({reason})") from problem
    return tool


def _checked_list(entries: Any, field: str) -> Iterable[Any]:
    if isinstance(entries, str) or not isinstance(entries, Iterable):
        raise InvalidValue(field, entries, f"a list, each entry {_ACCEPTED}")
    return entries


def _check(function: Callable[..., Any], field: str) -> None:
    name = getattr(function, "__name__", "")
    if name == "<lambda>":
        raise InvalidValue(field, function, "a function made by def: a model calls it by its name")
    if not _NAME.fullmatch(name):
        raise InvalidValue(field, function, "a function with a name of 1 to 64 ASCII letters, digits, _ and -")
    if not inspect.getdoc(function):
        raise InvalidValue(field, function, f"a docstring in {name}: it tells the model what the tool does")
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        raise InvalidValue(field, function, "a function with a signature") from None
    for each in parameters:
        if each.kind in _VARIADIC:
            raise InvalidValue(field, function, f"named parameters, without {_VARIADIC[each.kind]}{each.name}")
        if each.kind is inspect.Parameter.POSITIONAL_ONLY:
            raise InvalidValue(field, function, f"named parameters: {each.name} has none outside of the function")


def _hint(entry: Any) -> str:
    if type(entry).__name__ == "Agent":
        return "; an agent goes into agents=, and the tool Agent starts it"
    if callable(entry):
        return ": wrap it in a function made by def"
    return ""
