"""core/budget.py: reserve before, settle after, nothing created and nothing lost. The machine is in tests/machines."""

from __future__ import annotations

import math
from typing import Any

import pytest

from ramet.core.budget import RESOURCES, Amount, Budget, Hold, Limits
from ramet.core.errors import BudgetExceeded, InvalidValue

ONE_CALL = Amount(model_calls=1)
WHOLE = ("tokens", "model_calls", "tool_calls", "agents")
FRACTIONS = ("usd", "seconds")
NO_QUANTITY: list[Any] = [-1, -1e-9, math.nan, math.inf, -math.inf, 10**400]


def reserves(budget: Budget, amount: Amount, *, last_word: bool = False) -> Hold | None:
    try:
        return budget.reserve(amount, last_word=last_word)
    except BudgetExceeded:
        return None


def parts(budget: Budget, resource: str) -> dict[str, float]:
    """Where a scope's limit is."""
    return {each: getattr(budget, each)(resource) for each in ("left", "held", "kept", "spent")}


# --- limits ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("field", WHOLE + FRACTIONS)
@pytest.mark.parametrize("value", [*NO_QUANTITY, True, False, "5", b"5", [5], 2**53 + 1], ids=lambda v: repr(v)[:12])
def test_a_limit_that_is_no_quantity_is_refused_by_name(field: str, value: Any) -> None:
    """No limit against which every comparison is false, and none that would silently be another."""
    with pytest.raises(InvalidValue) as refusal:
        Limits(**{field: value})

    assert refusal.value.field == f"limits.{field}"


@pytest.mark.parametrize("field", WHOLE)
def test_what_is_counted_is_limited_by_whole_numbers(field: str) -> None:
    """Half a call cannot be made."""
    with pytest.raises(InvalidValue, match=field):
        Limits(**{field: 1.5})  # type: ignore[arg-type]  # the point of the test


def test_of_two_limits_on_the_same_the_smaller_of_each_holds() -> None:
    """No limit is wider than any, and zero is one: whoever says less is heard, whichever side it is."""
    one, other = Limits(tokens=0, usd=2, seconds=30), Limits(tokens=9, usd=1.5, agents=3)

    assert one.tightened(other) == other.tightened(one) == Limits(tokens=0, usd=1.5, agents=3, seconds=30)


@pytest.mark.parametrize("resource", RESOURCES)
def test_a_limit_of_zero_lets_nothing_through(resource: str) -> None:
    """Zero is a limit, not the absence of one; not even the last word gets past it."""
    budget = Budget(Limits(**{resource: 0}), scope="main")

    for last_word in (False, True):
        with pytest.raises(BudgetExceeded) as refusal:
            budget.reserve(Amount(**{resource: 1}), last_word=last_word)

        assert (refusal.value.resource, refusal.value.left) == (resource, 0)


@pytest.mark.parametrize("resource", RESOURCES)
def test_a_limit_on_one_resource_does_not_touch_the_others(resource: str) -> None:
    """Whoever may make no model call may still use tools."""
    budget = Budget(Limits(**{resource: 0}), scope="main")
    rest = Amount(*(0 if name == resource else 1 for name in RESOURCES))

    budget.reserve(rest)

    assert [budget.remaining(name) for name in RESOURCES if name != resource] == [math.inf] * (len(RESOURCES) - 1)


def test_without_limits_everything_fits() -> None:
    """No limit is no limit, and nothing is kept of it."""
    budget = Budget(Limits(), scope="main")

    budget.reserve(Amount(10**12, 1e9, 10**12, 10**12, 10**12))

    assert budget.describe_remaining() == ""
    assert [budget.last_word_reserve(name) for name in RESOURCES] == [0] * len(RESOURCES)


def test_what_is_left_is_told_exactly_and_only_where_it_is_limited() -> None:
    """A model that plans by the line is not told 1e+06."""
    budget = Budget(Limits(tool_calls=1_234_567, agents=2), scope="main")

    assert budget.describe_remaining() == "tool_calls 1234567, agents 2"


