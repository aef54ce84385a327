"""The end of a turn: its error as its reader gets it, and what it used of its agent's limits."""

from __future__ import annotations

import re

from ramet.core.errors import Aborted, NeedsInput, OutputTooLarge, RametError, TaskFailed
from ramet.core.limits import RESOURCES, Limits
from ramet.core.outcome import ErrorInfo, Result, Status, Usage

#: The message of `OutputTooLarge`: a result keeps the name and the message of its error, and no fields.
_TOO_LARGE = re.compile(
    r"(?P<what>[^\n]{1,200}?): (?P<size>[0-9]{1,19}) were left, "
    r"at most (?P<limit>[0-9]{1,19}) are taken(?:; (?P<remedy>.*))?"
)


def problem_of(result: Result, run: str) -> RametError | None:
    """Return the error to raise for a turn with this result; None if the turn completed."""
    if result.status is Status.COMPLETED:
        return None
    error = result.error or ErrorInfo(type=str(result.status), message="it ended without an error message")
    match result.status:
        case Status.CANCELLED:
            return Aborted(error.message)
        case Status.NEEDS_INPUT:
            return NeedsInput(error.message)
    if error.type == OutputTooLarge.__name__ and (match := _TOO_LARGE.fullmatch(error.message)) is not None:
        subject, size, limit, remedy = match.groups(default="")
        return OutputTooLarge(subject, size=int(size), limit=int(limit), remedy=remedy)
    return TaskFailed(f"{error.type}: {error.message}", status=str(result.status), run=run)


def resource_amounts(usage: Usage) -> dict[str, float]:
    """Return a usage by the names that teams and limits have for its parts."""
    return {
        "tokens": usage.tokens,
        "usd": usage.usd,
        "model_calls": usage.model_calls,
        "tool_calls": usage.tool_calls,
        "agents": usage.agents,
    }


def remaining_limits(limits: Limits, usage: Usage) -> Limits:
    """Return the limits of the next tree, after `usage` was permanently used. Time is limited per turn."""
    amounts = resource_amounts(usage)
    limit_values = {name: limit for name in RESOURCES if (limit := getattr(limits, name)) is not None}
    return Limits(
        seconds=limits.seconds, **{name: max(0, limit - amounts[name]) for name, limit in limit_values.items()}
    )
