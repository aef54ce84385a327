"""Requests in line at limits that pause, in any order and between any two turns of the event loop.

First come, first served for each scope and resource. No request waits while there is room for it and nobody is before
it, and a request that gives up leaves nothing. A request is shown as paused only if a raise alone can help.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from ramet.concurrency.limit_queue import LimitQueue, QueuedRequest
from ramet.core.budget import Budget, Hold
from ramet.core.errors import BudgetExceeded, RametError
from ramet.core.limits import Amount, Limits

NAMES = ("tokens", "model_calls")
indexes = st.integers(0, 11)
amounts = st.tuples(st.integers(0, 6), st.integers(0, 2)).map(lambda each: Amount(tokens=each[0], model_calls=each[1]))


@dataclass(eq=False)
class Waiter:
    """Request, in the order of asking."""

    budget: Budget
    amount: Amount
    hold: Hold | None = None
    queued: QueuedRequest[Hold] | None = None
    is_over: bool = False  #: it gave up, or was refused by a limit that ends
    lines: set[tuple[int, str]] = field(default_factory=set)

    @property
    def waits(self) -> bool:
        return self.queued is not None and not self.is_over and self.hold is None

    def limits(self) -> set[tuple[int, str]]:
        """Return each scope and resource that bounds it."""
        owners = {name: self.budget.owner(name) for name in NAMES if getattr(self.amount, name)}
        return {(id(owner), name) for name, owner in owners.items() if owner is not None}


class Line(RuleBasedStateMachine):
    """Machine that moves the event loop only by a rule: acts between two turns of the loop meet in the next turn."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.queue = LimitQueue()
        self.scopes: list[Budget] = []
        self.asked: list[Waiter] = []

    def call(self, act: object) -> None:
        """Call a function in the loop, since a request needs a running loop."""

        async def run() -> None:
            assert callable(act)
            act()

        self.loop.run_until_complete(run())
        self.collect()

    def collect(self) -> None:
        """Take what was granted since."""
        for each in self.asked:
            if each.waits and each.queued is not None and each.queued.future.done():
                if each.queued.future.exception() is None:
                    each.hold = each.queued.future.result()
                else:
                    each.is_over = True

    # --- what may happen ----------------------------------------------------------------------------------------------

    @initialize(tokens=st.none() | st.integers(0, 12), calls=st.integers(0, 4))
    def begin(self, tokens: int | None, calls: int) -> None:
        self.scopes.append(Budget(Limits(tokens=tokens, model_calls=calls, at_limit="pause"), scope="0"))

    @rule(
        above=indexes,
        tokens=st.none() | st.integers(0, 6),
        calls=st.none() | st.integers(0, 2),
        at_limit=st.sampled_from([None, "end", "pause"]),
    )
    def open(self, above: int, tokens: int | None, calls: int | None, at_limit: str | None) -> None:
        parent = self.scopes[above % len(self.scopes)]
        given = Limits(tokens=tokens, model_calls=calls, at_limit=at_limit)  # type: ignore[arg-type]  # one of its words
        try:
            self.scopes.append(Budget(given, scope=str(len(self.scopes)), parent=parent))
        except BudgetExceeded:
            return

    @rule(scope_index=indexes, amount=amounts)
    def ask(self, scope_index: int, amount: Amount) -> None:
        """Reserve at once, or stand in line; where nobody waits before it and there is room, it is served at once."""
        scope = self.scopes[scope_index % len(self.scopes)]
        this = Waiter(scope, amount)
        before = [each for each in self.asked if each.waits and each.limits() & this.limits()]
        self.asked.append(this)

        def enter() -> None:
            try:
                this.hold = scope.reserve(amount)
                assert not self.is_passed(this, before), "it passed those in line"
            except BudgetExceeded as refusal:
                this.queued = QueuedRequest(scope, lambda: scope.reserve(amount), lambda: None)
                try:
                    self.queue.join(this.queued, refusal)
                except BudgetExceeded:
                    this.is_over = True

        self.call(enter)

    def is_passed(self, this: Waiter, before: list[Waiter]) -> bool:
        """Return whether a request that stands in one of its lines was passed."""
        return any(self.line_of(each) in this.limits() for each in before)

    def line_of(self, this: Waiter) -> tuple[int, str]:
        """Return the scope and the resource of the line in which a request stands."""
        assert this.queued is not None
        assert this.queued.refusal is not None
        resource = this.queued.refusal.resource
        return id(this.budget.owner(resource)), resource

    @precondition(lambda self: any(each.hold is not None and each.hold.is_open for each in self.asked))
    @rule(which=indexes, actual=amounts)
    def settle(self, which: int, actual: Amount) -> None:
        held = [each for each in self.asked if each.hold is not None and each.hold.is_open]
        hold = held[which % len(held)].hold
        assert hold is not None
        used = Amount(*map(min, actual, hold.amount))  # type: ignore[arg-type]  # whole numbers stay whole
        self.call(lambda: hold.settle(used))

    @rule(scope_index=indexes, amount=amounts)
    def raise_limits(self, scope_index: int, amount: Amount) -> None:
        scope = self.scopes[scope_index % len(self.scopes)]
        before = [(each.limit(name), each.reserved_amount(name)) for each in self.scopes for name in NAMES]

        def act() -> None:
            try:
                scope.raise_limits(amount)
            except RametError:
                after = [(each.limit(name), each.reserved_amount(name)) for each in self.scopes for name in NAMES]
                assert after == before, "a refused raise left something"

        self.call(act)

    @precondition(lambda self: any(each.waits for each in self.asked))
    @rule(which=indexes)
    def give_up(self, which: int) -> None:
        waiting = [each for each in self.asked if each.waits]
        this = waiting[which % len(waiting)]
        assert this.queued is not None
        queued = this.queued

        def act() -> None:
            queued.future.cancel()
            self.queue.leave(queued)

        this.is_over = True
        self.call(act)

    def drop(self, queued: QueuedRequest[Hold]) -> None:
        """Take a request out of its line, as a run that is stopped does."""
        queued.future.cancel()
        self.queue.leave(queued)

    @rule(scope_index=indexes)
    def close(self, scope_index: int) -> None:
        """Close a scope below the root whose runs have ended: nothing in it waits or is open."""
        scope = self.scopes[scope_index % len(self.scopes)]
        if scope.parent is None or any(
            each is not scope and scope in _above(each) for each in self.scopes if not each.is_closed
        ):
            return
        if any(
            each.budget is scope and (each.waits or (each.hold is not None and each.hold.is_open))
            for each in self.asked
        ):
            return
        self.call(scope.close)

    @rule()
    def one_turn(self) -> None:
        self.call(lambda: None)

    @rule()
    def rest(self) -> None:
        """Check the lines once the loop is idle."""
        for _ in range(6):
            self.call(lambda: None)
        waiting = [each for each in self.asked if each.waits]
        firsts: dict[tuple[int, str], Waiter] = {}
        for each in waiting:
            firsts.setdefault(self.line_of(each), each)
        for (_, resource), first in firsts.items():
            assert first.queued is not None
            owner = first.budget.owner(resource)
            assert owner is not None
            asked = getattr(first.amount, resource)
            assert asked > owner.remaining(resource), "the first in line waits though there is room"
            under_way = sum(
                getattr(each.hold.amount, resource)
                for each in self.asked
                if each.hold is not None and each.hold.is_open and each.budget.owner(resource) is owner
            )
            if first.queued.is_exhausted:
                assert asked > owner.remaining(resource) + under_way, "paused though others may return enough"
            else:
                assert under_way, "shown as waiting for others, of whom there are none"

    # --- what holds at all times --------------------------------------------------------------------------------------

    @invariant()
    def no_scope_is_above_its_limit(self) -> None:
        for scope in self.scopes:
            for name in NAMES:
                if scope.owner(name) is scope:
                    assert scope.spent_amount(name) + scope.reserved_amount(name) <= scope.limit(name)

    @invariant()
    def only_those_in_line_are_counted(self) -> None:
        for scope in self.scopes:
            for name, counted in zip(NAMES, (scope.waiting or [0, 0, 0])[::2], strict=False):
                in_line = [each for each in self.asked if each.waits and self.line_of(each) == (id(scope), name)]
                assert counted == len(in_line)

    def teardown(self) -> None:
        """Check that nothing is held or counted once all have given up, and that a fresh request is served."""
        try:
            for each in self.asked:
                if each.waits and each.queued is not None:
                    queued = each.queued
                    each.is_over = True
                    self.call(lambda queued=queued: self.drop(queued))
                if each.hold is not None:
                    self.call(each.hold.refund)
            for _ in range(6):
                self.call(lambda: None)
            for scope in reversed(self.scopes):
                assert not any(scope.waiting or [])
                self.call(scope.close)
            if self.scopes:
                root = self.scopes[0]
                assert all(root.reserved_amount(name) == 0 for name in NAMES if root.owner(name) is root)
                root.raise_limits(Amount(model_calls=1))
                assert root.reserve(Amount(model_calls=1)).is_open
        finally:
            self.loop.close()


def _above(scope: Budget) -> list[Budget]:
    return [scope, *(_above(scope.parent) if scope.parent is not None else [])]


TestLine = Line.TestCase
TestLine.settings = settings(max_examples=200, stateful_step_count=40)
