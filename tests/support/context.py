"""A `ToolUseContext` for a test: a run called `run-00` that may do everything but ask a model."""

from __future__ import annotations

import pathlib
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from langchain_core.messages import AIMessage, AIMessageChunk
from langchain_core.tools import BaseTool

from ramet.core.ids import CallId, Path, RunId, StepId
from ramet.tools.context import CurrentCall, ToolUseContext, current_call
from ramet.tools.model_request import ModelRequest
from ramet.tools.run_info import RunInfo


def run_info(number: int = 0, *, path: str = "main", agent: str = "main", depth: int = 0) -> RunInfo:
    """Return the identity of a run of a test: `run-00`, `run-01`, …, all of the tree `run-00`."""
    return RunInfo(
        id=RunId(f"run-{number:02d}"),
        root=RunId("run-00"),
        path=Path(path),
        agent=agent,
        depth=depth,
        parent=RunId("run-00") if number else None,
    )


def no_model(context: ToolUseContext, request: ModelRequest) -> AsyncIterator[AIMessageChunk | AIMessage]:
    """Replace the model in tests that must not ask one."""
    raise AssertionError("this test asks no model")


def make_context(cwd: pathlib.Path | None = None, tools: Sequence[BaseTool] = (), **fields: Any) -> ToolUseContext:
    """Make a context rooted in `cwd`; any field may be given by name, `run` and `ask` included."""
    fields.setdefault("run", run_info())
    fields.setdefault("ask", no_model)
    if cwd is not None:
        fields["cwd"] = cwd
    return ToolUseContext(tools=tuple(tools), **fields)


@contextmanager
def calling(context: ToolUseContext, call_id: str = "call-1") -> Iterator[ToolUseContext]:
    """Enter a tool call of `context`, as tools find it through `current()`."""
    token = current_call.set(CurrentCall(context, CallId(call_id), StepId(f"{context.run.id}:{call_id}")))
    try:
        yield context
    finally:
        current_call.reset(token)