# --- reserve, settle, refund ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("resource", RESOURCES)
@pytest.mark.parametrize("value", NO_QUANTITY, ids=lambda v: repr(v)[:12])
def test_an_amount_that_is_no_quantity_is_never_held(resource: str, value: Any) -> None:
    """Holding -100 would make a budget out of nothing; NaN would pass every comparison."""
    budget = Budget(Limits(**dict.fromkeys(RESOURCES, 10)), scope="main")
    before = parts(budget, resource)

    with pytest.raises(InvalidValue, match=resource):
        budget.reserve(Amount(**{resource: value}))

    assert parts(budget, resource) == before


@pytest.mark.parametrize("resource", RESOURCES)
@pytest.mark.parametrize("value", NO_QUANTITY, ids=lambda v: repr(v)[:12])
def test_usage_that_is_no_quantity_is_charged_as_reserved(resource: str, value: Any) -> None:
    """A provider that reports -1000 or NaN tokens neither opens the budget nor leaves a hold behind."""
    budget = Budget(Limits(**dict.fromkeys(RESOURCES, 10)), scope="main")
    hold = budget.reserve(Amount(**{resource: 4}))

    with pytest.raises(InvalidValue, match=resource):
        hold.settle(Amount(**{resource: value}))

    assert (budget.reserved(resource), budget.spent(resource), hold.is_open) == (0, 4, False)


def test_a_refused_reservation_holds_nothing_of_anything() -> None:
    """All or nothing: a request that fails on the last resource leaves the first as it was."""
    budget = Budget(Limits(tokens=100, tool_calls=5, agents=0), scope="main")

    with pytest.raises(BudgetExceeded):
        budget.reserve(Amount(tokens=10, tool_calls=5, agents=1))

    assert [budget.reserved(name) for name in RESOURCES] == [0] * len(RESOURCES)


def test_a_refund_leaves_no_trace() -> None:
    """A call that was not made costs nothing."""
    budget = Budget(Limits(tokens=100, usd=1.0, model_calls=5), scope="main")
    before = {name: parts(budget, name) for name in RESOURCES}

    budget.reserve(Amount(tokens=50, usd=0.5, model_calls=1)).refund()

    assert {name: parts(budget, name) for name in RESOURCES} == before


@pytest.mark.parametrize("first", ["settle", "refund"])
def test_only_the_first_word_about_a_hold_counts(first: str) -> None:
    """Settling in the work and refunding in its `finally` is the pattern: the second does nothing."""
    budget = Budget(Limits(tool_calls=10), scope="main")
    hold = budget.reserve(Amount(tool_calls=4))
    hold.settle(Amount(tool_calls=3)) if first == "settle" else hold.refund()
    after_first = parts(budget, "tool_calls")

    hold.settle(Amount(tool_calls=4))
    hold.refund()

    assert parts(budget, "tool_calls") == after_first
    assert budget.spent("tool_calls") == (3 if first == "settle" else 0)


def test_an_overshoot_is_on_record_and_stops_the_next() -> None:
    """An estimate that was too low is not forgiven: what was used counts, and nothing more gets through."""
    budget = Budget(Limits(tokens=100), scope="main")
    budget.reserve(Amount(tokens=50)).settle(Amount(tokens=130))

    with pytest.raises(BudgetExceeded) as refusal:
        budget.reserve(Amount(tokens=1))

    assert (budget.spent("tokens"), refusal.value.left) == (130, 0)


def test_an_unforeseen_resource_is_charged_too() -> None:
    """A call whose price was unknown when it was reserved is still paid for."""
    budget = Budget(Limits(usd=1.0), scope="main")

    budget.reserve(ONE_CALL).settle(Amount(model_calls=1, usd=0.75))

    assert budget.spent("usd") == 0.75


