"""The note about what is left of a run's limits, for the end of each request to its model.

No record and no transcript has the note: it is computed anew for every request, from the limits as they are then.
"""

from __future__ import annotations

import math

from ramet.core.limits import SpawnLimits
from ramet.spawn.run import Run

#: Resources that are counted, with their names for a model.
_COUNTED = {"model_calls": "model calls", "tool_calls": "tool calls", "agents": "agents"}


def budget_note(run: Run, shape: SpawnLimits) -> str:
    """Return one line about the limits that bind the run, its own and those above; empty if none is set.

    A request under way counts as used. The depth is named where the run can spawn agents.
    """
    budget = run.context.budget
    parts = list[str]()
    for resource, name in _COUNTED.items():
        if (left := budget.remaining(resource)) != math.inf:
            parts.append(f"{left:.0f} of {budget.limit(resource):.0f} {name} left")
    if (tokens := budget.remaining("tokens")) != math.inf:
        parts.append(f"{tokens:,.0f} tokens left")
    if (usd := budget.remaining("usd")) != math.inf:
        parts.append(f"{math.floor(usd * 10_000) / 10_000:.4g} USD left")
    if (seconds := run.seconds_left(run.context.clock.monotonic())) is not None:
        parts.append(f"{seconds:.0f} s left")
    if any(tool.name == "Agent" for tool in run.context.tools):
        parts.append(f"depth {run.info.depth} of {shape.depth}")
    if not parts:
        return ""
    return f"[limits, this request included: {', '.join(parts)}]"
