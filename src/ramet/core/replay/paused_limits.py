"""Limits at which runs wait for a decision: their ids, the smallest raise that helps, and the command for it."""

from __future__ import annotations

import hashlib
import math

from msgspec import Struct

from ramet.core.events import LimitPaused
from ramet.core.replay.replay import TreeReplay
from ramet.core.replay.run_replay import RunReplay

#: Options of `ramet raise` whose names are not the names of their resources.
_OPTION_BY_RESOURCE = {"model_calls": "calls"}
#: Amounts of money are rounded up to a millionth.
_USD_STEPS = 1e6


class PausedLimit(Struct, frozen=True, kw_only=True):
    """A limit at which requests of a run wait, and the smallest raise with which exactly these go on."""

    resource: str
    asked: float
    left: float
    scope: str  #: path of the run whose limit it is
    scope_run: str  #: id of that run
    amount: float  #: to be added to the limit
    command: str  #: raises the limit by that amount


def pause_id(pause: LimitPaused) -> str:
    """Return the id with which a person answers a pause: equal in every process, and of one pause only."""
    return hashlib.sha256(f"limit {pause.run} {pause.seq}".encode()).hexdigest()[:16]


def smallest_raise(resource: str, asked: float, left: float) -> float:
    """Return the smallest amount with which `asked` fits, rounded up: money to a millionth, all else to a whole."""
    short = max(0.0, asked - left)
    if resource == "usd":
        return math.ceil(round(short * _USD_STEPS, 3)) / _USD_STEPS
    return math.ceil(short)


def raise_option(resource: str) -> str:
    """Return the option of `ramet raise` for a resource."""
    return "--" + _OPTION_BY_RESOURCE.get(resource, resource).replace("_", "-")


def raise_command(run: str, resource: str, amount: float) -> str:
    """Return the command that adds an amount to a limit of a run."""
    return f"ramet raise {run} {raise_option(resource)} {amount:.15g}"


def paused_limit(resource: str, *, asked: float, free: float, scope: str, scope_run: str) -> PausedLimit:
    """Return a limit with the raise with which `asked` fits; `free` is negative if the limit is exceeded."""
    amount = smallest_raise(resource, asked, free)
    return PausedLimit(
        resource=resource,
        asked=asked,
        left=max(0.0, free),
        scope=scope,
        scope_run=scope_run,
        amount=amount,
        command=raise_command(scope_run, resource, amount),
    )


def describe_pause(limit: PausedLimit) -> str:
    """Return one line for people: what is asked, and whose limit does not allow it."""
    return f"{limit.resource}: asks {limit.asked:.12g}, {limit.left:.12g} left of the limit of {limit.scope}"


class RecordedPause(Struct, frozen=True):
    """A run that waits at a limit, as far as its journal shows."""

    id: str
    run: RunReplay
    pause: LimitPaused
    limit: PausedLimit


def recorded_pauses(replay: TreeReplay) -> list[RecordedPause]:
    """Return the runs of a tree that wait at limits, without those whose limit was raised enough since."""
    pauses = list[RecordedPause]()
    for run in replay.runs.values():
        pause = run.limit_pause
        if pause is None or run.is_over:
            continue
        owner = _owner_of(replay, run, pause.scope)
        raised = sum(
            each.add.get(pause.resource, 0)
            for each in (owner.raised if owner is not None else ())
            if each.seq > pause.seq
        )
        limit = paused_limit(
            pause.resource,
            asked=pause.asked,
            free=pause.left + raised,
            scope=pause.scope,
            scope_run=owner.id if owner is not None else "",
        )
        if limit.amount:
            pauses.append(RecordedPause(pause_id(pause), run, pause, limit))
    return pauses


def _owner_of(replay: TreeReplay, run: RunReplay, scope: str) -> RunReplay | None:
    """Return the run at a path, among a run and those above it."""
    each: RunReplay | None = run
    while each is not None and each.spawn_event.path != scope:
        each = replay.runs.get(each.ancestor_id)
    return each