def test_money_does_not_drift() -> None:
    """A thousand dimes are a hundred dollars: rounding neither refuses the last nor lets one more through."""
    budget = Budget(Limits(usd=100.0, model_calls=0), scope="main")
    dime = Amount(usd=0.1)
    free = budget.remaining("usd")

    held = sum(reserves(budget, dime) is not None for _ in range(1_500))

    assert held == round(free / 0.1)


# --- the last word --------------------------------------------------------------------------------------------------


def test_exactly_as_many_calls_as_the_limit_the_last_word_among_them() -> None:
    """A thousand children under a limit of five: four calls, then the root's own last answer, then nothing."""
    root = Budget(Limits(model_calls=5), scope="main")
    children = [Budget(Limits(), scope=f"main/{number}", parent=root) for number in range(1_000)]

    granted = [hold for child in children if (hold := reserves(child, ONE_CALL)) is not None]
    stolen = [hold for child in children if (hold := reserves(child, ONE_CALL, last_word=True)) is not None]
    last = reserves(root, ONE_CALL, last_word=True)
    for hold in [*granted, last]:
        assert hold is not None
        hold.settle(ONE_CALL)
    more = [reserves(scope, ONE_CALL, last_word=True) for scope in (root, *children)]

    assert (len(granted), stolen, root.spent("model_calls")) == (4, [], 5)
    assert more == [None] * 1_001


def test_a_single_call_is_the_last_word() -> None:
    """With a limit of one there is no other call than the last."""
    budget = Budget(Limits(model_calls=1), scope="main")

    assert reserves(budget, ONE_CALL) is None
    assert reserves(budget, ONE_CALL, last_word=True) is not None
    assert reserves(budget, ONE_CALL, last_word=True) is None


@pytest.mark.parametrize(("tokens", "kept"), [(9, 0), (10, 1), (1_000, 100), (40_960, 4_096), (10_000_000, 4_096)])
def test_a_tenth_of_the_tokens_is_kept_but_not_more_than_an_answer_needs(tokens: int, kept: int) -> None:
    """Large budgets are not tied up."""
    budget = Budget(Limits(tokens=tokens), scope="main")

    assert parts(budget, "tokens") == {"left": tokens - kept, "held": 0, "kept": kept, "spent": 0}
    assert budget.remaining("tokens", last_word=True) == tokens


def test_a_short_last_word_leaves_the_rest_of_what_is_kept() -> None:
    """What the owner did not need now is still the owner's: a run that is woken has another last word."""
    root = Budget(Limits(tokens=1_000), scope="main")
    child = Budget(Limits(), scope="main/a", parent=root)

    root.reserve(Amount(tokens=30), last_word=True).settle(Amount(tokens=20))

    assert parts(root, "tokens") == {"left": 900, "held": 0, "kept": 80, "spent": 20}
    assert child.remaining("tokens", last_word=True) == 900


def test_a_last_word_that_was_never_said_can_still_be_said() -> None:
    """The reserve of a call that was refunded is not up for grabs for a child."""
    root = Budget(Limits(model_calls=2, tokens=1_000), scope="main")
    child = Budget(Limits(), scope="main/a", parent=root)
    child.reserve(ONE_CALL).settle(ONE_CALL)

    root.reserve(Amount(tokens=100, model_calls=1), last_word=True).refund()

    assert reserves(child, ONE_CALL) is None
    assert reserves(root, Amount(tokens=100, model_calls=1), last_word=True) is not None


def test_a_failed_attempt_at_the_last_word_leaves_the_tokens_for_the_next() -> None:
    """A call that used no tokens gives back those it drew; the request itself was made and counts."""
    root = Budget(Limits(tokens=1_000), scope="main")
    child = Budget(Limits(), scope="main/a", parent=root)
    child.reserve(Amount(tokens=900)).settle(Amount(tokens=900))

    root.reserve(Amount(tokens=100, model_calls=1), last_word=True).settle(ONE_CALL)

    assert reserves(child, Amount(tokens=1)) is None
    assert root.remaining("tokens", last_word=True) == 100


# --- scopes ---------------------------------------------------------------------------------------------------------


