"""Pauses by a person: while a run is paused, it and the runs below it begin nothing new.

What is under way ends and is recorded: a request to a model, a tool call. Then the run waits before its next request,
call, spawn or turn, without a slot and without a reservation, and its time stands. Mail is kept.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

from ramet.core.errors import InvalidValue
from ramet.core.events import PauseEnded, RunPaused
from ramet.core.lifecycle import Fact, State
from ramet.spawn.masking import masked_text
from ramet.spawn.registry import RunRegistry
from ramet.spawn.run import Run
from ramet.tools.context import ToolUseContext
from ramet.tools.run_info import PauseReceipt

MAX_REASON = 1_000  #: characters


class TreePauses:
    """The pauses of one tree; the implementation of `ramet.tools.context.Pauses`."""

    def __init__(self, register: RunRegistry, apply_fact: Callable[[Run, Fact, str], None]) -> None:
        self._register, self._apply_fact = register, apply_fact
        self._paused = set[Run]()  #: living runs that a person paused
        self._changes = list[asyncio.Future[None]]()  #: of those that wait for the end of a pause

    def __bool__(self) -> bool:
        return bool(self._paused)

    # ---- by a person

    def pause(self, run: Run, reason: str = "", *, now: bool = False) -> PauseReceipt:
        """Pause a run and all below it; with `now`, cut what they do. A repetition is not recorded again.

        Raises InvalidValue for a run that has ended.
        """
        if not isinstance(reason, str) or len(reason) > MAX_REASON or not all(each.isprintable() for each in reason):
            raise InvalidValue("reason", reason, f"one line of at most {MAX_REASON} printable characters")
        _check_living(run)
        reason = masked_text(run, reason)  # In memory as on record: results and states show it.
        if run.pauses.reason != reason or now:
            self.restore(run, reason)
            run.context.emit(RunPaused, reason=reason, now=now)
            self._update_below(run)
            self._report()
        below = list(self._below(run))
        for each in below:
            each.pauses.slot_line.cut(lambda _: False)  # Its time would not stand in the line.
        for each in below if now else ():
            each.context.cuts.cut(each.context.slot.is_waiting)
            if each.sandbox.cut is not None:
                each.sandbox.cut()
        working = [each for each in below if each.state in (State.STARTING, State.RUNNING, State.STOPPING)]
        return PauseReceipt(
            tuple(each.path for each in below if each not in working), tuple(each.path for each in working)
        )

    def end(self, run: Run) -> None:
        """Let a run go on, and the runs below it that are not paused themselves; nothing happens if it is not paused.

        Raises InvalidValue for a run that has ended, or that is paused with a run above it.
        """
        _check_living(run)
        if run.pauses.reason is None:
            paused = covering_pause(run)
            if paused is not None:
                accepted = f"{paused.path}, which is paused with all below it: {paused.info.id}"
                raise InvalidValue("run", run.path, accepted)
            return
        run.context.emit(PauseEnded)
        self.forget(run)

    # ---- by the tree

    def restore(self, run: Run, reason: str) -> None:
        """Note that a run is paused, as its record says."""
        run.pauses.reason = reason
        self._paused.add(run)

    def forget(self, run: Run) -> None:
        """Drop the pause of a run, if there is one: it ended, or goes on."""
        if run in self._paused:
            self._paused.discard(run)
            run.pauses.reason = None
            for change in self._changes:
                if not change.done():
                    change.set_result(None)
            self._changes.clear()
            self._update_below(run)
            self._report()

    def covers(self, context: ToolUseContext) -> bool:
        """Return whether the run of this context, or a run above it, is paused."""
        run = self._register.runs.get(context.run.id)
        return bool(self._paused) and run is not None and covering_pause(run) is not None

    async def wait(self, context: ToolUseContext, *, is_counted: bool = False) -> None:
        """Wait until no pause covers the run of this context: see `Pauses.wait`."""
        run = self._register.runs.get(context.run.id)
        while run is not None and covering_pause(run) is not None:
            run.pauses.waits += 1
            try:
                await context.wait_without_slot(self._ended(run), is_counted=is_counted)
            finally:
                run.pauses.waits -= 1
                self.update(run)

    async def wait_to_begin(self, run: Run) -> None:
        """Wait with the next turn of a run until no pause covers it."""
        while covering_pause(run) is not None:
            run.pauses.is_before_turn = True
            self._apply_fact(run, Fact.START_PAUSED, pause_reason(run))
            try:
                await self._ended(run)
            finally:
                run.pauses.is_before_turn = False
                self._apply_fact(run, Fact.START_UNPAUSED, "")

    def update(self, run: Run) -> None:
        """Move a run into its pause, by a person or at a limit, or out of it."""
        if run.sandbox.on_pause is not None:
            run.sandbox.on_pause()
        if run.pauses.is_before_turn:
            return
        if not is_halted(run):
            if run.state is State.PAUSED:
                self._apply_fact(run, Fact.PAUSE_ENDED, "")
        elif not run.context.slot.is_held and run.state in (State.RUNNING, State.WAITING):
            self._apply_fact(run, Fact.PAUSE_BEGAN, pause_reason(run))

    async def _ended(self, run: Run) -> None:
        self.update(run)
        while covering_pause(run) is not None:
            change = asyncio.get_running_loop().create_future()
            self._changes.append(change)
            try:
                await change
            finally:
                if change in self._changes:  # The wait was given up.
                    self._changes.remove(change)

    def _report(self) -> None:
        """Report the change, also where no run changes its state: all of them may be idle."""
        for report in self._register.on_state:
            report()

    def _update_below(self, run: Run) -> None:
        for each in list(self._below(run)):
            self.update(each)

    def _below(self, run: Run) -> Iterator[Run]:
        """Iterate over the run and the living runs below it, also those that may outlive it."""
        return (each for each in self._register.living() if each is run or each.is_below(run))


def covering_pause(run: Run) -> Run | None:
    """Return the nearest run, the run itself or one above it, that a person paused; None without one."""
    return next((each for each in run.lineage() if each.pauses.reason is not None and each.is_living), None)


def is_halted(run: Run) -> bool:
    """Return whether a person, or a limit, keeps a run from going on."""
    return run.pauses.refusal is not None or covering_pause(run) is not None


def pause_reason(run: Run) -> str:
    """Return the pause, or the refusal, that keeps a run waiting; empty if there is none."""
    paused = covering_pause(run)
    if paused is None:
        return str(run.pauses.refusal or "")
    return f"by a person: {paused.pauses.reason}" if paused.pauses.reason else "by a person"


def _check_living(run: Run) -> None:
    if not run.is_living:
        raise InvalidValue("run", run.path, "a run that has not ended")
