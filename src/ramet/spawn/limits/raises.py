"""Raise the limits of a run for its owner: once for each key, recorded before anything uses the new amounts."""

from __future__ import annotations

from ramet.core.arguments import check_instance
from ramet.core.errors import InvalidValue
from ramet.core.events import LimitsRaised
from ramet.core.limits import RESOURCES, Amount, Limits
from ramet.spawn.lifecycle.supervisor import Supervisor
from ramet.spawn.run import Run

MAX_KEY = 200  #: characters


def raise_limits(supervisor: Supervisor | None, run: Run, add: Limits, key: str = "") -> Limits:
    """Add to the limits of a run, and record it; the requests that wait there go on. Returns the new limits.

    A key that was used for the same raise adds nothing. Without a supervisor the run does not work yet, in a tree that
    is being resumed. Raises InvalidValue, and BudgetExceeded if the scope above has not that much free; nothing is
    changed then.
    """
    check_instance("add", add, Limits, "ramet.Limits")
    check_instance("key", key, str, "text")
    if len(key) > MAX_KEY or not key.isprintable():
        raise InvalidValue("key", key[:MAX_KEY], f"at most {MAX_KEY} printable characters")
    known = run.raised_limits.get(key) if key else None
    if known is not None:
        if known != add:
            raise InvalidValue("key", key, f"another key: this one raised {known.as_data()}")
        return run.limits
    if not run.is_living:
        raise InvalidValue("run", run.path, "a run that has not ended")
    amounts = {name: value for name, value in add.as_data().items() if name in RESOURCES}
    budget = run.own_budget or (run.context.budget if run.parent is None else None)
    if not add.as_data():
        raise InvalidValue("add", add, "at least one limit")
    if budget is None and amounts:
        scope = run.context.budget.scope
        raise InvalidValue("run", run.path, f"a run with limits of its own: this one uses those of {scope}")
    limits = run.limits.add(add)
    if budget is not None and amounts:
        budget.raise_limits(Amount(**amounts))
    run.limits = limits
    if key:
        run.raised_limits[key] = add
    if add.seconds is not None and supervisor is not None:
        supervisor.restart_deadline(run)
    run.context.emit(LimitsRaised, add=add.as_data(), key=key)
    return limits