def test_only_the_scope_that_refused_has_fired() -> None:
    """The outcome is told where the limit was, and nowhere else."""
    root = Budget(Limits(tool_calls=10), scope="main")
    middle = Budget(Limits(tool_calls=2), scope="main/a", parent=root)
    leaf = Budget(Limits(), scope="main/a/b", parent=middle)

    with pytest.raises(BudgetExceeded) as refusal:
        leaf.reserve(Amount(tool_calls=3))

    assert refusal.value.scope == "main/a"
    assert (root.fired, middle.fired, leaf.fired) == (None, "tool_calls", None)


def test_the_first_resource_to_fire_is_the_one_that_is_remembered() -> None:
    """The reason for an end does not change when more limits are met on the way out."""
    budget = Budget(Limits(tool_calls=0, agents=0), scope="main")
    reserves(budget, Amount(agents=1))

    reserves(budget, Amount(tool_calls=1))

    assert budget.fired == "agents"


def test_a_child_cannot_be_given_more_than_is_free() -> None:
    """Limits above what its parent has free are refused, never cut down in silence, and take nothing."""
    root = Budget(Limits(tool_calls=10, agents=5), scope="main")
    root.reserve(Amount(tool_calls=4))
    before = {name: parts(root, name) for name in RESOURCES}

    with pytest.raises(BudgetExceeded) as refusal:
        Budget(Limits(tool_calls=7, agents=1), scope="main/a", parent=root)

    assert (refusal.value.asked, refusal.value.left, refusal.value.scope) == (7, 6, "main")
    assert {name: parts(root, name) for name in RESOURCES} == before


def test_a_slice_returns_when_its_scope_closes() -> None:
    """What a child does not spend is its parent's again, once."""
    root = Budget(Limits(tool_calls=10), scope="main")
    child = Budget(Limits(tool_calls=6), scope="main/a", parent=root)
    child.reserve(Amount(tool_calls=1)).settle(Amount(tool_calls=1))

    child.close()
    child.close()

    assert parts(root, "tool_calls") == {"left": 9, "held": 0, "kept": 0, "spent": 1}


def test_a_closed_scope_spends_nothing_more() -> None:
    """Its slice is back with the parent, so whatever it let through would be let through twice."""
    root = Budget(Limits(model_calls=5, tool_calls=5), scope="main")
    child = Budget(Limits(model_calls=4, tool_calls=5), scope="main/a", parent=root)
    grandchild = Budget(Limits(), scope="main/a/b", parent=child)

    child.close()

    for scope in (child, grandchild):
        for last_word in (False, True):
            assert reserves(scope, ONE_CALL, last_word=last_word) is None
            assert reserves(scope, Amount(tool_calls=1), last_word=last_word) is None


@pytest.mark.parametrize("used", [0, 1, 3], ids=["refunded", "used", "overshot"])
@pytest.mark.parametrize("order", [(0, 1), (1, 0)], ids=["inner first", "outer first"])
def test_a_call_in_flight_when_its_scope_closes_is_still_paid_by_the_tree(used: int, order: tuple[int, int]) -> None:
    """Until it settles it counts as reserved; then as what it used, up to the root: a late call cannot be lost."""
    root = Budget(Limits(tool_calls=10), scope="main")
    outer = Budget(Limits(tool_calls=6), scope="main/a", parent=root)
    inner = Budget(Limits(tool_calls=4), scope="main/a/b", parent=outer)
    in_flight = inner.reserve(Amount(tool_calls=2))
    for which in order:
        (inner, outer)[which].close()
    left_meanwhile = root.remaining("tool_calls")

    in_flight.settle(Amount(tool_calls=used))

    assert left_meanwhile == 8
    assert parts(root, "tool_calls") == {"left": 10 - used, "held": 0, "kept": 0, "spent": used}


