"""The standstill of time limits: the time of a run that can only wait for a decision, or for a quota, does not count.

The time of a run stands while that of a run at or below it is stopped, and nothing there works, starts, or waits for a
person. So all work below a run counts for its limit. Each standstill is recorded, and a replay counts the same time. A
detached run is not below its parent.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from ramet.concurrency.clock import Clock
from ramet.core.events import TimeStarted, TimeStopped
from ramet.core.lifecycle import State
from ramet.spawn.run import Run

T = TypeVar("T")

#: States of a run whose time counts in any case.
_ACTIVE_STATES = frozenset({State.STARTING, State.RUNNING, State.STOPPING})


class TimeStops:
    """The runs of one tree whose time is stopped. While there are none, a change of a state costs one test."""

    __slots__ = ("_clock", "_stops", "_watch")

    def __init__(self, clock: Clock, watch: Callable[[Run], None]) -> None:
        self._clock = clock
        self._watch = watch  #: watches the time of a run whose end has moved
        self._stops: dict[Run, int] = {}  #: number of stops, of each run

    async def while_waiting(self, run: Run, wait: Awaitable[T], *, is_counted: bool = False) -> T:
        """Wait for something that no run can hasten, and return it: a person's decision, or the quota of a provider.

        While the run does nothing else, it has no slot, and its time stands. `is_counted` says that the slot counts the
        waiting call.
        """
        run.activity.quota_waits += 1
        try:
            return await run.context.wait_without_slot(self._stop_during(run, wait), is_counted=is_counted)
        finally:
            run.activity.quota_waits -= 1

    @contextmanager
    def standstill(self, run: Run) -> Iterator[None]:
        """Stop the time of a run while the context is open: see `stop`."""
        self.stop(run)
        try:
            yield
        finally:
            self.start(run)

    def stop(self, run: Run) -> None:
        """Let the time of a run stand while it only waits, and that of the runs that only wait for it.

        Each stop needs one `start`.
        """
        self._stops[run] = self._stops.get(run, 0) + 1
        self._update(run)

    def start(self, run: Run) -> None:
        """End one stop of a run; with the last one its time goes on."""
        self._stops[run] -= 1
        if not self._stops[run]:
            del self._stops[run]
        self._update(run)

    def follow(self, run: Run, *, was_paused: bool) -> None:
        """Let the time of a run stand or go on after a change of its state, and its process with it."""
        if was_paused is (run.state is State.PAUSED):
            self.update(run)
        elif was_paused:
            self.start(run)
        else:
            self.stop(run)
        if run.sandbox.on_state is not None:
            run.sandbox.on_state()

    def update(self, run: Run) -> None:
        """Let the time of a run, and of the runs above it, stand or go on after a change of the run's state."""
        if self._stops:
            self._update(run)

    async def _stop_during(self, run: Run, wait: Awaitable[T]) -> T:
        with self.standstill(run):
            return await wait

    def _update(self, run: Run) -> None:
        is_active = _is_active(run)
        for each in run.ancestors():
            if each.deadline is None:
                continue  # Its time is not limited.
            is_active = is_active or any(map(_is_active, each.descendants()))
            stands = not is_active and any(below in self._stops for below in each.descendants())
            if stands and each.time_stopped_at is None:
                each.time_stopped_at = self._clock.monotonic()
                each.context.emit(TimeStopped)
            elif not stands and each.time_stopped_at is not None:
                each.time_started_at += self._clock.monotonic() - each.time_stopped_at
                each.time_stopped_at = None
                each.context.emit(TimeStarted)
                self._watch(each)


def _is_active(run: Run) -> bool:
    # A function in a sandbox may work on in its process, whatever its run waits for, unless that is frozen.
    sandbox = run.sandbox
    has_process = sandbox.current is not None and sandbox.capsule is not None and not sandbox.is_frozen
    return has_process or run.state in _ACTIVE_STATES or run.context.person_waits > 0
