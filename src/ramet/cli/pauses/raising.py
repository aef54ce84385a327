"""The raise of a limit at which a tree is paused, in the process that resumes the tree."""

from __future__ import annotations

from collections.abc import Iterator

from ramet.core.errors import InvalidValue
from ramet.core.events import LimitPaused
from ramet.core.limits import Limits
from ramet.spawn.limits.raises import raise_limits
from ramet.spawn.run import Run


class RaiseAtResume:
    """A raise of the limits of one run before its tree goes on: once for each pause.

    It is the `prepare` of a resume. Nothing is raised unless a run is paused at that limit on record. The same amount
    is raised again only once more was used, or another pause was recorded: so a command that was killed can be
    repeated.
    """

    def __init__(self, run: str, add: Limits) -> None:
        self._run, self._add = run, add
        self.note = ""  #: for a person

    def __call__(self, root: Run) -> None:
        """Raise the limits. Raises InvalidValue and BudgetExceeded; then nothing was changed."""
        run = next((each for each in _living(root) if each.info.id == self._run), None)
        if run is None:
            raise InvalidValue("ID", self._run, "a run that has not ended")
        budget = run.own_budget or (run.context.budget if run.parent is None else None)
        pauses = [each.pauses.recorded_limit for each in _living(root)]
        recorded = [each for each in pauses if isinstance(each, LimitPaused) and each.scope == run.path]
        waiting = [each for each in recorded if budget is not None and not budget.can_fit(each.resource, each.asked)]
        named = [each for each in waiting if each.resource in self._add.as_data()]
        if budget is None or not named:
            at = ", ".join(dict.fromkeys(each.resource for each in waiting)) or "nothing"
            self.note = f"nothing was added: at {run.path} ({run.info.id}), {at} is paused"
            return
        newest = max(named, key=lambda each: each.seq)
        used = budget.limit(newest.resource) - budget.remaining(newest.resource)
        amounts = " ".join(f"{name}+{value:.12g}" for name, value in self._add.as_data().items())
        spent = budget.spent_amount(newest.resource)
        key = f"resume {newest.seq} {newest.resource} {spent:.12g} {amounts}"
        if key in run.raised_limits:
            self.note = f"{amounts} was added before, and is not enough: {used:.12g} used, {newest.asked:.12g} asked"
            return
        raise_limits(None, run, self._add, key)


def _living(root: Run) -> Iterator[Run]:
    yield root
    for child in list(root.children.values()):
        yield from _living(child)
