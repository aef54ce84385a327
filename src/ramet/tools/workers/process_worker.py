"""The process side of a sent tool: calls its function in a separate process, and returns plain data.

The result states its kind: {"value": …}, {"pair": [content, artifact]}, {"message": {…}} of a tool that returns its own
`ToolMessage`, or {"refused": text} of a ToolException.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from typing import Any, Final

from ramet.core.errors import RametError
from ramet.core.ids import CallId, StepId
from ramet.tools.context import CurrentCall, current_call

_MESSAGES: Final = "langchain_core.messages"
_TOOLS: Final = "langchain_core.tools"


class _Absent:
    """A placeholder for a run's context, which stays in the host."""

    def __getattr__(self, name: str) -> Any:
        raise RametError(
            f"{name!r} of a run's context is not available in a tool's own process; call_id and step_id are. "
            "Make the tool async, or open the session with sync_tools='thread'"
        )


def call_function(
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    call_id: str,
    step_id: str,
    has_artifact: bool,
) -> dict[str, Any]:
    """Call the function, and return its outcome as data. Raises the function's exceptions, except ToolException."""
    call = CurrentCall(_Absent(), CallId(call_id), StepId(step_id))  # type: ignore[arg-type]  # see there
    token = current_call.set(call)
    try:
        value = function(*args, **kwargs)
    except Exception as error:
        if _is(error, _TOOLS, "ToolException"):
            return {"refused": str(error)}
        raise
    finally:
        current_call.reset(token)
    if _is(value, _MESSAGES, "ToolMessage"):
        message = {"content": value.content, "artifact": value.artifact, "status": value.status}
        return {"message": message}
    if has_artifact and isinstance(value, tuple) and len(value) == 2:
        return {"pair": [_as_data(value[0]), value[1]]}
    return {"value": _as_data(value)}


def _is(value: object, module: str, name: str) -> bool:
    """Return whether a value is of that class; False if the module was never loaded."""
    kind = getattr(sys.modules.get(module), name, None)
    return isinstance(kind, type) and isinstance(value, kind)


def _as_data(content: Any) -> Any:
    """Return the content for a model as data: values without JSON become text, wherever a tool runs."""
    if isinstance(content, str):
        return content
    try:
        json.dumps(content)
    except (TypeError, ValueError, RecursionError):
        return str(content)
    return content
