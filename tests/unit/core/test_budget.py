"""Tests of `core/budget.py`: reserve before, settle after, and no amount appears or disappears.

The state machine is in `tests/machines`."""

from __future__ import annotations

import math
from typing import Any

import pytest

from ramet.core.budget import Budget, Hold
from ramet.core.errors import BudgetExceeded, InvalidValue
from ramet.core.limits import RESOURCES, Amount, Limits, limits_from

ONE_CALL = Amount(model_calls=1)
COUNT_RESOURCES = ("tokens", "model_calls", "tool_calls", "agents")
FRACTION_RESOURCES = ("usd", "seconds")
NO_QUANTITY: list[Any] = [-1, -1e-9, math.nan, math.inf, -math.inf, 10**400]


def try_reserve(budget: Budget, amount: Amount, *, is_final_answer: bool = False) -> Hold | None:
    try:
        return budget.reserve(amount, is_final_answer=is_final_answer)
    except BudgetExceeded:
        return None


def budget_parts(budget: Budget, resource: str) -> dict[str, float]:
    """Return how a scope's limit is divided."""
    return {
        each: getattr(budget, each)(resource)
        for each in ("remaining", "reserved_amount", "final_answer_reserve", "spent_amount")
    }


# --- limits ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("field", COUNT_RESOURCES + FRACTION_RESOURCES)
@pytest.mark.parametrize("value", [*NO_QUANTITY, True, False, "5", b"5", [5], 2**53 + 1], ids=lambda v: repr(v)[:12])
def test_a_limit_that_is_no_quantity_is_refused_by_name(field: str, value: Any) -> None:
    """A limit must be comparable, and must not be converted silently."""
    with pytest.raises(InvalidValue) as refusal:
        Limits(**{field: value})

    assert refusal.value.field == f"limits.{field}"


@pytest.mark.parametrize("field", COUNT_RESOURCES)
def test_limits_of_counted_resources_are_whole_numbers(field: str) -> None:
    """A half call cannot be made."""
    with pytest.raises(InvalidValue, match=field):
        Limits(**{field: 1.5})  # type: ignore[arg-type]  # the point of the test


def test_tightened_limits_take_the_smaller_of_each_field() -> None:
    """Zero counts as a limit, a missing limit does not, and the order of the two does not matter."""
    one, other = Limits(tokens=0, usd=2, seconds=30), Limits(tokens=9, usd=1.5, agents=3)

    assert one.tighten(other) == other.tighten(one) == Limits(tokens=0, usd=1.5, agents=3, seconds=30)


@pytest.mark.parametrize("resource", RESOURCES)
def test_a_limit_of_zero_lets_nothing_through(resource: str) -> None:
    """Zero is a limit; even the last word is refused."""
    budget = Budget(limits_from({resource: 0}), scope="main")

    for is_final_answer in (False, True):
        with pytest.raises(BudgetExceeded) as refusal:
            budget.reserve(Amount(**{resource: 1}), is_final_answer=is_final_answer)

        assert (refusal.value.resource, refusal.value.left) == (resource, 0)


@pytest.mark.parametrize("resource", RESOURCES)
def test_a_limit_on_one_resource_does_not_touch_the_others(resource: str) -> None:
    """A run without model calls may still use tools."""
    budget = Budget(limits_from({resource: 0}), scope="main")
    rest = Amount(*(0 if name == resource else 1 for name in RESOURCES))

    budget.reserve(rest)

    assert [budget.remaining(name) for name in RESOURCES if name != resource] == [math.inf] * (len(RESOURCES) - 1)


def test_without_limits_everything_fits() -> None:
    """Without a limit every amount fits, and no part is kept for the last word."""
    budget = Budget(Limits(), scope="main")

    budget.reserve(Amount(10**12, 1e9, 10**12, 10**12, 10**12))

    assert budget.describe_remaining() == ""
    assert [budget.final_answer_reserve(name) for name in RESOURCES] == [0] * len(RESOURCES)


def test_describe_left_shows_exact_numbers_of_limited_resources() -> None:
    """A model reads 1234567, and not 1e+06."""
    budget = Budget(Limits(tool_calls=1_234_567, agents=2), scope="main")

    assert budget.describe_remaining() == "tool_calls 1234567, agents 2"


