"""Tests of `concurrency/limit_queue.py`: first come, first served, and nobody waits while there is room."""

from __future__ import annotations

import asyncio

import pytest

from ramet.concurrency.limit_queue import LimitQueue, QueuedRequest
from ramet.core.budget import Budget, Hold
from ramet.core.errors import BudgetExceeded
from ramet.core.limits import Amount, Limits


def joined(queue: LimitQueue, budget: Budget, amount: Amount) -> QueuedRequest[Hold]:
    """Return a request in line that was refused."""
    request = QueuedRequest(budget, lambda: budget.reserve(amount), lambda: None)
    with pytest.raises(BudgetExceeded) as refusal:
        request.attempt()
    queue.join(request, refusal.value)
    return request


async def settled() -> None:
    """Let scheduled callbacks run."""
    for _ in range(3):
        await asyncio.sleep(0)


async def test_a_later_request_does_not_pass_even_if_it_would_fit() -> None:
    """A line is as long as its first request waits."""
    budget = Budget(Limits(tokens=10, at_limit="pause"), scope="main")
    hold, queue = budget.reserve(Amount(tokens=5)), LimitQueue()
    large, small = joined(queue, budget, Amount(tokens=8)), joined(queue, budget, Amount(tokens=1))
    await settled()
    assert not large.future.done()
    assert not small.future.done()

    hold.refund()
    await settled()

    assert large.future.done()
    assert small.future.done()
    assert budget.waiting is None
    assert budget.on_change is None


async def test_lines_of_two_resources_do_not_hold_each_other_up() -> None:
    """A request that waits for calls of tools does not keep others from asking models."""
    budget = Budget(Limits(tool_calls=0, model_calls=1, at_limit="pause"), scope="main")
    waiting = joined(LimitQueue(), budget, Amount(tool_calls=1))

    budget.reserve(Amount(model_calls=1))

    assert not waiting.future.done()


async def test_a_request_that_meets_another_limit_waits_in_the_line_there() -> None:
    """A child's slice is raised, then its root's money is what is missing."""
    root = Budget(Limits(usd=1, at_limit="pause"), scope="main")
    child = Budget(Limits(model_calls=0, at_limit="pause"), scope="main/a", parent=root)
    request, queue = (
        QueuedRequest(child, lambda: child.reserve(Amount(usd=2, model_calls=1)), lambda: None),
        LimitQueue(),
    )
    with pytest.raises(BudgetExceeded) as refusal:
        request.attempt()
    queue.join(request, refusal.value)
    assert request.refusal is not None
    assert request.refusal.scope == "main"

    root.raise_limits(Amount(usd=1))
    await settled()
    assert request.refusal.scope == "main/a"
    assert root.waiting is None

    child.raise_limits(Amount(model_calls=1))
    await settled()
    assert request.future.done()


async def test_a_request_that_meets_a_limit_that_ends_gets_its_refusal() -> None:
    """Each scope decides for its own limit."""
    root = Budget(Limits(usd=1), scope="main")
    child = Budget(Limits(model_calls=0, at_limit="pause"), scope="main/a", parent=root)
    queue = LimitQueue()
    request = QueuedRequest(child, lambda: child.reserve(Amount(usd=0.5, model_calls=1)), lambda: None)
    with pytest.raises(BudgetExceeded) as refusal:
        request.attempt()
    queue.join(request, refusal.value)
    root.reserve(Amount(usd=0.6))
    child.raise_limits(Amount(model_calls=1))
    await settled()

    with pytest.raises(BudgetExceeded) as second:
        request.future.result()
    assert second.value.scope == "main"


async def test_whether_only_a_raise_can_help_is_reported_as_it_changes() -> None:
    """Requests under way may return what they hold; once they have used it, only a raise helps."""
    budget, reports = Budget(Limits(model_calls=1, at_limit="pause"), scope="main"), list[bool]()
    hold, queue = budget.reserve(Amount(model_calls=1)), LimitQueue()
    request = QueuedRequest(
        budget, lambda: budget.reserve(Amount(model_calls=1)), lambda: reports.append(request.is_exhausted)
    )
    with pytest.raises(BudgetExceeded) as refusal:
        request.attempt()
    queue.join(request, refusal.value)
    assert reports == []

    hold.settle(Amount(model_calls=1))
    await settled()
    assert reports == [True]

    budget.raise_limits(Amount(model_calls=1))
    await settled()
    assert request.future.done()
    assert reports == [True, False]


async def test_a_request_that_leaves_makes_room_for_the_next() -> None:
    """The first one was too large; the next one fits."""
    budget, queue = Budget(Limits(tokens=5, at_limit="pause"), scope="main"), LimitQueue()
    large = joined(queue, budget, Amount(tokens=8))
    small = joined(queue, budget, Amount(tokens=1))

    large.future.cancel()
    queue.leave(large)
    await settled()

    assert small.future.done()


async def test_a_closed_scope_refuses_those_who_wait_there() -> None:
    """The run of the scope has ended: nobody can raise it any more."""
    root = Budget(Limits(model_calls=5, at_limit="pause"), scope="main")
    child = Budget(Limits(model_calls=1), scope="main/a", parent=root)
    child.reserve(Amount(model_calls=1)).settle(Amount(model_calls=1))
    request = joined(LimitQueue(), child, Amount(model_calls=1))

    child.close()
    await settled()

    with pytest.raises(BudgetExceeded):
        request.future.result()


async def test_a_limit_that_ends_has_no_line() -> None:
    """Requests at such a limit are refused at once."""
    budget = Budget(Limits(model_calls=0), scope="main")
    request = QueuedRequest(budget, lambda: budget.reserve(Amount(model_calls=1)), lambda: None)
    with pytest.raises(BudgetExceeded) as refusal:
        request.attempt()

    with pytest.raises(BudgetExceeded):
        LimitQueue().join(request, refusal.value)
    assert budget.waiting is None