def test_a_late_settlement_passes_scopes_that_do_not_limit_the_resource() -> None:
    """The charge goes to whoever owns the resource, however far above."""
    root = Budget(Limits(tool_calls=10), scope="main")
    middle = Budget(Limits(agents=1), scope="main/a", parent=root)
    leaf = Budget(Limits(tool_calls=4), scope="main/a/b", parent=middle)
    in_flight = leaf.reserve(Amount(tool_calls=3))
    leaf.close()
    middle.close()

    in_flight.settle(Amount(tool_calls=1))

    assert (root.spent("tool_calls"), root.remaining("tool_calls")) == (1, 9)


def test_a_reopened_scope_goes_on_with_what_it_had_left() -> None:
    """A resumed run has no new grant: what it spent in its first life stays spent, and is charged above once."""
    root = Budget(Limits(tool_calls=10), scope="main")
    child = Budget(Limits(tool_calls=6), scope="main/a", parent=root)
    child.reserve(Amount(tool_calls=2)).settle(Amount(tool_calls=2))
    child.close()

    child.reopen(root)

    assert parts(child, "tool_calls") == {"left": 4, "held": 0, "kept": 0, "spent": 2}
    assert parts(root, "tool_calls") == {"left": 4, "held": 4, "kept": 0, "spent": 2}
    child.reserve(Amount(tool_calls=1)).settle(Amount(tool_calls=1))
    child.close()
    assert parts(root, "tool_calls") == {"left": 7, "held": 0, "kept": 0, "spent": 3}


def test_a_scope_is_not_reopened_with_what_has_been_given_to_others() -> None:
    """What returned belongs to the parent: if it is gone, the run cannot go on, and nothing is taken."""
    root = Budget(Limits(tool_calls=10), scope="main")
    child = Budget(Limits(tool_calls=6), scope="main/a", parent=root)
    child.close()
    root.reserve(Amount(tool_calls=5))

    with pytest.raises(BudgetExceeded):
        child.reopen(root)

    assert child.closed
    assert reserves(child, Amount(tool_calls=1)) is None
    assert parts(root, "tool_calls") == {"left": 5, "held": 5, "kept": 0, "spent": 0}


@pytest.mark.parametrize("used", [0, 1, 2, 3])
@pytest.mark.parametrize("life", ["closed", "reopened", "closed again"])
def test_a_call_in_flight_over_two_lives_is_paid_once(used: int, life: str) -> None:
    """Whenever it settles, the tree has been charged what it used when all is over."""
    root = Budget(Limits(tool_calls=10), scope="main")
    child = Budget(Limits(tool_calls=6), scope="main/a", parent=root)
    in_flight = child.reserve(Amount(tool_calls=2))
    child.close()
    if life == "closed":
        in_flight.settle(Amount(tool_calls=used))
    child.reopen(root)
    if life == "reopened":
        in_flight.settle(Amount(tool_calls=used))
    child.close()

    in_flight.settle(Amount(tool_calls=used))

    assert parts(root, "tool_calls") == {"left": 10 - used, "held": 0, "kept": 0, "spent": used}


def test_closing_after_money_was_refunded_is_no_error() -> None:
    """0.1 + 0.2 - 0.1 - 0.2 is a little less than nothing, and no negative amount."""
    root = Budget(Limits(usd=10.0), scope="main")
    child = Budget(Limits(usd=1.0), scope="main/a", parent=root)
    holds = [child.reserve(Amount(usd=usd)) for usd in (0.1, 0.2, 0.3)]
    for hold in holds:
        hold.refund()

    child.close()

    assert root.remaining("usd") == pytest.approx(9.0)
    assert root.spent("usd") == pytest.approx(0.0)


def test_a_chain_of_a_hundred_thousand_scopes_is_no_deeper_than_one() -> None:
    """Depth costs neither recursion nor what grows with it."""
    root = scope = Budget(Limits(model_calls=10), scope="main")
    for number in range(100_000):
        scope = Budget(Limits(), scope=str(number), parent=scope)

    scope.reserve(ONE_CALL).settle(ONE_CALL)

    assert (root.spent("model_calls"), scope.remaining("model_calls")) == (1, 8)
