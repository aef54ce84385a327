"""Slots are requested, passed on, released and given up, in any order and between any two turns of the event loop."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from ramet.concurrency.slots import Slots

indexes = st.integers(0, 11)


@dataclass(eq=False)
class Request:
    """Request for a slot, in the order of asking."""

    task: asyncio.Task[None]
    given_back: bool = False

    @property
    def waits(self) -> bool:
        return not self.task.done()

    @property
    def holds(self) -> bool:
        return self.task.done() and not self.task.cancelled() and not self.given_back


class Line(RuleBasedStateMachine):
    """Machine that moves the event loop only by a rule: acts between two turns of the loop meet in the next turn."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.slots = Slots(1)
        self.asked: list[Request] = []
        self.at_once = 0  # places taken without waiting, and not given back

    def turn(self) -> None:
        self.loop.call_soon(self.loop.stop)
        self.loop.run_forever()

    @property
    def holders(self) -> int:
        return sum(each.holds for each in self.asked) + self.at_once

    # --- what may happen ----------------------------------------------------------------------------------------------

    @initialize(capacity=st.integers(1, 3))
    def begin(self, capacity: int) -> None:
        self.slots.capacity = capacity

    @rule()
    def ask(self) -> None:
        self.asked.append(Request(self.loop.create_task(self.slots.acquire())))

    @rule()
    def acquire_at_once(self) -> None:
        in_line = self.slots.queue_length
        taken = self.slots.try_acquire()
        assert not (taken and in_line), "it overtook those who wait"
        self.at_once += taken

    @precondition(lambda self: self.holders)
    @rule(which=indexes)
    def give_back(self, which: int) -> None:
        holding = [each for each in self.asked if each.holds]
        self.slots.release()
        if holding:
            holding[which % len(holding)].given_back = True
        else:
            self.at_once -= 1

    @precondition(lambda self: any(each.waits for each in self.asked))
    @rule(which=indexes)
    def cancel(self, which: int) -> None:
        waiting = [each for each in self.asked if each.waits]
        waiting[which % len(waiting)].task.cancel()

    @rule()
    def one_turn(self) -> None:
        self.turn()

    @rule()
    def settle(self) -> None:
        """Check that no slot is lost, no request waits without need, and none was overtaken, once the loop is idle."""
        for _ in range(5):
            self.turn()
        waiting = [each for each in self.asked if each.waits]
        assert self.slots.in_use == self.holders
        assert self.slots.queue_length == len(waiting)
        assert not waiting or self.slots.in_use == self.slots.capacity
        if waiting:
            later = self.asked[self.asked.index(waiting[0]) :]
            assert all(each.waits or each.task.cancelled() for each in later), "the first in line was overtaken"

    # --- what holds at all times --------------------------------------------------------------------------------------

    @invariant()
    def never_above_capacity(self) -> None:
        assert self.slots.capacity is not None
        assert self.holders <= self.slots.in_use <= self.slots.capacity

    def teardown(self) -> None:
        """Check that all slots are free when every request is over."""
        for each in self.asked:
            each.task.cancel()
        for _ in range(5):
            self.turn()
        for _ in range(self.holders):
            self.slots.release()
        try:
            assert (self.slots.in_use, self.slots.queue_length) == (0, 0)
        finally:
            self.loop.close()


TestLine = Line.TestCase
TestLine.settings = settings(max_examples=150, stateful_step_count=40)