# --- reserve, settle, refund ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("resource", RESOURCES)
@pytest.mark.parametrize("value", NO_QUANTITY, ids=lambda v: repr(v)[:12])
def test_an_amount_that_is_no_quantity_is_never_reserved(resource: str, value: Any) -> None:
    """Reserving -100 would create budget; NaN would pass every comparison."""
    budget = Budget(limits_from(dict.fromkeys(RESOURCES, 10)), scope="main")
    before = budget_parts(budget, resource)

    with pytest.raises(InvalidValue, match=resource):
        budget.reserve(Amount(**{resource: value}))

    assert budget_parts(budget, resource) == before


@pytest.mark.parametrize("resource", RESOURCES)
@pytest.mark.parametrize("value", NO_QUANTITY, ids=lambda v: repr(v)[:12])
def test_usage_that_is_no_quantity_is_charged_as_reserved(resource: str, value: Any) -> None:
    """A provider that reports -1000 or NaN tokens frees no budget and leaves nothing reserved."""
    budget = Budget(limits_from(dict.fromkeys(RESOURCES, 10)), scope="main")
    hold = budget.reserve(Amount(**{resource: 4}))

    with pytest.raises(InvalidValue, match=resource):
        hold.settle(Amount(**{resource: value}))

    assert (budget.reserved_amount(resource), budget.spent_amount(resource), hold.is_open) == (0, 4, False)


def test_a_refused_reservation_reserves_no_resource() -> None:
    """A request that fails on the last resource leaves the first unchanged."""
    budget = Budget(Limits(tokens=100, tool_calls=5, agents=0), scope="main")

    with pytest.raises(BudgetExceeded):
        budget.reserve(Amount(tokens=10, tool_calls=5, agents=1))

    assert [budget.reserved_amount(name) for name in RESOURCES] == [0] * len(RESOURCES)


def test_a_refund_restores_the_budget() -> None:
    """A call that was not made costs nothing."""
    budget = Budget(Limits(tokens=100, usd=1.0, model_calls=5), scope="main")
    before = {name: budget_parts(budget, name) for name in RESOURCES}

    budget.reserve(Amount(tokens=50, usd=0.5, model_calls=1)).refund()

    assert {name: budget_parts(budget, name) for name in RESOURCES} == before


@pytest.mark.parametrize("first", ["settle", "refund"])
def test_only_the_first_settle_or_refund_of_a_hold_counts(first: str) -> None:
    """Work settles its hold, and refunds it in `finally`; the second call does nothing."""
    budget = Budget(Limits(tool_calls=10), scope="main")
    hold = budget.reserve(Amount(tool_calls=4))
    hold.settle(Amount(tool_calls=3)) if first == "settle" else hold.refund()
    after_first = budget_parts(budget, "tool_calls")

    hold.settle(Amount(tool_calls=4))
    hold.refund()

    assert budget_parts(budget, "tool_calls") == after_first
    assert budget.spent_amount("tool_calls") == (3 if first == "settle" else 0)


def test_usage_above_the_limit_is_counted_and_stops_the_next_call() -> None:
    """Usage above a low estimate counts, and the next reservation is refused."""
    budget = Budget(Limits(tokens=100), scope="main")
    budget.reserve(Amount(tokens=50)).settle(Amount(tokens=130))

    with pytest.raises(BudgetExceeded) as refusal:
        budget.reserve(Amount(tokens=1))

    assert (budget.spent_amount("tokens"), refusal.value.left) == (130, 0)


def test_a_resource_that_was_not_reserved_is_charged() -> None:
    """A call whose price was unknown at its reservation is charged."""
    budget = Budget(Limits(usd=1.0), scope="main")

    budget.reserve(ONE_CALL).settle(Amount(model_calls=1, usd=0.75))

    assert budget.spent_amount("usd") == 0.75


def test_money_does_not_drift() -> None:
    """Rounding neither refuses the last of a thousand dimes nor admits one more."""
    budget = Budget(Limits(usd=100.0, model_calls=0), scope="main")
    dime = Amount(usd=0.1)
    free = budget.remaining("usd")

    hold_count = sum(try_reserve(budget, dime) is not None for _ in range(1_500))

    assert hold_count == round(free / 0.1)


