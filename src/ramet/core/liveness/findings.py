"""Findings of a watch about a run, in one line for people."""

from __future__ import annotations

from ramet.core.events import RunLooping, RunSilent


def describe_finding(event: RunSilent | RunLooping) -> str:
    """Return what a watch found, as the rest of a sentence that begins with the run."""
    if isinstance(event, RunLooping):
        # The name is the model's, and may hold anything.
        tool = event.tool if event.tool.isprintable() else ascii(event.tool)[:200]
        return f"it called {tool} {event.times} times in a row with the same arguments and the same result"
    waits = f" while it waited for its {event.waits_for}" if event.waits_for else ""
    return f"it showed no sign of life for {event.silent_s:g} s{waits}"
