"""The context of one of several model requests that a run makes at the same time."""

from __future__ import annotations

import dataclasses

from ramet.core.outcome import NO_USAGE
from ramet.tools.context import ToolUseContext


def context_of_request(context: ToolUseContext) -> ToolUseContext:
    """Return a copy of the run's context for one of several concurrent requests.

    The usage of the request is kept apart, and also counted in the run's context.
    """
    return dataclasses.replace(
        context,
        usage=NO_USAGE,
        last_usage=None,
        on_usage=context.spend,
        record=lambda event: context.record(event),
    )