# --- the last word --------------------------------------------------------------------------------------------------


def test_the_last_word_is_one_of_the_limited_calls() -> None:
    """A thousand children under a limit of five make four calls; the root makes the last one, and no scope a sixth."""
    root = Budget(Limits(model_calls=5), scope="main")
    children = [Budget(Limits(), scope=f"main/{number}", parent=root) for number in range(1_000)]

    holds = [hold for child in children if (hold := try_reserve(child, ONE_CALL)) is not None]
    stolen = [hold for child in children if (hold := try_reserve(child, ONE_CALL, is_final_answer=True)) is not None]
    last = try_reserve(root, ONE_CALL, is_final_answer=True)
    for hold in [*holds, last]:
        assert hold is not None
        hold.settle(ONE_CALL)
    more = [try_reserve(scope, ONE_CALL, is_final_answer=True) for scope in (root, *children)]

    assert (len(holds), stolen, root.spent_amount("model_calls")) == (4, [], 5)
    assert more == [None] * 1_001


def test_a_single_call_is_the_last_word() -> None:
    """A limit of one call leaves only the last word."""
    budget = Budget(Limits(model_calls=1), scope="main")

    assert try_reserve(budget, ONE_CALL) is None
    assert try_reserve(budget, ONE_CALL, is_final_answer=True) is not None
    assert try_reserve(budget, ONE_CALL, is_final_answer=True) is None


@pytest.mark.parametrize(("tokens", "reserve"), [(9, 0), (10, 1), (1_000, 100), (40_960, 4_096), (10_000_000, 4_096)])
def test_a_tenth_of_the_tokens_up_to_4096_is_kept_for_the_last_word(tokens: int, reserve: int) -> None:
    """Large budgets keep no more than an answer needs."""
    budget = Budget(Limits(tokens=tokens), scope="main")

    assert budget_parts(budget, "tokens") == {
        "remaining": tokens - reserve,
        "reserved_amount": 0,
        "final_answer_reserve": reserve,
        "spent_amount": 0,
    }
    assert budget.remaining("tokens", is_final_answer=True) == tokens


def test_a_short_last_word_leaves_the_rest_of_its_reserve() -> None:
    """Unused tokens of a last word stay reserved for the run, which has another last word after it wakes."""
    root = Budget(Limits(tokens=1_000), scope="main")
    child = Budget(Limits(), scope="main/a", parent=root)

    root.reserve(Amount(tokens=30), is_final_answer=True).settle(Amount(tokens=20))

    assert budget_parts(root, "tokens") == {
        "remaining": 900,
        "reserved_amount": 0,
        "final_answer_reserve": 80,
        "spent_amount": 20,
    }
    assert child.remaining("tokens", is_final_answer=True) == 900


def test_a_refunded_last_word_can_be_reserved_again() -> None:
    """A child cannot take the reserve of a refunded last word."""
    root = Budget(Limits(model_calls=2, tokens=1_000), scope="main")
    child = Budget(Limits(), scope="main/a", parent=root)
    child.reserve(ONE_CALL).settle(ONE_CALL)

    root.reserve(Amount(tokens=100, model_calls=1), is_final_answer=True).refund()

    assert try_reserve(child, ONE_CALL) is None
    assert try_reserve(root, Amount(tokens=100, model_calls=1), is_final_answer=True) is not None


def test_a_failed_last_word_leaves_its_tokens_for_the_next_try() -> None:
    """A last word without token usage returns its tokens; its model call still counts."""
    root = Budget(Limits(tokens=1_000), scope="main")
    child = Budget(Limits(), scope="main/a", parent=root)
    child.reserve(Amount(tokens=900)).settle(Amount(tokens=900))

    root.reserve(Amount(tokens=100, model_calls=1), is_final_answer=True).settle(ONE_CALL)

    assert try_reserve(child, Amount(tokens=1)) is None
    assert root.remaining("tokens", is_final_answer=True) == 100


# --- scopes ---------------------------------------------------------------------------------------------------------


