"""Agents reserve, settle, open, close and resume in any order: no amount is created or lost.

The oracle keeps no balances. It knows each request and its outcome, and computes from them, in exact fractions, what
each scope must show.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from fractions import Fraction

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from ramet.core.budget import FINAL_ANSWER_TOKENS, Budget, Hold
from ramet.core.errors import BudgetExceeded, InvalidValue
from ramet.core.limits import RESOURCES, Amount, Limits

ALL = range(len(RESOURCES))
at_limits = st.sampled_from([None, None, "end", "pause"])
limits = st.builds(
    Limits,
    tokens=st.none() | st.integers(0, 60),
    usd=st.none() | st.integers(0, 48).map(lambda quarters: quarters / 4),
    model_calls=st.none() | st.integers(0, 6),
    tool_calls=st.none() | st.integers(0, 4),
    at_limit=at_limits,
)
slices = st.builds(
    Limits,
    tokens=st.none() | st.integers(0, 20),
    usd=st.none() | st.integers(0, 12).map(lambda quarters: quarters / 4),
    model_calls=st.none() | st.integers(0, 3),
    tool_calls=st.none() | st.integers(0, 2),
    at_limit=at_limits,
)
amounts = st.builds(
    Amount,
    tokens=st.integers(0, 8),
    usd=st.integers(0, 6).map(lambda quarters: quarters / 4),
    model_calls=st.integers(0, 1),
    tool_calls=st.integers(0, 1),
    agents=st.just(0),
)
COUNTED = ("tokens", "model_calls", "tool_calls")
indexes = st.integers(0, 11)


@dataclass(eq=False)
class Scope:
    """Scope, with what the oracle knows of it."""

    real: Budget
    parent: Scope | None
    closed: bool = False
    slices: list[Fraction] = field(default_factory=list)  #: of each resource: what counts above while it is open
    given: Limits = field(default_factory=Limits)
    raised: list[Fraction] = field(default_factory=lambda: [Fraction(0)] * len(RESOURCES))

    def limit(self, which: int) -> Fraction | None:
        value = getattr(self.given, RESOURCES[which])
        return None if value is None else Fraction(value) + self.raised[which]

    @property
    def pauses(self) -> bool:
        """True if it says so, or says nothing and the scope above pauses: it keeps nothing for a last word."""
        return self.given.at_limit == "pause" if self.given.at_limit else self.parent is not None and self.parent.pauses

    def owner(self, which: int) -> Scope | None:
        scope: Scope | None = self
        while scope is not None and scope.limit(which) is None:
            scope = scope.parent
        return scope

    def above(self) -> list[Scope]:
        return [self, *(self.parent.above() if self.parent is not None else [])]


@dataclass(eq=False)
class Reservation:
    """Reservation that was granted."""

    real: Hold
    scope: Scope
    drawn: list[Fraction]  #: from what its scope keeps for a last word
    actual: Amount | None = None

    def counts(self, which: int) -> Fraction:
        return Fraction((self.real.amount if self.actual is None else self.actual)[which])

    def beyond(self, which: int) -> Fraction:
        return max(Fraction(0), self.counts(which) - Fraction(self.real.amount[which]))


class BudgetTree(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.scopes: list[Scope] = []
        self.asked: list[Reservation] = []

    # --- what must be -------------------------------------------------------------------------------------------------

    def used(self, scope: Scope, which: int) -> Fraction:
        """Return what is spent or held of the scope's limit, slices of scopes below included."""
        total = Fraction(0)
        for asked in self.asked:
            if asked.scope.owner(which) is scope:
                total += asked.counts(which)
        for each in self.scopes:
            if each.parent is not None and each.limit(which) is not None and each.parent.owner(which) is scope:
                total += self.used(each, which) if each.closed else each.slices[which]
        return total

    def final_answer_reserve(self, scope: Scope, which: int) -> Fraction:
        limit = Fraction(getattr(scope.given, RESOURCES[which]) or 0)  # A raise adds nothing to what is kept.
        reserve = Fraction(0)
        if scope.pauses:
            pass
        elif RESOURCES[which] == "tokens":
            reserve = min(Fraction(int(limit) // 10), Fraction(FINAL_ANSWER_TOKENS))
        elif RESOURCES[which] == "usd":
            reserve = limit / 10
        elif RESOURCES[which] == "model_calls":
            reserve = Fraction(1 if limit else 0)
        for each in self.asked:
            if each.scope is scope:
                reserve -= each.drawn[which]
                if each.actual is not None:
                    reserve += min(each.drawn[which], Fraction(max(0, each.real.amount[which] - each.actual[which])))
        return reserve

    def free(self, scope: Scope, which: int, *, is_final_answer: bool = False) -> Fraction:
        limit = scope.limit(which)
        assert limit is not None
        if scope.closed:
            return Fraction(0)
        return limit - self.used(scope, which) - (0 if is_final_answer else self.final_answer_reserve(scope, which))

    def refusing(self, scope: Scope, amount: Amount, *, is_final_answer: bool = False) -> tuple[Scope, str] | None:
        for which, value in enumerate(amount):
            owner = scope.owner(which)
            if not value or owner is None:
                continue
            if Fraction(value) > self.free(owner, which, is_final_answer=is_final_answer and owner is scope):
                return owner, RESOURCES[which]
        return None

    def check_refusal(self, refusal: BudgetExceeded, refusing: tuple[Scope, str] | None) -> None:
        assert refusing is not None, f"refused though it fits: {refusal}"
        assert (refusal.scope, refusal.resource) == (refusing[0].real.scope, refusing[1])

    # --- what may happen ----------------------------------------------------------------------------------------------

    @initialize(given=limits)
    def begin(self, given: Limits) -> None:
        self.scopes.append(Scope(Budget(given, scope="0"), None, given=given))

    @rule(above=indexes, given=slices)
    def open(self, above: int, given: Limits) -> None:
        parent = self.scopes[above % len(self.scopes)]
        grant = Amount(*(getattr(given, name) or 0 for name in RESOURCES))
        refusing = self.refusing(parent, grant)
        try:
            real = Budget(given, scope=str(len(self.scopes)), parent=parent.real)
        except BudgetExceeded as refusal:
            self.check_refusal(refusal, refusing)
        else:
            assert refusing is None, "given more than was free"
            self.scopes.append(Scope(real, parent, slices=[Fraction(each) for each in grant], given=given))

    @rule(scope_index=indexes, amount=amounts, is_final_answer=st.booleans())
    def reserve(self, scope_index: int, amount: Amount, is_final_answer: bool) -> None:
        self.ask(self.scopes[scope_index % len(self.scopes)], amount, is_final_answer=is_final_answer)

    @rule(scope_index=indexes, resource=st.sampled_from(COUNTED), is_final_answer=st.booleans(), more=st.integers(0, 1))
    def reserve_the_rest(self, scope_index: int, resource: str, is_final_answer: bool, more: int) -> None:
        """Reserve the rest or one more, with or without the last word's part: the border of grant and refusal."""
        scope, which = self.scopes[scope_index % len(self.scopes)], RESOURCES.index(resource)
        owner = scope.owner(which)
        if owner is not None:
            value = max(0, int(self.free(owner, which, is_final_answer=is_final_answer))) + more
            self.ask(scope, Amount(**{resource: value}), is_final_answer=is_final_answer)

    def ask(self, scope: Scope, amount: Amount, *, is_final_answer: bool) -> None:
        refusing = self.refusing(scope, amount, is_final_answer=is_final_answer)
        reserves = [self.final_answer_reserve(scope, which) if is_final_answer else Fraction(0) for which in ALL]
        fired = {each: each.real.refused_resource for each in self.scopes}
        try:
            hold = scope.real.reserve(amount, is_final_answer=is_final_answer)
        except BudgetExceeded as refusal:
            self.check_refusal(refusal, refusing)
            assert refusing is not None
            fired[refusing[0]] = fired[refusing[0]] or refusing[1]
        else:
            assert refusing is None, "let through though it does not fit"
            drawn = [min(has, Fraction(value)) for has, value in zip(reserves, amount, strict=True)]
            self.asked.append(Reservation(hold, scope, drawn))
        assert {each: each.real.refused_resource for each in self.scopes} == fired, "the wrong scope fired"

    @precondition(lambda self: self.asked)
    @rule(which=indexes, actual=amounts)
    def settle(self, which: int, actual: Amount) -> None:
        asked = self.asked[which % len(self.asked)]
        asked.real.settle(actual)
        asked.actual = asked.actual or actual

    @precondition(lambda self: self.asked)
    @rule(which=indexes)
    def refund(self, which: int) -> None:
        asked = self.asked[which % len(self.asked)]
        asked.real.refund()
        asked.actual = asked.actual or Amount()

    @precondition(lambda self: any(each.actual is None for each in self.asked))
    @rule(which=indexes, resource=st.sampled_from(RESOURCES), value=st.sampled_from([-5, math.nan, math.inf]))
    def settle_nonsense(self, which: int, resource: str, value: float) -> None:
        waiting = [each for each in self.asked if each.actual is None]
        asked = waiting[which % len(waiting)]
        with pytest.raises(InvalidValue):
            asked.real.settle(Amount(**{resource: value}))  # type: ignore[arg-type]  # the point of the rule
        asked.actual = asked.real.amount

    @rule(scope_index=indexes)
    def close(self, scope_index: int) -> None:
        scope = self.scopes[scope_index % len(self.scopes)]
        scope.real.close()
        scope.closed = scope.parent is not None

    @precondition(lambda self: any(each.closed for each in self.scopes))
    @rule(scope_index=indexes)
    def reopen(self, scope_index: int) -> None:
        closed = [each for each in self.scopes if each.closed]
        scope = closed[scope_index % len(closed)]
        assert scope.parent is not None
        used = [self.used(scope, which) for which in ALL]
        rest = [max(Fraction(0), (scope.limit(which) or 0) - used[which]) for which in ALL]
        refusing = self.refusing(scope.parent, Amount(*map(float, rest)))  # type: ignore[arg-type]  # all are quarters
        try:
            scope.real.reopen(scope.parent.real)
        except BudgetExceeded as refusal:
            self.check_refusal(refusal, refusing)
        else:
            assert refusing is None, "given again what others have by now"
            scope.closed = False
            scope.slices = [had + more for had, more in zip(used, rest, strict=True)]

    # --- what holds at all times --------------------------------------------------------------------------------------

    @invariant()
    def every_scope_shows_its_history(self) -> None:
        for scope in self.scopes:
            for which, name in enumerate(RESOURCES):
                if scope.limit(which) is not None:
                    real = scope.real
                    assert real.spent_amount(name) + real.reserved_amount(name) == pytest.approx(
                        float(self.used(scope, which))
                    )
                    assert real.final_answer_reserve(name) == pytest.approx(
                        float(self.final_answer_reserve(scope, which))
                    )
                    assert real.remaining(name) == pytest.approx(float(max(Fraction(0), self.free(scope, which))))

    @invariant()
    def nothing_is_negative(self) -> None:
        for scope in self.scopes:
            for name in RESOURCES:
                assert min(scope.real.reserved_amount(name), scope.real.final_answer_reserve(name)) > -1e-9
                assert scope.real.remaining(name) >= 0

    @invariant()
    def no_scope_exceeds_its_limit(self) -> None:
        """Use beyond a reservation is recorded, and is the only excess over a limit."""
        for scope in self.scopes:
            below = [each for each in self.asked if scope in each.scope.above()]
            for which in ALL:
                limit = scope.limit(which)
                if limit is not None:
                    through = sum(each.counts(which) for each in below)
                    assert through <= limit + sum(each.beyond(which) for each in below), RESOURCES[which]

    @invariant()
    def a_hold_is_open_until_settled_or_refunded(self) -> None:
        assert [each.real.is_open for each in self.asked] == [each.actual is None for each in self.asked]

    def teardown(self) -> None:
        """Check that a root whose reservations are all settled has spent what was used, and holds nothing."""
        for asked in self.asked:
            asked.real.refund()
            asked.actual = asked.actual or Amount()
        for scope in reversed(self.scopes):
            scope.real.close()
        for which, name in enumerate(RESOURCES):
            if self.scopes and self.scopes[0].limit(which) is not None:
                root = self.scopes[0].real
                assert root.reserved_amount(name) == pytest.approx(0)
                assert root.spent_amount(name) == pytest.approx(float(sum(each.counts(which) for each in self.asked)))


TestBudgetTree = BudgetTree.TestCase
TestBudgetTree.settings = settings(max_examples=200, stateful_step_count=30)
