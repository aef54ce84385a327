"""The tool python: an agent's own code, run in its own sandbox, with its capabilities bound and its names kept.

This module runs nothing. Code goes to the context's interpreter, which exists only in a sandbox.
"""

from __future__ import annotations

from langchain_core.tools import BaseTool, ToolException
from pydantic import Field

from ramet.core.errors import Denied
from ramet.tools.arguments import Arguments, workspace_tool
from ramet.tools.context import require_current_call

NAME = "python"
DEFAULT_MS, MAX_MS = 120_000, 600_000
MAX_CODE = 256 * 1024  #: characters of one piece of code


class PythonArguments(Arguments):
    code: str = Field(max_length=MAX_CODE, description="Python source; the value of a last expression is shown")
    timeout: int = Field(DEFAULT_MS, ge=1_000, le=MAX_MS, description="Time limit in milliseconds")


async def python(arguments: PythonArguments) -> str:
    """Run code; return its output and value. An exception in the code is an error, with a traceback of the code alone.

    Raises Denied in the host.
    """
    interpreter = require_current_call().context.interpreter
    if interpreter is None:
        raise Denied(NAME, "code runs in a sandbox only; give the agent one, as in Agent(…, policy=Policy())")
    result = await interpreter.run(arguments.code, timeout_s=arguments.timeout / 1000)
    if not result.ok:
        raise ToolException(result.text)
    return result.text


def python_tool() -> BaseTool:
    """Return a tool with which a model writes and runs Python in its own sandbox; in the host it refuses."""
    return workspace_tool(
        NAME,
        "Run Python in your sandbox. Names are kept from call to call; `await` works at the top level; what is printed "
        "and the value of a last expression are returned, an exception as a traceback. Your capabilities are there "
        "under their names, and only they can be imported. `timeout` is in milliseconds "
        f"(default {DEFAULT_MS}, at most {MAX_MS}); waiting for other agents does not count.",
        PythonArguments,
        python,
        concurrency_safe=False,
        read_only=False,
        repeatable=False,
        waits=True,  # It has its own limit, and may wait for agents that it spawned.
    )
