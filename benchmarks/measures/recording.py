"""Costs of recording an event, in memory and with transcripts on disk: messages of 1 KB, and small events."""

from __future__ import annotations

import tempfile
from collections.abc import Callable

from langchain_core.messages import AIMessage

from benchmarks.cost import Cost, Figures
from ramet import AgentRuntime, ToolUseContext
from ramet.core.events import MessageRecorded, Notice
from ramet.models.messages import encode
from ramet.tools.context import current

MESSAGE = encode(AIMessage("x" * 1_000))


async def measure(count: int = 5_000) -> Figures:
    """Return the microseconds of CPU for each event, recorded by an agent of a runtime without and with a folder."""
    with tempfile.TemporaryDirectory(prefix="ramet-bench-") as folder:
        return {
            **{f"memory_{kind}_us": cost for kind, cost in (await _costs(None, count)).items()},
            **{f"disk_{kind}_us": cost for kind, cost in (await _costs(folder, count)).items()},
        }


async def _costs(folder: str | None, count: int) -> dict[str, float]:
    async with AgentRuntime(folder) as runtime:
        handle = await runtime.spawn(_record, args=(count,))
        result = await handle.result()
        costs: dict[str, float] = result.value
        return costs


async def _record(count: int) -> dict[str, float]:
    context = current()
    return {
        "message": _per_event(context, count, lambda: context.emit(MessageRecorded, message=MESSAGE)),
        "small": _per_event(context, count, lambda: context.emit(Notice, text="x")),
    }


def _per_event(context: ToolUseContext, count: int, emit: Callable[[], object]) -> float:
    emit()
    with Cost() as cost:
        for _ in range(count):
            emit()
    return cost.cpu_s / count * 1e6