def test_only_the_scope_that_refused_has_fired() -> None:
    """The scope with the exceeded limit has `fired`; scopes above and below have not."""
    root = Budget(Limits(tool_calls=10), scope="main")
    middle = Budget(Limits(tool_calls=2), scope="main/a", parent=root)
    leaf = Budget(Limits(), scope="main/a/b", parent=middle)

    with pytest.raises(BudgetExceeded) as refusal:
        leaf.reserve(Amount(tool_calls=3))

    assert refusal.value.scope == "main/a"
    assert (root.refused_resource, middle.refused_resource, leaf.refused_resource) == (None, "tool_calls", None)


def test_the_first_exceeded_resource_is_remembered() -> None:
    """The reason for an end does not change when further limits are exceeded."""
    budget = Budget(Limits(tool_calls=0, agents=0), scope="main")
    try_reserve(budget, Amount(agents=1))

    try_reserve(budget, Amount(tool_calls=1))

    assert budget.refused_resource == "agents"


def test_a_child_cannot_be_given_more_than_is_free() -> None:
    """Limits above the parent's free budget are refused, not reduced silently, and take nothing."""
    root = Budget(Limits(tool_calls=10, agents=5), scope="main")
    root.reserve(Amount(tool_calls=4))
    before = {name: budget_parts(root, name) for name in RESOURCES}

    with pytest.raises(BudgetExceeded) as refusal:
        Budget(Limits(tool_calls=7, agents=1), scope="main/a", parent=root)

    assert (refusal.value.asked, refusal.value.left, refusal.value.scope) == (7, 6, "main")
    assert {name: budget_parts(root, name) for name in RESOURCES} == before


def test_a_slice_returns_when_its_scope_closes() -> None:
    """Unspent budget of a child returns to its parent once."""
    root = Budget(Limits(tool_calls=10), scope="main")
    child = Budget(Limits(tool_calls=6), scope="main/a", parent=root)
    child.reserve(Amount(tool_calls=1)).settle(Amount(tool_calls=1))

    child.close()
    child.close()

    assert budget_parts(root, "tool_calls") == {
        "remaining": 9,
        "reserved_amount": 0,
        "final_answer_reserve": 0,
        "spent_amount": 1,
    }


def test_a_closed_scope_reserves_nothing() -> None:
    """The slice is back with the parent, so a reservation below the closed scope would spend it twice."""
    root = Budget(Limits(model_calls=5, tool_calls=5), scope="main")
    child = Budget(Limits(model_calls=4, tool_calls=5), scope="main/a", parent=root)
    grandchild = Budget(Limits(), scope="main/a/b", parent=child)

    child.close()

    for scope in (child, grandchild):
        for is_final_answer in (False, True):
            assert try_reserve(scope, ONE_CALL, is_final_answer=is_final_answer) is None
            assert try_reserve(scope, Amount(tool_calls=1), is_final_answer=is_final_answer) is None


@pytest.mark.parametrize("tool_calls", [0, 1, 3], ids=["refunded", "used", "overshot"])
@pytest.mark.parametrize("order", [(0, 1), (1, 0)], ids=["inner first", "outer first"])
def test_a_call_that_outlives_its_scope_is_charged_to_the_tree(tool_calls: int, order: tuple[int, int]) -> None:
    """The call counts as reserved until it settles, and then as used, up to the root."""
    root = Budget(Limits(tool_calls=10), scope="main")
    outer = Budget(Limits(tool_calls=6), scope="main/a", parent=root)
    inner = Budget(Limits(tool_calls=4), scope="main/a/b", parent=outer)
    in_flight = inner.reserve(Amount(tool_calls=2))
    for which in order:
        (inner, outer)[which].close()
    left_meanwhile = root.remaining("tool_calls")

    in_flight.settle(Amount(tool_calls=tool_calls))

    assert left_meanwhile == 8
    assert budget_parts(root, "tool_calls") == {
        "remaining": 10 - tool_calls,
        "reserved_amount": 0,
        "final_answer_reserve": 0,
        "spent_amount": tool_calls,
    }


def test_a_late_settlement_passes_scopes_that_do_not_limit_the_resource() -> None:
    """The charge goes to the nearest scope that limits the resource, however far above."""
    root = Budget(Limits(tool_calls=10), scope="main")
    middle = Budget(Limits(agents=1), scope="main/a", parent=root)
    leaf = Budget(Limits(tool_calls=4), scope="main/a/b", parent=middle)
    in_flight = leaf.reserve(Amount(tool_calls=3))
    leaf.close()
    middle.close()

    in_flight.settle(Amount(tool_calls=1))

    assert (root.spent_amount("tool_calls"), root.remaining("tool_calls")) == (1, 9)


