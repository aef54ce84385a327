"""The reservation of a birth: one agent, and the budget of a child that has limits of its own."""

from __future__ import annotations

import math
from typing import NamedTuple

from ramet.core.budget import Budget, Hold
from ramet.core.errors import InvalidValue
from ramet.core.limits import RESOURCES, Amount
from ramet.spawn.birth.plan import Plan
from ramet.spawn.run import Run

_ONE_AGENT = Amount(agents=1)


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


class BirthReservation(NamedTuple):
    """The share of its parent's budget that a spawn takes."""

    agent: Hold
    scope: ChildBudget | None  #: None: the child draws on its parent's budget

    def cancel(self) -> None:
        """Return everything: the spawn failed."""
        if self.scope is not None:
            self.scope.cancel()
        self.agent.refund()

    def confirm(self) -> None:
        """Count the child: the spawn succeeded."""
        self.agent.settle(_ONE_AGENT)
        if self.scope is not None:
            self.scope.confirm()


def reserve_birth(parent: Run, plan: Plan) -> BirthReservation:
    """Reserve what a spawn takes. Raises BudgetExceeded, having taken nothing, if it does not fit."""
    agent = parent.context.budget.reserve(_ONE_AGENT)
    try:
        return BirthReservation(agent, own_scope(parent, plan))
    except BaseException:
        agent.refund()
        raise


def can_wait_at_limit(budget: Budget) -> bool:
    """Return whether a birth that draws on this budget may wait at a limit that pauses."""
    return any(owner is not None and owner.pauses for owner in map(budget.owner, RESOURCES))


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
