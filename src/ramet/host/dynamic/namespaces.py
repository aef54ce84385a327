"""The place of a run's state: its namespace, and its branch. Both are computed from the run's identity alone."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import NamedTuple

from ramet.core.agent_ref import AgentRef
from ramet.core.errors import InvalidValue
from ramet.core.events import RunSpawned
from ramet.core.ids import checked_name, safe_name
from ramet.spawn.run import Run

MAIN = "main"
#: Characters of a place that appear unchanged in the name of a branch, which has at most 200.
_MOST = 120


class StateLocation(NamedTuple):
    """The facts about a run that determine the place of its state."""

    id: str
    name: str  #: of its agent
    ref: AgentRef | None
    parent: StateLocation | None
    owner: str  #: the server's agent whose state contains the tree's namespaces; empty in a tree of the program
    is_branch: bool  #: spawned on a branch of its parent's state
    fork_place: str  #: the namespace of the run that it was forked from, on a branch of its own; empty for other runs
    is_function: bool
    is_sandboxed: bool


def state_location(run: Run) -> StateLocation:
    """Return the state location of a run of this process."""
    parent = state_location(run.parent) if run.parent is not None else None
    return StateLocation(
        id=run.info.id,
        name=run.agent.name,
        ref=run.agent.ref,
        parent=parent,
        owner=parent.owner if parent is not None else run.request.state_owner,
        is_branch=bool(run.request.begins_at) and not run.request.fork_place and run.parent is not None,
        fork_place=run.request.fork_place,
        is_function=run.agent.function is not None,
        is_sandboxed=run.grant is not None,
    )


def recorded_state_location(spawns: Mapping[str, RunSpawned], id: str) -> StateLocation:
    """Return the state location of a recorded run, in whichever process it ran."""
    spawn = spawns[id]
    agent, ref = spawn.birth.get("agent", {}), spawn.birth.get("agent", {}).get("ref")
    parent = recorded_state_location(spawns, spawn.parent) if spawn.parent in spawns and spawn.parent else None
    return StateLocation(
        id=id,
        name=agent.get("name", spawn.agent),
        ref=AgentRef.parse(ref) if ref is not None else None,
        parent=parent,
        owner=parent.owner if parent is not None else spawn.birth.get("state_owner", ""),
        is_branch=bool(spawn.birth.get("begins_at")) and not spawn.birth.get("fork_place") and parent is not None,
        fork_place=spawn.birth.get("fork_place", ""),
        is_function="function" in agent,
        is_sandboxed="grant" in spawn.birth,
    )


def place_of(run: StateLocation) -> str:
    """Return the namespace of a run, which also has its registry: the place of its handle, else its agent's name.

    The name of a function that a sandboxed run started was chosen in the sandbox: it is put below its parent's place,
    so that it cannot be another agent's. A delegate on a branch works on its parent's state: the same place, on another
    branch. A fork of a run of another tree works on that run's state.
    """
    if run.fork_place:
        return run.fork_place
    if run.parent is not None and run.is_branch:
        return place_of(run.parent)
    if run.ref is not None:
        return run.ref.namespace
    try:
        name = checked_name("agent", run.name)
    except InvalidValue:
        name = safe_name(run.name)
    if run.parent is not None and run.parent.is_sandboxed and run.is_function:
        return f"{place_of(run.parent)}/{name}"
    return name


def branch_of(run: StateLocation) -> str:
    """Return the branch that a run works on: its own if it was spawned on one, else its parent's.

    The branch of a fork is named like that of a delegate of the run's agent: a later run of the agent can merge it.
    """
    if run.fork_place:
        return f"{_prefix(run.fork_place, '/')}{run.id}"
    if run.parent is None:
        return MAIN
    return branch_below(run.parent, run.id) if run.is_branch else branch_of(run.parent)


def branch_below(parent: StateLocation, id: str) -> str:
    """Return the name of a delegate's branch: it ends with the id of the delegate's run."""
    return f"{prefix_below(parent)}{id}"


def prefix_below(parent: StateLocation) -> str:
    """Return the prefix of the branches of a run's delegates alone; only an id follows the prefix."""
    branch = branch_of(parent)
    return _prefix(place_of(parent), "/") if branch == MAIN else _prefix(branch, "+")  # No agent's name has a "+".


def _prefix(base: str, separator: str) -> str:
    if len(base) > _MOST:
        base = f"~{hashlib.sha256(base.encode()).hexdigest()}"
    return f"{base}{separator}"
