"""Functions of an image as tools. They are imported and called only in a sandbox."""

from __future__ import annotations

import asyncio
import importlib
import inspect
from collections.abc import Mapping
from typing import Any

import pydantic
from langchain_core.tools import BaseTool, ToolException

from ramet.core.errors import Denied
from ramet.tools.arguments import mistakes

_is_sandbox = [False]


def allow_imports() -> None:
    """Allow this process to import the code of tools: it is a sandbox."""
    _is_sandbox[:] = [True]


class ImportedTool(BaseTool):
    """A tool that calls `module:function` with validated arguments, and returns its result."""

    module: str
    function: str

    def _run(self, **arguments: Any) -> Any:
        """Call the function. Raises Denied in the host, and ToolException for invalid arguments or missing code."""
        if not _is_sandbox[0]:
            raise Denied(self.name, "code of an image runs in a sandbox only")
        try:
            function = getattr(importlib.import_module(self.module), self.function)
        except (ImportError, AttributeError) as problem:
            raise ToolException(f"{self.module}:{self.function} cannot be imported: {problem}") from None
        try:
            bound = pydantic.validate_call(function)
            result = bound(**arguments)
        except pydantic.ValidationError as error:
            raise ToolException(mistakes(self.name, error)) from None
        return asyncio.run(_await_result(result)) if inspect.isawaitable(result) else result


def imported_tool(
    module: str, function: str, description: str, schema: Mapping[str, Any], *, name: str = ""
) -> ImportedTool:
    """Return a tool with this schema for the model, which can be sent to a sandbox."""
    return ImportedTool(
        name=name or function,
        description=description,
        args_schema=dict(schema),
        module=module,
        function=function,
        handle_tool_error=False,
    )


async def _await_result(result: Any) -> Any:
    return await result
