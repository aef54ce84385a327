"""A team: resources reserved once, of which admitted agents hold a part until they end.

For each resource, the amounts that are held, spent and free always add up to the total. The tokens, money and calls
that an ended agent used are spent permanently; the rest of its held amount becomes free again. An agent can be found to
have used more than it held, because the price of a model's answer is known only afterwards. The real amount is
recorded, and nothing is free until other agents compensate for it. Each operation returns a new team and leaves the old
one unchanged.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from ramet.core.errors import Bug, InvalidValue, MissingValue, OverCapacity
from ramet.core.ids import checked_name

#: Resources that are spent permanently. A team that counts one of these admits only agents that state their need of it.
CONSUMED_RESOURCES = ("tokens", "usd", "model_calls", "tool_calls")
INTEGER_RESOURCES = ("agents", "memory_mb", "tokens", "model_calls", "tool_calls")

_MAX_EXACT = 2**53  #: above this value floats round, and a sum would no longer be exact
_TOLERANCE = 1e-9  #: sums of money in binary fractions are off by less than this


@dataclass(frozen=True, kw_only=True)
class Team:
    """A team with its reserved resources.

    `total` is by resource; `holdings` is by the id of an agent, then by resource; `spent_amounts` is used permanently.
    """

    name: str
    total: Mapping[str, float]
    holdings: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    spent_amounts: Mapping[str, float] = field(default_factory=dict)

    @property
    def held_amounts(self) -> dict[str, float]:
        """The amounts that living agents hold, by resource."""
        return {name: math.fsum(each.get(name, 0.0) for each in self.holdings.values()) for name in self.total}

    @property
    def free(self) -> dict[str, float]:
        """The amounts that could be held now, by resource; never less than 0."""
        held_amounts = self.held_amounts
        return {
            name: _clear_rounding(total - held_amounts[name] - self.spent_amounts.get(name, 0.0))
            for name, total in self.total.items()
        }

    def admit(self, agent: str, need: Mapping[str, float]) -> Team:
        """Let an agent hold everything that it needs; a resource that the team does not count costs nothing.

        Raises OverCapacity if a resource is short; the error names the first such resource and everything that is free.
        Raises InvalidValue if an amount is invalid, or if a consumable resource that the team counts is not stated.
        """
        if agent in self.holdings:
            raise Bug(f"agent {agent} was admitted already to team {self.name}")
        counted_need = self._check_need(need)
        self._check_capacity(counted_need, self.free)
        return replace(self, holdings={**self.holdings, agent: counted_need})

    def check(self, need: Mapping[str, float]) -> None:
        """Check whether a need would fit if no agent held anything.

        Raises the error that `admit` would raise in that case, and that would be permanent.
        """
        self._check_capacity(self._check_need(need), replace(self, holdings={}).free)

    def release(self, agent: str, used_amounts: Mapping[str, float]) -> Team:
        """Return the amounts that an agent held, except what it used up.

        If the agent holds nothing, nothing is counted.
        """
        if agent not in self.holdings:
            return self
        spent = dict(self.spent_amounts)
        for name in CONSUMED_RESOURCES:
            if name in self.total and name in used_amounts:
                spent[name] = math.fsum((spent.get(name, 0.0), amount(f"used.{name}", used_amounts[name])))
        return replace(
            self, holdings={id: each for id, each in self.holdings.items() if id != agent}, spent_amounts=spent
        )

    def _check_need(self, need: Mapping[str, float]) -> dict[str, float]:
        if missing := [f"limits.{name}" for name in CONSUMED_RESOURCES if name in self.total and name not in need]:
            raise missing_limits(self.name, missing)
        return {name: amount(name, need[name], whole=name in INTEGER_RESOURCES) for name in self.total if name in need}

    def _check_capacity(self, need: Mapping[str, float], free: Mapping[str, float]) -> None:
        for name, requested in need.items():
            if requested > free[name] + _TOLERANCE:
                raise OverCapacity(self.name, name, asked=requested, room=free)


def resources(field: str, amounts: Mapping[str, float]) -> dict[str, float]:
    """Return the checked resources that a team reserves.

    `agents` must be among them, and counts must be whole numbers. Raises InvalidValue otherwise.
    """
    if not isinstance(amounts, Mapping) or "agents" not in amounts:
        raise InvalidValue(field, amounts, "amounts by the names of resources, agents among them")
    return {
        checked_name(field, name): amount(f"{field}.{name}", value, whole=name in INTEGER_RESOURCES)
        for name, value in amounts.items()
    }


def missing_limits(team: str, fields: Sequence[str]) -> MissingValue:
    """Return the error for an agent that does not state everything that its team counts.

    The error names all missing fields.
    """
    each = " of each" if len(fields) > 1 else ""
    return MissingValue(", ".join(fields), f"a value{each}: team {team!r} limits it, and has no default")


def amount(field: str, value: object, *, whole: bool = False) -> float:
    """Return a checked quantity of a resource.

    Raises InvalidValue if it is negative, not finite, or fractional where only whole numbers are allowed.
    """
    accepted = f"a {'whole ' if whole else ''}number from 0 to 2^53"
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= _MAX_EXACT:  # nor NaN
        raise InvalidValue(field, value, accepted)
    if whole and value != int(value):
        raise InvalidValue(field, value, accepted)
    return value


def _clear_rounding(value: float) -> float:
    return 0.0 if value < _TOLERANCE else value
