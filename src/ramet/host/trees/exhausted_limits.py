"""The limits at which the runs of a tree wait for a raise: what each allows, what is used, and what is asked."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ramet.concurrency.limit_queue import QueuedRequest
from ramet.core.budget import Budget
from ramet.core.errors import BudgetExceeded
from ramet.core.ids import RunId
from ramet.spawn.registry import RunRegistry
from ramet.spawn.run import Run


@dataclass(frozen=True, kw_only=True)
class ExhaustedLimit:
    """A limit that must be raised before what waits there can go on."""

    run: RunId  #: the run that has the limit
    scope: str  #: its path
    resource: str
    limit: float
    used: float  #: amounts that runs below hold included
    asked: float  #: by the request that is named
    largest: float  #: the most that one of the waiting requests asks
    waiting: tuple[str, ...]  #: runs that wait here, the first one with the request that is named

    @property
    def suggestion(self) -> float:
        """Return the amount of the limit again, or what the largest request that waits here needs, if that is more."""
        return max(self.limit, self.used + self.largest - self.limit)

    @property
    def key(self) -> str:
        """Return the key of a raise, which changes once the limit is raised, or more of it is used."""
        return f"{self.run} {self.resource} {self.used:.12g}/{self.limit:.12g}"

    def __str__(self) -> str:
        more = f" and {len(self.waiting) - 1} more" if len(self.waiting) > 1 else ""
        used = f"{self.used:.12g} of {self.limit:.12g} used"
        return f"{self.waiting[0]}{more} at the limit of {self.scope}: {self.resource}, {used}, {self.asked:.12g} asked"


def exhausted_limits(register: RunRegistry) -> list[ExhaustedLimit]:
    """Return the limits at which only a raise can help, in the order of the runs that wait there."""
    by_scope: dict[tuple[int, str], list[tuple[Run, Budget, BudgetExceeded]]] = {}
    for run, request, refusal in _exhausted(register):
        if (owner := request.budget.owner(refusal.resource)) is not None:
            by_scope.setdefault((id(owner), refusal.resource), []).append((run, owner, refusal))
    found = []
    for (_, resource), waiting in by_scope.items():
        _, owner, first = waiting[0]
        if (holder := _holder(register, owner)) is None:
            continue
        limit = owner.limit(resource)
        found.append(
            ExhaustedLimit(
                run=holder.info.id,
                scope=owner.scope,
                resource=resource,
                limit=limit,
                used=limit - owner.remaining(resource),
                asked=first.asked,
                largest=max(refusal.asked for _, _, refusal in waiting),
                waiting=tuple(dict.fromkeys(run.path for run, _, _ in waiting)),
            )
        )
    return found


def end_at_limit(register: RunRegistry, paused: ExhaustedLimit) -> None:
    """End what waits at a limit, and all that does not fit there from now on, as with `at_limit="end"`.

    Nothing is left for a last answer. The decision is not recorded: in another process the limit pauses again.
    """
    run = register.find(paused.run)
    (run.own_budget or run.context.budget).end_at_limit()


def _exhausted(register: RunRegistry) -> Iterator[tuple[Run, QueuedRequest[Any], BudgetExceeded]]:
    for run in register.living():
        for request in run.pauses.limit_waits:
            if request.is_exhausted and request.refusal is not None:
                yield run, request, request.refusal


def _holder(register: RunRegistry, budget: Budget) -> Run | None:
    """Return the living run that has a scope."""
    scopes = (
        (run, run.own_budget or (run.context.budget if run.parent is None else None)) for run in register.living()
    )
    return next((run for run, scope in scopes if scope is budget), None)
