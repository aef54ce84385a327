"""Tests of raised limits in `core/budget.py`: all or nothing, from the scope above, and conserved."""

from __future__ import annotations

from typing import Any

import pytest

from ramet.core.budget import Budget
from ramet.core.errors import BudgetExceeded, InvalidValue
from ramet.core.limits import RESOURCES, Amount, Limits, limits_from

ONE_CALL = Amount(model_calls=1)


def test_a_raised_root_has_that_much_more_and_keeps_what_it_has_used() -> None:
    """Spent and held amounts stay."""
    budget = Budget(Limits(model_calls=3, at_limit="pause"), scope="main")
    budget.reserve(ONE_CALL).settle(ONE_CALL)
    hold = budget.reserve(ONE_CALL)

    budget.raise_limits(Amount(model_calls=4))

    assert (budget.limit("model_calls"), budget.remaining("model_calls")) == (7, 5)
    assert budget.limits == Limits(model_calls=7, at_limit="pause")
    hold.refund()
    assert budget.remaining("model_calls") == 6


def test_a_raised_scope_takes_the_amount_from_the_scope_above_and_returns_the_rest() -> None:
    """The slice has one size for both, whoever settles last."""
    root = Budget(Limits(model_calls=10, at_limit="pause"), scope="main")
    child = Budget(Limits(model_calls=2), scope="main/a", parent=root)
    child.raise_limits(Amount(model_calls=3))
    assert (root.remaining("model_calls"), child.remaining("model_calls")) == (5, 5)

    child.reserve(ONE_CALL).settle(ONE_CALL)
    child.close()

    assert (root.remaining("model_calls"), root.spent_amount("model_calls")) == (9, 1)
    assert root.reserved_amount("model_calls") == 0


def test_a_raise_that_the_scope_above_cannot_give_changes_nothing() -> None:
    """Of several resources none is raised if one does not fit."""
    root = Budget(Limits(model_calls=10, agents=1), scope="main")
    child = Budget(Limits(model_calls=2, agents=1), scope="main/a", parent=root)

    with pytest.raises(BudgetExceeded) as refusal:
        child.raise_limits(Amount(model_calls=1, agents=1))

    assert (refusal.value.resource, refusal.value.scope) == ("agents", "main")
    assert (child.limit("model_calls"), root.reserved_amount("model_calls")) == (2, 2)
    assert child.limits == Limits(model_calls=2, agents=1)


@pytest.mark.parametrize("resource", RESOURCES)
def test_what_is_not_limited_cannot_be_raised(resource: str) -> None:
    """A limit that nobody stated is not made by a raise."""
    budget = Budget(limits_from({"model_calls" if resource != "model_calls" else "usd": 1}), scope="main")

    with pytest.raises(InvalidValue) as refusal:
        budget.raise_limits(Amount(**{resource: 1}))

    assert refusal.value.field == f"add.{resource}"


def test_a_closed_scope_is_not_raised() -> None:
    """The run of the scope has ended, and the rest was returned."""
    root = Budget(Limits(model_calls=10), scope="main")
    child = Budget(Limits(model_calls=2), scope="main/a", parent=root)
    child.close()

    with pytest.raises(InvalidValue):
        child.raise_limits(ONE_CALL)

    assert root.reserved_amount("model_calls") == 0


def test_a_raise_beyond_what_counts_exactly_changes_nothing() -> None:
    """The sum must be a limit, too."""
    root = Budget(Limits(model_calls=2**53), scope="main")
    child = Budget(Limits(model_calls=2**53 - 1), scope="main/a", parent=root)

    for budget in (root, child):
        with pytest.raises((InvalidValue, BudgetExceeded)):
            budget.raise_limits(Amount(model_calls=2**53))

    assert (root.limit("model_calls"), child.limit("model_calls")) == (2**53, 2**53 - 1)
    assert root.reserved_amount("model_calls") == 2**53 - 1


@pytest.mark.parametrize(
    ("own", "above", "expected"),
    [
        (None, None, False),
        (None, "pause", True),
        ("end", "pause", False),
        ("pause", "end", True),
        ("pause", None, True),
        (None, "end", False),
    ],
)
def test_a_scope_does_at_its_limit_as_it_says_or_as_the_scope_above(own: Any, above: Any, expected: bool) -> None:
    """The root ends unless it says otherwise. A scope that pauses keeps nothing for a last answer."""
    root = Budget(Limits(model_calls=10, at_limit=above), scope="main")
    child = Budget(Limits(model_calls=5, at_limit=own), scope="main/a", parent=root)

    assert child.pauses is expected
    assert child.final_answer_reserve("model_calls") == (0 if expected else 1)


def test_amounts_of_scopes_below_are_not_under_way() -> None:
    """A request under way returns its rest soon; a scope below may last."""
    root = Budget(Limits(model_calls=5, at_limit="pause"), scope="main")
    child = Budget(Limits(model_calls=3), scope="main/a", parent=root)
    hold = root.reserve(Amount(model_calls=2))

    assert root.can_fit("model_calls", 2)
    assert not root.can_fit("model_calls", 3)
    hold.settle(Amount(model_calls=2))
    assert not root.can_fit("model_calls", 1)
    child.close()
    assert root.can_fit("model_calls", 3)


def test_limits_from_data_name_the_field_that_is_wrong() -> None:
    """Another process may send anything."""
    assert limits_from({"usd": 1, "model_calls": 2}) == Limits(usd=1, model_calls=2)
    for name, value in (("model_calls", 1.5), ("usd", -1), ("requests", 1), ("usd", float("nan")), ("tokens", True)):
        with pytest.raises(InvalidValue) as refusal:
            limits_from({name: value})
        assert refusal.value.field == f"limits.{name}"


def test_tightened_limits_end_if_one_of_them_ends() -> None:
    """To end is the stricter answer."""
    assert Limits(at_limit="pause").tighten(Limits()).at_limit == "pause"
    assert Limits(at_limit="pause").tighten(Limits(at_limit="end")).at_limit == "end"
    assert Limits().tighten(Limits()).at_limit is None
