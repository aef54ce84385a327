"""Where a run's state is: its namespace, and its branch. Decided here from who it is; nobody is asked."""

from __future__ import annotations

import hashlib

from ramet.core.errors import InvalidValue
from ramet.core.ids import checked_name, safe_name
from ramet.spawn.run import Run

MAIN = "main"
#: Characters of a place that stand in the name of a branch as they are: such a name has 200 at most.
_MOST = 120


def place_of(run: Run) -> str:
    """Its namespace, where its registry is, too: the place of its handle, else its name.

    A function that a sandboxed run started was named in there: its name stands behind its parent's place, so that it is
    nobody else's. A delegate on a branch works on its parent's state: the same place, elsewhere.
    """
    if run.parent is not None and run.request.begins_at:
        return place_of(run.parent)
    if run.agent.ref is not None:
        return run.agent.ref.place
    try:
        name = checked_name("agent", run.agent.name)
    except InvalidValue:
        name = safe_name(run.agent.name)
    if run.parent is not None and run.parent.grant is not None and run.agent.function is not None:
        return f"{place_of(run.parent)}/{name}"
    return name


def branch_of(run: Run) -> str:
    """The branch that it works on: its own if it was born to one, else its parent's, so none leaves a branch."""
    if run.request.begins_at and run.parent is not None:
        return branch_below(run.parent, run.info.id)
    return branch_of(run.parent) if run.parent is not None else MAIN


def branch_below(parent: Run, id: str) -> str:
    """The name of a delegate's branch: it ends with the id of its run."""
    return f"{prefix_below(parent)}{id}"


def prefix_below(parent: Run) -> str:
    """What the branches of a run's delegates begin with, and no others; behind it comes an id alone."""
    branch = branch_of(parent)
    above, sign = (place_of(parent), "/") if branch == MAIN else (branch, "+")  # No agent's name has a "+".
    if len(above) > _MOST:
        above = f"~{hashlib.sha256(above.encode()).hexdigest()}"
    return f"{above}{sign}"
