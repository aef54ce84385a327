"""tools/context.py: the history, which is made on demand."""

from __future__ import annotations

import pytest
from langchain_core.messages import BaseMessage, HumanMessage

from ramet.concurrency.clock import SystemClock
from ramet.core.ids import Path, RunId
from ramet.tools.context import ToolUseContext
from ramet.tools.run_info import RunInfo


def a_context() -> ToolUseContext:
    info = RunInfo(id=RunId("run-1"), root=RunId("run-1"), path=Path("main"), agent="worker")
    return ToolUseContext(run=info, ask=None, clock=SystemClock())  # type: ignore[arg-type]  # nobody is asked


def test_a_history_is_made_once_on_demand() -> None:
    """Most resumed conversations are never read; one that is read stays the same list from then on."""
    count = 0

    def recall() -> list[BaseMessage]:
        nonlocal count
        count += 1
        return [HumanMessage(content="Go.")]

    context = a_context()
    context.set_history_loader(recall)
    assert count == 0

    context.history.append(HumanMessage(content="More."))

    assert [message.text for message in context.history] == ["Go.", "More."]
    assert count == 1


def test_other_missing_names_raise_an_error() -> None:
    """A name that a context does not have is an AttributeError."""
    with pytest.raises(AttributeError, match="histori"):
        _ = a_context().histori  # type: ignore[attr-defined]  # the point of the test


def test_a_history_may_be_set_before_it_is_read() -> None:
    """The set history holds, and the other one is never made."""
    context = a_context()
    context.set_history_loader(lambda: [HumanMessage(content="Old.")])

    context.history = []

    assert context.history == []