def test_a_reopened_scope_continues_with_its_unspent_budget() -> None:
    """A resumed run gets no new budget; its earlier spending stays, and is charged above once."""
    root = Budget(Limits(tool_calls=10), scope="main")
    child = Budget(Limits(tool_calls=6), scope="main/a", parent=root)
    child.reserve(Amount(tool_calls=2)).settle(Amount(tool_calls=2))
    child.close()

    child.reopen(root)

    assert budget_parts(child, "tool_calls") == {
        "remaining": 4,
        "reserved_amount": 0,
        "final_answer_reserve": 0,
        "spent_amount": 2,
    }
    assert budget_parts(root, "tool_calls") == {
        "remaining": 4,
        "reserved_amount": 4,
        "final_answer_reserve": 0,
        "spent_amount": 2,
    }
    child.reserve(Amount(tool_calls=1)).settle(Amount(tool_calls=1))
    child.close()
    assert budget_parts(root, "tool_calls") == {
        "remaining": 7,
        "reserved_amount": 0,
        "final_answer_reserve": 0,
        "spent_amount": 3,
    }


def test_a_scope_is_not_reopened_when_its_slice_was_reserved() -> None:
    """A slice belongs to the parent after the close; if it is used up, the run cannot resume, and nothing is taken."""
    root = Budget(Limits(tool_calls=10), scope="main")
    child = Budget(Limits(tool_calls=6), scope="main/a", parent=root)
    child.close()
    root.reserve(Amount(tool_calls=5))

    with pytest.raises(BudgetExceeded):
        child.reopen(root)

    assert child.is_closed
    assert try_reserve(child, Amount(tool_calls=1)) is None
    assert budget_parts(root, "tool_calls") == {
        "remaining": 5,
        "reserved_amount": 5,
        "final_answer_reserve": 0,
        "spent_amount": 0,
    }


@pytest.mark.parametrize("tool_calls", [0, 1, 2, 3])
@pytest.mark.parametrize("life", ["closed", "reopened", "closed again"])
def test_a_call_that_spans_a_close_and_a_reopen_is_charged_once(tool_calls: int, life: str) -> None:
    """The tree is charged the actual usage, whenever the call settles."""
    root = Budget(Limits(tool_calls=10), scope="main")
    child = Budget(Limits(tool_calls=6), scope="main/a", parent=root)
    in_flight = child.reserve(Amount(tool_calls=2))
    child.close()
    if life == "closed":
        in_flight.settle(Amount(tool_calls=tool_calls))
    child.reopen(root)
    if life == "reopened":
        in_flight.settle(Amount(tool_calls=tool_calls))
    child.close()

    in_flight.settle(Amount(tool_calls=tool_calls))

    assert budget_parts(root, "tool_calls") == {
        "remaining": 10 - tool_calls,
        "reserved_amount": 0,
        "final_answer_reserve": 0,
        "spent_amount": tool_calls,
    }


def test_closing_after_refunds_of_money_is_no_error() -> None:
    """0.1 + 0.2 - 0.1 - 0.2 is slightly below zero, and makes no negative amount."""
    root = Budget(Limits(usd=10.0), scope="main")
    child = Budget(Limits(usd=1.0), scope="main/a", parent=root)
    holds = [child.reserve(Amount(usd=usd)) for usd in (0.1, 0.2, 0.3)]
    for hold in holds:
        hold.refund()

    child.close()

    assert root.remaining("usd") == pytest.approx(9.0)
    assert root.spent_amount("usd") == pytest.approx(0.0)


def test_a_chain_of_a_hundred_thousand_scopes_needs_no_recursion() -> None:
    """A reservation does not take stack for each scope above."""
    root = scope = Budget(Limits(model_calls=10), scope="main")
    for number in range(100_000):
        scope = Budget(Limits(), scope=str(number), parent=scope)

    scope.reserve(ONE_CALL).settle(ONE_CALL)

    assert (root.spent_amount("model_calls"), scope.remaining("model_calls")) == (1, 8)
