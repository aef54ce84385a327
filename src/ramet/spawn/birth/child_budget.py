"""The reservation of a birth: one agent, and the budget of a child that has limits of its own."""

from __future__ import annotations

import math
from typing import NamedTuple

from ramet.core.budget import Budget, Hold
from ramet.core.errors import InvalidValue
from ramet.core.limits import RESOURCES, Amount, Limits

_ONE_AGENT = Amount(agents=1)


class BirthReservation(NamedTuple):
    """The share of its parent's budget that a spawn takes."""

    agent: Hold
    budget: Budget | None  #: the child's own: a slice, which returns when it closes; None: it draws on its parent's
    gift: Hold | None = None  #: taken from the parent permanently instead, for a child that outlives its parent

    def cancel(self) -> None:
        """Return everything: the spawn failed."""
        if self.budget is not None:
            self.budget.close()
        if self.gift is not None:
            self.gift.refund()
        self.agent.refund()

    def confirm(self) -> None:
        """Count the child, and settle the gift: the spawn succeeded."""
        self.agent.settle(_ONE_AGENT)
        if self.gift is not None:
            self.gift.settle(self.gift.amount)


def reserve_birth(parent_budget: Budget, limits: Limits, *, detached: bool) -> BirthReservation:
    """Reserve what the spawn of a child with these limits takes.

    Raises BudgetExceeded, having taken nothing, if it does not fit. Raises InvalidValue for a detached child without a
    limit of its own for a resource that is limited above: it cannot return anything to its parent.
    """
    agent = parent_budget.reserve(_ONE_AGENT)
    try:
        if detached:
            gift = parent_budget.reserve(_gift(parent_budget, limits))
            return BirthReservation(agent, Budget(limits, scope=""), gift)
        return BirthReservation(agent, Budget(limits, scope="", parent=parent_budget) if limits.counts else None)
    except BaseException:
        agent.refund()
        raise


def can_wait_at_limit(budget: Budget) -> bool:
    """Return whether a birth that draws on this budget may wait at a limit that pauses."""
    return any(owner is not None and owner.pauses for owner in map(budget.owner, RESOURCES))


def _gift(parent_budget: Budget, limits: Limits) -> Amount:
    for resource in RESOURCES:
        if parent_budget.limit(resource) != math.inf and getattr(limits, resource) is None:
            raise InvalidValue(f"limits.{resource}", None, "a limit of its own for a detached agent")
    return Amount(**{name: getattr(limits, name) or 0 for name in RESOURCES})
