"""The model requests of programs that were refused with 429, in a few words."""

from __future__ import annotations

from ramet.cli.render import formatting
from ramet.cli.render.sanitize import one_line
from ramet.core.events import ForwardRefused

MAX_REFUSALS = 5  #: that a line at the end names


def describe_refusal(event: ForwardRefused) -> str:
    """Return the refusal of a program's model request: `429 of the provider of claude-x, for 30s`."""
    model = one_line(event.model, 60)
    if event.by != "provider":
        return f"429 of this host for {model}: too many requests at once"
    return f"429 of the provider of {model}" + (
        f", for {formatting.duration(event.wait_s)}" if event.wait_s is not None else ""
    )
