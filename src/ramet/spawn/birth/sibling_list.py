"""The list of its siblings that a child reads at its start: a snapshot, for a definition that asks for it."""

from __future__ import annotations

from ramet.core.tool_names import SEND_MESSAGE
from ramet.spawn.run import Run
from ramet.spawn.watches.run_waits import view_of
from ramet.tools.agents.report_framing import neutralise

#: Siblings in one list: those that live first, the newest of each first.
MAX_SIBLINGS = 20


def with_sibling_list(brief: str, run: Run, runs: list[Run]) -> str:
    """Return the brief of a run, followed by the other children of its parent among `runs`, as they are now."""
    siblings = [each for each in reversed(runs) if each.parent is run.parent and each is not run]
    if not siblings:
        return brief
    siblings.sort(key=lambda each: not each.is_living)
    lines = [f"- {view.name} ({view.agent}): {view.state}" for view in map(view_of, siblings[:MAX_SIBLINGS])]
    if len(siblings) > MAX_SIBLINGS:
        lines.append(f"- and {len(siblings) - MAX_SIBLINGS} more")
    has_mail = any(tool.name == SEND_MESSAGE for tool in run.context.tools)
    reach = f", which {SEND_MESSAGE} reaches by name" if has_mail else ""
    return f"{brief}\n\n[other agents of your caller as you start{reach}:\n{neutralise(chr(10).join(lines))[0]}]"
