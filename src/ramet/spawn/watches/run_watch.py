"""The watch on one run: finds out that the run is silent, or that its model repeats a call, once for each time.

An event costs a look at the clock, and no timer is moved. When the timer of a run fires too early, it is set again for
the rest. While the run waits for something known, there is no timer: the end of such a wait is an event, which sets it.
"""

from __future__ import annotations

from collections.abc import Callable

from ramet.concurrency.clock import Clock
from ramet.concurrency.timers import Timer, TimerQueue
from ramet.core.events import Event, MessageRecorded, RunEnded, RunLooping, RunRetried, RunSilent, TurnStarted
from ramet.core.lifecycle import State
from ramet.core.liveness.call_repeats import CallRepeats, Repeat
from ramet.core.replay.run_replay import RunReplay
from ramet.spawn.run import Run
from ramet.spawn.watches.run_waits import EXPLAINED_WAITS, find_wait

#: Takes a run that is silent or loops, with the recorded event.
Act = Callable[[Run, RunSilent | RunLooping], None]


class RunWatch:
    """The observer of one watched run (`ramet.concurrency.activity.Watcher`)."""

    __slots__ = ("_act", "_clock", "_repeats", "_run", "_seen_s", "_timer", "_timers")

    def __init__(self, run: Run, clock: Clock, timers: TimerQueue, act: Act) -> None:
        self._run, self._clock, self._timers, self._act = run, clock, timers, act
        self._seen_s = clock.monotonic()  #: time of the newest sign of life
        self._timer: Timer | None = None
        self._repeats = CallRepeats() if run.watch.same_call is not None else None

    def on_event(self, event: Event) -> None:
        """Take an event of the run. Those of a watch are no sign of life."""
        kind = type(event)
        if kind is RunSilent or kind is RunLooping:
            return
        if kind is RunEnded:
            self._stop_timer()
            return
        self.on_chunk()
        if self._repeats is None:
            return
        if kind is TurnStarted or kind is RunRetried:
            self._repeats.clear()
        elif isinstance(event, MessageRecorded):
            repeat = self._repeats.add(event.message)
            if repeat is not None and repeat.times == self._run.watch.same_call:
                self._report_loop(repeat)

    def on_chunk(self) -> None:
        """Take note of a sign of life."""
        self._seen_s = self._clock.monotonic()
        if self._timer is None:
            self._start_timer()

    def resume(self, replay: RunReplay) -> None:
        """Count the calls of the turn that another process began.

        A loop that is on record is not recorded again. Its notice, or the end of the run, may not be on record.
        """
        if self._repeats is None or not replay.is_in_turn or replay.is_retried:
            return
        for message in replay.conversation[replay.turn_began_at :]:
            repeat = self._repeats.add(message.data)
            if repeat is None or repeat.times != self._run.watch.same_call:
                continue
            if repeat.call_id != replay.looping_call:
                self._report_loop(repeat)
            elif self._run.watch.on_loop in ("notify_parent", "end"):
                self._act(self._run, self._loop_event(repeat))

    def _start_timer(self) -> None:
        silent_s = self._run.watch.silent_s
        if silent_s is not None:
            self._timer = self._timers.call_at(self._seen_s + silent_s, self._check_silence)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _check_silence(self) -> None:
        self._timer = None
        run, now, silent_s = self._run, self._clock.monotonic(), self._run.watch.silent_s
        assert silent_s is not None, "otherwise there is no timer"
        waits_for = find_wait(run)
        if waits_for in EXPLAINED_WAITS or run.state is State.STOPPING or not run.is_living:
            return
        if now < self._seen_s + silent_s:
            self._start_timer()
            return
        action = run.watch.on_silent
        event = RunSilent(**run.info.stamp, silent_s=round(now - self._seen_s, 3), waits_for=waits_for, action=action)
        self._record(event)

    def _report_loop(self, repeat: Repeat) -> None:
        self._record(self._loop_event(repeat))

    def _loop_event(self, repeat: Repeat) -> RunLooping:
        stamp = {**self._run.info.stamp, "call_id": repeat.call_id}
        return RunLooping(**stamp, tool=repeat.tool, times=repeat.times, action=self._run.watch.on_loop)

    def _record(self, event: RunSilent | RunLooping) -> None:
        self._run.context.record(event)
        self._act(self._run, event)
