"""The budget of a child that has limits of its own."""

from __future__ import annotations

import math
from typing import NamedTuple

from ramet.core.budget import RESOURCES, Amount, Budget, Hold
from ramet.core.errors import InvalidValue
from ramet.spawn.birth.plan import Plan
from ramet.spawn.run import Run


class ChildBudget(NamedTuple):
    """The own budget of a new run.

    A gift is taken from the parent's budget permanently; a slice returns when the scope closes.
    """

    budget: Budget
    reservation: Hold | None

    def cancel(self) -> None:
        """Return everything: the spawn failed."""
        self.budget.close()
        if self.reservation is not None:
            self.reservation.refund()

    def confirm(self) -> None:
        """Settle the gift: the spawn succeeded."""
        if self.reservation is not None:
            self.reservation.settle(self.reservation.amount)


def own_scope(parent: Run, plan: Plan) -> ChildBudget | None:
    """Return a scope for a new run with limits of its own.

    Raises BudgetExceeded, having taken nothing, if the limits do not fit. A child that outlives its parent cannot
    return anything to it. Its budget is a gift, so every resource that is limited above must be named.
    """
    parent_budget = parent.context.budget
    if not plan.request.detached:
        return ChildBudget(Budget(plan.limits, scope="", parent=parent_budget), None) if plan.limits.counts else None
    for resource in RESOURCES:
        if parent_budget.limit(resource) != math.inf and getattr(plan.limits, resource) is None:
            raise InvalidValue(f"limits.{resource}", None, "a limit of its own for a detached agent")
    reservation = parent_budget.reserve(Amount(**{name: getattr(plan.limits, name) or 0 for name in RESOURCES}))
    return ChildBudget(Budget(plan.limits, scope=""), reservation)
