"""Limits of a tree: on what it uses, and on the number and the depth of its runs. Who counts is the budget."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal, NamedTuple, TypeAlias

from ramet.core.arguments import KnownFields
from ramet.core.errors import InvalidValue


class Amount(NamedTuple):
    """A quantity of every resource that a budget counts."""

    tokens: int = 0
    usd: float = 0.0
    model_calls: int = 0
    tool_calls: int = 0
    agents: int = 0


#: What happens to a run whose next request does not fit a limit.
AtLimit: TypeAlias = Literal["end", "pause"]

RESOURCES = Amount._fields
MAX_EXACT = 2**53  #: above this value floats and readers of JSON round, and a count would no longer be exact


@dataclass(frozen=True, kw_only=True)
class Limits(metaclass=KnownFields):
    """The most that a run and all runs below it may use; None means no limit of its own.

    `seconds` is wall-clock time. Raises InvalidValue, naming the field, for an amount that is negative, above 2^53, or
    not a number.
    """

    tokens: int | None = None  #: input (cache reads included) and output
    usd: float | None = None  #: US dollars, by the prices of the runtime
    model_calls: int | None = None  #: requests sent to providers, retries included
    tool_calls: int | None = None  #: calls of tools that began
    agents: int | None = None  #: spawns below this run; the end of a run does not return one
    seconds: float | None = None  #: of wall-clock time
    #: what a request meets that does not fit: `end` ends the run, `pause` waits until the limit is raised. None: as the
    #: scope above; the root ends. Time always ends.
    at_limit: AtLimit | None = None

    def __post_init__(self) -> None:
        for name in ("tokens", "model_calls", "tool_calls", "agents"):
            value = getattr(self, name)
            if value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MAX_EXACT:
                raise InvalidValue(f"limits.{name}", value, "a whole number from 0 to 2^53, or None")
        for name in ("usd", "seconds"):
            value = getattr(self, name)
            if value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= MAX_EXACT:  # nor NaN
                raise InvalidValue(f"limits.{name}", value, "a number from 0 to 2^53, or None")
        if self.at_limit not in (None, "end", "pause"):
            raise InvalidValue("limits.at_limit", self.at_limit, "end, pause, or None")

    @property
    def counts(self) -> bool:
        """True if any resource except time is limited here."""
        return any(getattr(self, name) is not None for name in RESOURCES)

    def tighten(self, other: Limits) -> Limits:
        """Return the smaller of both limits for each field. If one of them ends at its limit, so does the result."""
        pairs = {name: (getattr(self, name), getattr(other, name)) for name in (*RESOURCES, "seconds")}
        at_limit: AtLimit | None = (
            "end" if "end" in (self.at_limit, other.at_limit) else self.at_limit or other.at_limit
        )
        smaller = {name: min((v for v in pair if v is not None), default=None) for name, pair in pairs.items()}
        return Limits(**smaller, at_limit=at_limit)

    def add(self, more: Limits) -> Limits:
        """Return these limits, each raised by what `more` names.

        Raises InvalidValue for a resource that is not limited here, and if `more` says what happens at a limit.
        """
        if more.at_limit is not None:
            raise InvalidValue("add.at_limit", more.at_limit, "None: only amounts can be added")
        values = self.as_data()
        for name, value in more.as_data().items():
            if name not in values:
                limited = ", ".join(each for each in values if each != "at_limit") or "nothing"
                raise InvalidValue(f"add.{name}", value, f"what is limited here: {limited}")
            values[name] += value
        return Limits(**values)

    def as_data(self) -> dict[str, Any]:
        """Return the fields that are set, by name: `Limits(**data)` equals this object."""
        names = (*RESOURCES, "seconds", "at_limit")
        return {name: value for name in names if (value := getattr(self, name)) is not None}


NO_LIMITS = Limits()


def limits_from(data: Mapping[str, Any]) -> Limits:
    """Return limits from data that another process sent. Raises InvalidValue that names the field."""
    for name, value in data.items():
        if name not in RESOURCES and name not in ("seconds", "at_limit"):
            raise InvalidValue(f"limits.{name}", value, f"one of {', '.join((*RESOURCES, 'seconds'))}")
    return Limits(**data)


@dataclass(frozen=True, kw_only=True)
class SpawnLimits(metaclass=KnownFields):
    """Limits on the shape of a tree.

    Only living runs count, so the end of a run frees a place. `Limits.agents`, in contrast, counts spawns. Raises
    InvalidValue, naming the field.
    """

    depth: int = 3  #: levels that may exist below the root
    children: int = 64  #: living children of one run
    runs: int = 256  #: living runs of the tree, root included
    running: int | None = 16  #: runs that are active concurrently; those that wait for others do not count; None: any
    when_full: Literal["queue", "refuse"] = "queue"  #: how a spawn above `children` or `runs` is handled

    def __post_init__(self) -> None:
        for each in fields(self):
            value = getattr(self, each.name)
            if each.name == "when_full":
                if value not in ("queue", "refuse"):
                    raise InvalidValue("when_full", value, "'queue' or 'refuse'")
            elif not (each.name == "running" and value is None):
                minimum = 0 if each.name in ("depth", "children") else 1
                if not isinstance(value, int) or isinstance(value, bool) or value < minimum:
                    raise InvalidValue(each.name, value, f"a whole number from {minimum}")


DEFAULT_SPAWN_LIMITS = SpawnLimits()
