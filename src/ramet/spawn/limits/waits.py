"""The waits of a tree's runs at limits that pause: what a run holds meanwhile, and what is recorded."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, TypeVar

from ramet.concurrency.limit_queue import LimitQueue, QueuedRequest, pausing_scope
from ramet.core.errors import BudgetExceeded
from ramet.core.events import LimitPaused
from ramet.core.replay.paused_limits import pause_id, raise_command, smallest_raise
from ramet.spawn.lifecycle.supervisor import Supervisor
from ramet.spawn.registry import RunRegistry
from ramet.spawn.run import Run
from ramet.tools.context import ToolUseContext

T = TypeVar("T")

_log = logging.getLogger("ramet.limits")


class LimitWaits:
    """The implementation of `ramet.tools.context.WaitAtLimit` for one tree."""

    def __init__(self, register: RunRegistry, supervisor: Supervisor) -> None:
        self._register, self._supervisor, self._queue = register, supervisor, LimitQueue()
        self._logged: set[tuple[str, str]] = set()  #: scopes and resources whose pause was logged

    async def __call__(
        self,
        context: ToolUseContext,
        refusal: BudgetExceeded,
        attempt: Callable[[], T],
        undo: Callable[[T], None],
        *,
        is_counted: bool = False,
    ) -> T:
        """Wait until a refused request fits, and return what `attempt` then returned.

        The run holds no slot meanwhile, if all that it does is waiting. Raises `refusal`, or a later one, if the limit
        does not pause.
        """
        run = self._register.runs.get(context.run.id)
        if run is None or pausing_scope(context.budget, refusal) is None:
            raise refusal
        if run.denied_limits.get((refusal.scope, refusal.resource)) == run.turns:
            raise refusal  # A person refused it for this turn.
        request = QueuedRequest(context.budget, attempt, lambda: self._update(run))
        waits = run.pauses.limit_waits
        waits.append(request)
        try:
            self._queue.join(request, refusal)
            granted = await context.wait_without_slot(request.future, is_counted=is_counted)
            run.pauses.recorded_limit = None  # A later pause is another one.
            self._logged.discard((refusal.scope, refusal.resource))
            return granted
        except BaseException:
            self._queue.leave(request)
            if run.turn.stop_result is not None:
                run.pauses.recorded_limit = None  # The next turn pauses anew.
            if request.future.done() and not request.future.cancelled() and request.future.exception() is None:
                undo(request.future.result())
            raise
        finally:
            waits.remove(request)
            self._update(run)

    def _update(self, run: Run) -> None:
        """Record why a run pauses, and move it into or out of its pause."""
        for request in run.pauses.limit_waits:
            if request.is_exhausted and request.refusal is not None:
                self._record(run, request, request.refusal)
        self._supervisor.pauses.update(run)

    def _record(self, run: Run, request: QueuedRequest[Any], refusal: BudgetExceeded) -> None:
        """Record a pause, unless an earlier kernel, or another request of the run at that limit, has recorded it."""
        if request.pause is not None:
            return
        key = (refusal.scope, refusal.resource)
        request.pause = next(
            (
                each.pause
                for each in run.pauses.limit_waits
                if each.pause is not None and (each.pause.scope, each.pause.resource) == key
            ),
            None,
        )
        if request.pause is not None:
            return
        if key not in self._logged:
            self._logged.add(key)
            run_id = next((each.info.id for each in self._register.living() if each.path == refusal.scope), "")
            command = raise_command(
                run_id, refusal.resource, smallest_raise(refusal.resource, refusal.asked, refusal.left)
            )
            _log.warning("%s waits: %s; to go on: %s", run.path, refusal, command)
        known = run.pauses.recorded_limit
        if known is not None and (known.scope, known.resource) == key and not _was_answered(run, known):
            request.pause = known
            return
        pause = run.context.emit(
            LimitPaused, resource=refusal.resource, asked=refusal.asked, left=refusal.left, scope=refusal.scope
        )
        assert isinstance(pause, LimitPaused), "an event stays one"
        run.pauses.recorded_limit = request.pause = pause


def _was_answered(run: Run, pause: LimitPaused) -> bool:
    """Return whether the limit was raised for this pause: its id is no answer any more."""
    id = pause_id(pause)
    return any(id in each.raised_limits for each in run.lineage())
