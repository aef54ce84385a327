"""The answers of a person to runs of a tree that pause at limits: raise the limit as far as needed, or refuse.

An entry stands for all requests of one run that wait at one limit. Its id is that of the recorded pause, so that every
process knows the entry by the same id. An approved entry is known by the key of its raise, which is on record.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ramet.concurrency.limit_queue import QueuedRequest, pausing_scope
from ramet.core.errors import BudgetExceeded, InvalidValue, Unknown
from ramet.core.events import LimitPaused, Notice
from ramet.core.ids import RunId
from ramet.core.limits import limits_from
from ramet.core.outcome import NO_USAGE, Usage
from ramet.core.replay.paused_limits import PausedLimit, pause_id, paused_limit
from ramet.spawn.lifecycle.supervisor import Supervisor
from ramet.spawn.limits.raises import raise_limits
from ramet.spawn.masking import masked_text
from ramet.spawn.registry import RunRegistry
from ramet.spawn.run import Run

MAX_REASON = 2_000  #: characters that are recorded


@dataclass(frozen=True, kw_only=True)
class LimitEntry:
    """A run that waits at a limit."""

    id: str
    run: Run
    pause: LimitPaused
    limit: PausedLimit


class LimitAnswers:
    """The entries of one tree, and the answers to them."""

    def __init__(self, register: RunRegistry, supervisor: Supervisor) -> None:
        self._register, self._supervisor = register, supervisor

    def entries(self) -> list[LimitEntry]:
        """Return the runs that only a raise lets go on, one entry for each limit at which a run waits."""
        return [
            LimitEntry(id=id, run=group.run, pause=group.pause, limit=group.limit)
            for id, group in self._groups().items()
            if any(each.is_exhausted for each in group.requests)
        ]

    def usage_of(self, run: RunId) -> Usage:
        """Return what a run and all runs below it have used."""
        known = self._register.runs.get(run)
        return known.subtree if known is not None else NO_USAGE

    def find_run(self, id: str) -> RunId | None:
        """Return the run of an entry; for an approved one, the run whose limit was raised. None if there is none."""
        group = self._groups().get(id)
        raised = self._raised_for(id)
        return group.run.info.id if group is not None else raised.info.id if raised is not None else None

    def approve(self, id: str) -> None:
        """Raise the limit by the smallest amount with which the requests of an entry go on, before all others there.

        An entry that was approved before is not approved again. Raises Unknown for any other id that is not waiting,
        BudgetExceeded if the scope above has not that much free.
        """
        group = self._groups().get(id)
        if self._raised_for(id) is not None:
            return
        if group is None:
            raise self._unknown(id)
        group.requests[0].serve_line()  # What was returned or raised before belongs to the first in line.
        if (group := self._groups().get(id)) is None:
            return
        limit = group.limit
        if group.owner is None:
            raise InvalidValue("approval", id, f"a pause at the limit of a living run: {limit.scope} is none")
        raise_limits(self._supervisor, group.owner, limits_from({limit.resource: _counted(limit)}), key=id)
        for request in reversed(group.requests):
            request.move_to_front()
        group.requests[0].serve_line()
        _renew(group.run, id)

    def deny(self, id: str, reason: str = "") -> None:
        """Refuse the requests of an entry, and the later ones of this turn at that limit, as a limit that ends does.

        That is recorded. Raises Unknown for an id that is not waiting.
        """
        group = self._groups().get(id)
        if group is None:
            raise self._unknown(id)
        run, refusal = group.run, group.refusal
        if reason:
            shown = masked_text(run, reason, MAX_REASON)
            run.context.emit(Notice, text=f"the request at the limit of {refusal.scope} was denied: {shown}")
        run.context.record_refusal(refusal)
        run.denied_limits[refusal.scope, refusal.resource] = run.turns
        run.pauses.recorded_limit = None
        for request in group.requests:
            request.refuse()

    def _groups(self) -> dict[str, _Group]:
        """Return what waits, also what may go on without a raise by now: it was shown, and its answer counts."""
        groups: dict[str, list[QueuedRequest[Any]]] = {}
        runs: dict[str, Run] = {}
        for run in self._register.living():
            for request in run.pauses.limit_waits:
                if request.pause is not None and not request.future.done():
                    id = pause_id(request.pause)
                    groups.setdefault(id, []).append(request)
                    runs[id] = run
        return {id: _Group(runs[id], requests) for id, requests in groups.items()}

    def _raised_for(self, id: str) -> Run | None:
        """Return the run whose limit was raised by an id; raises without a key belong to none."""
        return next((each for each in self._register.runs.values() if id and id in each.raised_limits), None)

    def _unknown(self, id: str) -> Unknown:
        return Unknown("approval", id, tuple(self._groups()))


class _Group:
    """The requests of one run that wait at one limit, and share their record."""

    def __init__(self, run: Run, requests: list[QueuedRequest[Any]]) -> None:
        first = requests[0]
        assert first.pause is not None, "only recorded pauses are answered"
        assert first.refusal is not None, "a request in line was refused"
        self.run, self.requests = run, requests
        self.pause: LimitPaused = first.pause
        self.refusal: BudgetExceeded = first.refusal
        resource, scope = self.refusal.resource, self.refusal.scope
        budget = pausing_scope(first.budget, self.refusal)
        free = self.refusal.left
        if budget is not None:
            used = budget.spent_amount(resource) + budget.reserved_amount(resource)
            free = budget.limit(resource) - used - budget.final_answer_reserve(resource)
        self.owner = next((each for each in run.lineage() if each.path == scope), None)
        self.limit = paused_limit(
            resource,
            asked=sum(each.refusal.asked for each in requests if each.refusal is not None),
            free=free,
            scope=scope,
            scope_run=self.owner.info.id if self.owner is not None else "",
        )


def _counted(limit: PausedLimit) -> float:
    return limit.amount if limit.resource == "usd" else int(limit.amount)


def _renew(run: Run, id: str) -> None:
    """Record a new pause for the requests of an answered entry that still wait."""
    waiting = [
        each
        for each in run.pauses.limit_waits
        if each.pause is not None and pause_id(each.pause) == id and not each.future.done()
    ]
    for each in waiting:
        each.pause = None
    if waiting:
        waiting[0].renew_pause()
