"""The limits of runs as rows show them: what each allows, and what of it the run and all runs below it use and reserve.

A limit is a slice of the limit above: what a run with a limit of its own has not used is reserved above, as its budget
counts it. The requests to models that have no reply yet are reserved at their highest cost.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct

from ramet.core.limits import RESOURCES
from ramet.core.replay.replay import amount
from ramet.core.replay.run_replay import RunReplay

_DIGITS = 9  #: of money: sums of binary fractions are off by less
_NOTHING = (0.0,) * len(RESOURCES)


class LimitUse(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A limit of a run. What is left is the limit less both other amounts."""

    limit: int | float
    used: int | float = 0  #: by the run and all runs below it; of `seconds`, by the run, up to its newest event
    reserved: int | float = 0


class ReservedAmounts:
    """The amounts that each run of a tree reserves in the limits above it, kept current run by run."""

    def __init__(self, runs: Mapping[str, RunReplay]) -> None:
        """Set the runs of the tree, in the order of their spawns; the mapping may grow."""
        self._runs = runs
        self._own: dict[str, tuple[float, ...]] = {}  #: what a run reserves above, by run
        self._below: dict[str, list[float]] = {}  #: what the runs below a run reserve in it
        self.has_limits = False

    def update_all(self) -> ReservedAmounts:
        """Count every run; return this object."""
        self.has_limits = any(limits_of(each) for each in self._runs.values())
        if self.has_limits:
            for run in reversed(list(self._runs.values())):
                self._update_one(run)
        return self

    def update(self, upwards: Sequence[RunReplay]) -> None:
        """Count a run that changed, and the runs above it, given in that order."""
        if not self.has_limits:
            if any(limits_of(each) for each in upwards):
                self.update_all()
            return
        for run in upwards:
            self._update_one(run)

    def limits(self, run: RunReplay) -> dict[str, LimitUse]:
        """Return the limits of a run, by name."""
        limits = limits_of(run)
        if not limits:
            return {}
        used = dict(zip(RESOURCES, amount(run.subtree), strict=True))
        reserved = dict(zip(RESOURCES, _NOTHING if run.is_over else self._inside(run), strict=True))
        shown = {}
        for name, limit in limits.items():
            if name == "seconds":
                shown[name] = LimitUse(limit=limit, used=round(run.active_time.seconds, _DIGITS))
            else:
                shown[name] = LimitUse(
                    limit=limit, used=round(used[name], _DIGITS), reserved=round(reserved[name], _DIGITS)
                )
        return shown

    def _inside(self, run: RunReplay) -> tuple[float, ...]:
        """Return what is reserved in the limits of a run."""
        below = self._below.get(run.id, _NOTHING)
        if not run.model_requests:
            return tuple(max(0, each) for each in below)
        return tuple(max(0, each + more) for each, more in zip(below, amount(run.reservation), strict=True))

    def _update_one(self, run: RunReplay) -> None:
        new, old = self._reserved_above(run), self._own.get(run.id, _NOTHING)
        if new != old:
            self._own[run.id] = new
            below = self._below.setdefault(run.ancestor_id, [0.0] * len(RESOURCES))
            for index, (more, less) in enumerate(zip(new, old, strict=True)):
                below[index] += more - less

    def _reserved_above(self, run: RunReplay) -> tuple[float, ...]:
        inside = self._inside(run)
        if not (limits := limits_of(run)):
            return inside
        used = amount(run.subtree)
        return tuple(
            inside[index] if name not in limits else 0 if run.is_over else max(0, limits[name] - used[index])
            for index, name in enumerate(RESOURCES)
        )


def limits_of(run: RunReplay) -> dict[str, int | float]:
    """Return the limits of a run, with what was added to them, by name."""
    recorded = run.spawn_event.birth.get("limits")
    if not recorded:
        return {}
    limits: dict[str, int | float] = {}
    for name in (*RESOURCES, "seconds"):
        value = recorded.get(name) if isinstance(recorded, dict) else None
        if isinstance(value, int | float) and not isinstance(value, bool):
            limits[name] = value + sum(each.add.get(name, 0) for each in run.raised)
    return limits
