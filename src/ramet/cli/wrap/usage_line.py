"""The one line that `ramet wrap` prints at its end: how it ended, what it cost, what was refused and what was asked."""

from __future__ import annotations

from ramet.cli.render import formatting
from ramet.cli.render.refused_requests import MAX_REFUSALS, describe_refusal
from ramet.cli.render.sanitize import one_line
from ramet.core.events import BudgetRefused, EndpointAsked, Event, ForwardRefused
from ramet.core.outcome import Result, Status

_MAX_SHOWN = 5  #: endpoints, of each kind
_MAX_ENDPOINTS = 1000  #: that are told apart


class Observations:
    """The refusals and the endpoints of a program, by the events of its tree."""

    def __init__(self) -> None:
        self.exhausted_limits: dict[str, None] = {}  #: by the name of the resource, in their order
        self._endpoints: dict[tuple[str, bool], None] = {}
        self._refused_forwards: dict[str, None] = {}  #: as texts

    def take(self, event: Event) -> None:
        """Take note of an event."""
        if isinstance(event, BudgetRefused):
            self.exhausted_limits[event.resource] = None
        elif isinstance(event, ForwardRefused) and len(self._refused_forwards) < MAX_REFUSALS:
            self._refused_forwards[describe_refusal(event)] = None
        elif isinstance(event, EndpointAsked) and len(self._endpoints) < _MAX_ENDPOINTS:
            self._endpoints[f"{event.host}:{event.port}", event.allowed] = None

    def describe(self) -> list[str]:
        """Return the refusals and the endpoints, a few words each."""
        parts = []
        if self.exhausted_limits:
            parts.append(f"refused at the limit of {', '.join(self.exhausted_limits)}")
        parts += self._refused_forwards
        for allowed, title in ((False, "refused endpoints"), (True, "endpoints")):
            names = [name for name, is_allowed in self._endpoints if is_allowed is allowed]
            if names:
                more = f", and {len(names) - _MAX_SHOWN} more" if len(names) > _MAX_SHOWN else ""
                parts.append(f"{title}: {one_line(', '.join(names[:_MAX_SHOWN]), 400)}{more}")
        return parts


def usage_line(name: str, run: str, result: Result, status: int, observations: Observations) -> str:
    """Return the line."""
    if result.status is Status.COMPLETED:
        head = f"{name} ended with status {status}"
    else:
        reason = f": {one_line(result.error.message, 400)}" if result.error is not None else ""
        head = f"{name}: {result.status}{reason}"
    usage = result.usage_subtree
    money = f"{formatting.money(usage.usd)} at list prices{', estimated' if usage.estimated else ''}"
    parts = [
        one_line(head, 500),
        formatting.count(usage.model_calls, "model call"),
        f"{formatting.tokens(usage.tokens)} tokens",
        money,
        *observations.describe(),
        f"run {run}",
    ]
    return f"ramet: {' · '.join(parts)}"
