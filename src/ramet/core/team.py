"""A team: resources reserved once, of which agents that are admitted hold a part until they end.

Of each resource, what agents hold, what was used up and what is free is the total, always. What an ended agent really
used of tokens, money and calls is gone for good; everything else of what it held returns. An agent may be found to have
used more than it held, as the price of a model's answer is known only afterwards: that is told as it was, and nothing
is free until others make up for it. Every operation returns a new team and leaves the old one as it was.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from ramet.core.errors import Bug, InvalidValue, MissingValue, OverCapacity
from ramet.core.ids import checked_name

#: What does not come back once it is used. A team that counts one of these admits only agents that say how much.
USED_UP = ("tokens", "usd", "model_calls", "tool_calls")
WHOLE = ("agents", "memory_mb", "tokens", "model_calls", "tool_calls")

_MOST = 2**53  #: above it floats round, and a sum would no longer be exact
_SLACK = 1e-9  #: sums of money in binary fractions are off by less than this


@dataclass(frozen=True, kw_only=True)
class Team:
    """`total` is by resource; `held` by the id of an agent, then by resource; `spent` is gone for good."""

    name: str
    total: Mapping[str, float]
    held: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    spent: Mapping[str, float] = field(default_factory=dict)

    @property
    def holding(self) -> dict[str, float]:
        """What living agents hold, by resource."""
        return {name: math.fsum(each.get(name, 0.0) for each in self.held.values()) for name in self.total}

    @property
    def free(self) -> dict[str, float]:
        """What could be held now, by resource; never less than 0."""
        holding = self.holding
        return {name: _left(total - holding[name] - self.spent.get(name, 0.0)) for name, total in self.total.items()}

    def admit(self, agent: str, need: Mapping[str, float]) -> Team:
        """Let an agent hold all that it needs; what the team does not count costs nothing.

        Raises OverCapacity, which names the first resource that is short and all that is free; InvalidValue for a need
        that is none, or that says nothing of what could be used up.
        """
        if agent in self.held:
            raise Bug(f"agent {agent} was admitted already to team {self.name}")
        counted = self._counted(need)
        self._check_room(counted, self.free)
        return replace(self, held={**self.held, agent: counted})

    def check(self, need: Mapping[str, float]) -> None:
        """Whether a need would fit if nobody held anything: raises what `admit` would raise then, for ever."""
        self._check_room(self._counted(need), replace(self, held={}).free)

    def release(self, agent: str, used: Mapping[str, float]) -> Team:
        """Take back what an agent held but for what it used up. Of an agent that holds nothing, nothing is counted."""
        if agent not in self.held:
            return self
        spent = dict(self.spent)
        for name in USED_UP:
            if name in self.total and name in used:
                spent[name] = math.fsum((spent.get(name, 0.0), amount(f"used.{name}", used[name])))
        return replace(self, held={id: each for id, each in self.held.items() if id != agent}, spent=spent)

    def _counted(self, need: Mapping[str, float]) -> dict[str, float]:
        if missing := [f"limits.{name}" for name in USED_UP if name in self.total and name not in need]:
            raise unstated(self.name, missing)
        return {name: amount(name, need[name], whole=name in WHOLE) for name in self.total if name in need}

    def _check_room(self, need: Mapping[str, float], free: Mapping[str, float]) -> None:
        for name, asked in need.items():
            if asked > free[name] + _SLACK:
                raise OverCapacity(self.name, name, asked=asked, room=free)


def resources(field: str, given: Mapping[str, float]) -> dict[str, float]:
    """What a team reserves, checked: `agents` is among it, counts are whole. Raises InvalidValue."""
    if not isinstance(given, Mapping) or "agents" not in given:
        raise InvalidValue(field, given, "amounts by the names of resources, agents among them")
    return {
        checked_name(field, name): amount(f"{field}.{name}", value, whole=name in WHOLE)
        for name, value in given.items()
    }


def unstated(team: str, fields: Sequence[str]) -> MissingValue:
    """Return the refusal of an agent that does not state what its team counts: it names all of that."""
    each = " of each" if len(fields) > 1 else ""
    return MissingValue(", ".join(fields), f"a value{each}: team {team!r} counts it, and has no default")


def amount(field: str, value: object, *, whole: bool = False) -> float:
    """A quantity of a resource. Raises InvalidValue for what is negative, not finite, or in parts where it has none."""
    accepted = f"a {'whole ' if whole else ''}number from 0 to 2^53"
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= _MOST:  # nor NaN
        raise InvalidValue(field, value, accepted)
    if whole and value != int(value):
        raise InvalidValue(field, value, accepted)
    return value


def _left(rest: float) -> float:
    return 0.0 if rest < _SLACK else rest
