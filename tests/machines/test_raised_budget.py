"""Limits are raised, at the root and below it, while agents reserve, settle, open, close and resume.

A raise is all or nothing. The limit of a scope is what it was given and what it was raised by; below the root each
raise comes from what the scope above has free.
"""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import invariant, rule

from ramet.core.budget import Budget
from ramet.core.errors import BudgetExceeded, InvalidValue, RametError
from ramet.core.limits import RESOURCES, Amount, Limits
from tests.machines.test_budget import ALL, BudgetTree, Scope, indexes

raises = st.builds(
    Amount,
    tokens=st.integers(0, 12),
    usd=st.integers(0, 8).map(lambda quarters: quarters / 4),
    model_calls=st.integers(0, 3),
    tool_calls=st.integers(0, 2),
    agents=st.just(0),
)


class RaisedBudgetTree(BudgetTree):
    """The tree of scopes of `BudgetTree`, some of which pause at their limit, and all of which may be raised."""

    def snapshot(self) -> list[tuple[float, ...]]:
        """Return all that every scope shows."""
        return [
            (real.limit(name), real.spent_amount(name), real.reserved_amount(name), real.remaining(name))
            for real in (each.real for each in self.scopes)
            for name in RESOURCES
        ]

    @rule(scope_index=indexes, amount=raises)
    def raise_limits(self, scope_index: int, amount: Amount) -> None:
        self.try_raise(self.scopes[scope_index % len(self.scopes)], amount)

    def try_raise(self, scope: Scope, amount: Amount) -> None:
        """Raise one scope by what it limits itself: it fits above, or nothing changes."""
        own = Amount(*(value if scope.limit(which) is not None else 0 for which, value in enumerate(amount)))  # type: ignore[arg-type]  # whole numbers stay whole
        refusing = None if scope.parent is None else self.refusing(scope.parent, own)
        before = self.snapshot()
        try:
            scope.real.raise_limits(own)
        except BudgetExceeded as refusal:
            assert not scope.closed or scope.parent is not None
            if not scope.closed:
                self.check_refusal(refusal, refusing)
            assert self.snapshot() == before, "a refused raise left something"
        except RametError:
            assert scope.closed, "only a scope that is over refuses a raise for another reason than room"
            assert self.snapshot() == before, "a refused raise left something"
        else:
            assert not scope.closed, "a scope that is over was raised"
            assert refusing is None, "raised by more than was free above"
            scope.raised = [had + Fraction(value) for had, value in zip(scope.raised, own, strict=True)]
            if scope.parent is not None:
                scope.slices = [had + Fraction(value) for had, value in zip(scope.slices, own, strict=True)]
            self.check_limits(scope)

    @rule(
        scope_index=indexes, resource=st.sampled_from(["tokens", "model_calls", "tool_calls"]), more=st.integers(0, 1)
    )
    def raise_by_the_rest(self, scope_index: int, resource: str, more: int) -> None:
        """Raise a scope by all that is free above it, or by one more: the border of grant and refusal."""
        scope, which = self.scopes[scope_index % len(self.scopes)], RESOURCES.index(resource)
        owner = None if scope.parent is None else scope.parent.owner(which)
        if owner is not None:
            self.try_raise(scope, Amount(**{resource: max(0, int(self.free(owner, which))) + more}))

    @rule(scope_index=indexes, resource=st.sampled_from(RESOURCES))
    def raise_what_is_not_limited(self, scope_index: int, resource: str) -> None:
        """Raise a resource without a limit of its own: nothing changes, refused or not."""
        scope = self.scopes[scope_index % len(self.scopes)]
        if scope.limit(RESOURCES.index(resource)) is None:
            before = self.snapshot()
            with pytest.raises(RametError):
                scope.real.raise_limits(Amount(**{resource: 1}))
            assert self.snapshot() == before

    @rule(scope_index=indexes, resource=st.sampled_from(RESOURCES), value=st.sampled_from([-1, float("nan"), 2.0**60]))
    def raise_by_nonsense(self, scope_index: int, resource: str, value: float) -> None:
        """Raise by no quantity: nothing changes."""
        before = self.snapshot()
        with pytest.raises(InvalidValue):
            self.scopes[scope_index % len(self.scopes)].real.raise_limits(
                Amount(**{resource: value})  # type: ignore[arg-type]  # the point of the rule
            )
        assert self.snapshot() == before

    @rule(scope_index=indexes, resource=st.sampled_from(["tokens", "model_calls"]), value=st.integers(1, 60))
    def ask_whether_it_can_fit(self, scope_index: int, resource: str, value: int) -> None:
        """Check that what fits now can fit, and that what is more than a limit leaves when all settles cannot."""
        scope, which = self.scopes[scope_index % len(self.scopes)], RESOURCES.index(resource)
        if scope.limit(which) is None or scope.closed:
            return
        before = self.snapshot()
        answer = scope.real.can_fit(resource, value)
        assert self.snapshot() == before, "a question changed something"
        assert answer or value > self.free(scope, which), "what fits now cannot fit"
        limit = scope.limit(which)
        assert limit is not None
        left = limit - self.settled(scope, which) - self.final_answer_reserve(scope, which)
        assert not (answer and value > left), f"{value} can never fit into {left}"

    def settled(self, scope: Scope, which: int) -> Fraction:
        """Return what no refund gives back: what is settled here, and what closed scopes below used."""
        total = Fraction(0)
        for asked in self.asked:
            if asked.scope.owner(which) is scope and asked.actual is not None:
                total += asked.counts(which)
        for each in self.scopes:
            if each.parent is not None and each.limit(which) is not None and each.parent.owner(which) is scope:
                total += self.settled(each, which) if each.closed else 0
        return total

    def check_limits(self, scope: Scope) -> None:
        """Check that a scope shows its new limits."""
        for which in ALL:
            limit = scope.limit(which)
            if limit is not None:
                assert scope.real.limit(RESOURCES[which]) == pytest.approx(float(limit))
                assert getattr(scope.real.limits, RESOURCES[which]) == pytest.approx(float(limit))

    @invariant()
    def the_limit_is_what_was_given_and_raised(self) -> None:
        for scope in self.scopes:
            self.check_limits(scope)


def test_a_raise_of_a_slice_is_taken_from_above_and_returned() -> None:
    """A raise below the root counts as held above, and what is not spent of it returns when the scope closes."""
    root = Budget(Limits(tool_calls=10), scope="main")
    child = Budget(Limits(tool_calls=2), scope="main/child", parent=root)
    child.raise_limits(Amount(tool_calls=3))
    assert (child.limit("tool_calls"), root.reserved_amount("tool_calls"), root.remaining("tool_calls")) == (5, 5, 5)
    child.reserve(Amount(tool_calls=4)).settle(Amount(tool_calls=4))
    child.close()
    assert (root.spent_amount("tool_calls"), root.reserved_amount("tool_calls")) == (4, 0)
    with pytest.raises(BudgetExceeded) as refusal:
        Budget(Limits(tool_calls=1), scope="main/other", parent=root).raise_limits(Amount(tool_calls=6))
    assert (refusal.value.scope, refusal.value.left) == ("main", 5)


TestRaisedBudgetTree = RaisedBudgetTree.TestCase
TestRaisedBudgetTree.settings = settings(max_examples=200, stateful_step_count=30)
