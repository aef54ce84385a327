"""A session that opens, answers a prompt with one tool call, and closes: the first of a process, and later ones."""

from __future__ import annotations

import tempfile
from statistics import median

from benchmarks.cost import Cost, Figures
from benchmarks.models import Obedient, add
from ramet import AgentRuntime, Session


async def measure(count: int = 30) -> Figures:
    """Return the milliseconds of CPU for each session: with its own runtime, and in a folder with a journal."""
    first = await _session()
    later = [await _session() for _ in range(count)]
    with tempfile.TemporaryDirectory(prefix="ramet-bench-") as folder:
        folder_times = [await _session(folder) for _ in range(count)]
    return {"first_ms": first, "later_ms": median(later), "folder_ms": median(folder_times)}


async def _session(folder: str | None = None) -> float:
    with Cost() as cost:
        async with AgentRuntime(folder) as runtime, Session(Obedient(), [add], cwd=folder, runtime=runtime) as session:
            result = await session.ask("tools 1 add")
    assert result.value == "done", result
    return cost.cpu_s * 1e3
