"""The smallest raise with which a request fits, its command, and the pauses that a journal shows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramet.core.budget import Budget
from ramet.core.errors import BudgetExceeded
from ramet.core.events import BudgetRefused, LimitPaused, LimitsRaised, RunSpawned, TurnStarted
from ramet.core.limits import RESOURCES, Amount, Limits, limits_from
from ramet.core.replay.paused_limits import pause_id, raise_command, recorded_pauses, smallest_raise
from ramet.core.replay.replay import TreeReplay

USD_STEP = 1e-6


@given(limit=st.floats(0, 100), used=st.floats(0, 100), asked=st.floats(0, 1_000))
def test_money_fits_after_the_smallest_raise(limit: float, used: float, asked: float) -> None:
    """A raise by the amount lets the request fit; the amount is at most a millionth above what is missing."""
    budget = Budget(Limits(usd=limit, at_limit="pause"), scope="main")
    budget.charge(Amount(usd=used))
    free = limit - used
    amount = smallest_raise("usd", asked, free)
    assert amount <= max(0.0, asked - free) + USD_STEP + 1e-9
    budget.raise_limits(Amount(usd=amount))
    budget.reserve(Amount(usd=asked)).refund()


@pytest.mark.parametrize("resource", sorted(set(RESOURCES) - {"usd"}))
def test_a_count_fits_after_the_smallest_raise_and_not_after_less(resource: str) -> None:
    """Five are missing: five are enough, four are not. An exceeded limit needs what it is exceeded by, too."""
    limits = replace(limits_from({resource: 4}), at_limit="pause")
    for used, missing in ((2, 5), (6, 9)):
        for amount, fits in ((missing, True), (missing - 1, False)):
            budget = Budget(limits, scope="main")
            budget.charge(Amount(**{resource: used}))
            assert smallest_raise(resource, 7, 4 - used) == missing
            budget.raise_limits(Amount(**{resource: amount}))
            if fits:
                budget.reserve(Amount(**{resource: 7}))
            else:
                with pytest.raises(BudgetExceeded):
                    budget.reserve(Amount(**{resource: 7}))


@pytest.mark.parametrize(
    ("resource", "amount", "command"),
    [
        ("model_calls", 1, "ramet raise r1 --calls 1"),
        ("tool_calls", 2, "ramet raise r1 --tool-calls 2"),
        ("tokens", 12_345_678, "ramet raise r1 --tokens 12345678"),
        ("usd", 0.000125, "ramet raise r1 --usd 0.000125"),
        ("agents", 3, "ramet raise r1 --agents 3"),
    ],
)
def test_the_command_has_the_whole_amount(resource: str, amount: float, command: str) -> None:
    """The command is ready to be run."""
    assert raise_command("r1", resource, amount) == command


def event(kind: Any, run: str, seq: int, **fields: Any) -> Any:
    """Return an event of the root, or of the child."""
    place = {"r": ("main", None, 0), "c": ("main/c", "r", 1)}[run]
    path, parent, depth = place
    return kind(root="r", run=run, path=path, agent="a", depth=depth, parent=parent, seq=seq, **fields)


def spawned(run: str, seq: int) -> Any:
    return event(RunSpawned, run, seq, mode="fresh", prompt="go", description="", model="m", name=run, birth={})


def test_a_journal_shows_what_its_runs_wait_for() -> None:
    """What was raised since counts, in the run whose limit it is; earlier raises are in what was left."""
    pause = event(LimitPaused, "c", 6, resource="tokens", asked=500, left=100, scope="main")
    raised = [
        event(LimitsRaised, "r", 5, add={"tokens": 50}),
        event(LimitsRaised, "c", 7, add={"tokens": 50}),
        event(LimitsRaised, "r", 8, add={"tokens": 150, "usd": 3}),
    ]
    replay = TreeReplay().apply_all([spawned("r", 1), spawned("c", 2), raised[0], pause, *raised[1:]])
    (shown,) = recorded_pauses(replay)
    assert (shown.id, shown.run.id, shown.limit.scope_run) == (pause_id(pause), "c", "r")
    assert (shown.limit.asked, shown.limit.left, shown.limit.amount) == (500, 250, 250)
    replay.apply(event(LimitsRaised, "r", 9, add={"tokens": 250}))
    assert recorded_pauses(replay) == []


def test_a_denial_ends_a_pause_until_the_next_turn() -> None:
    """A refusal at the limit where the run paused is a denial; a refusal elsewhere is none."""
    pause = event(LimitPaused, "r", 2, resource="tokens", asked=5, left=1, scope="main")
    elsewhere = event(BudgetRefused, "r", 3, resource="usd", asked=5, left=1, scope="main")
    denial = event(BudgetRefused, "r", 4, resource="tokens", asked=5, left=1, scope="main")
    replay = TreeReplay().apply_all([spawned("r", 1), pause, elsewhere])
    assert (replay.root.limit_pause, replay.root.limit_denial) == (pause, None)
    replay.apply(denial)
    assert (replay.root.limit_pause, replay.root.limit_denial) == (None, denial)
    assert recorded_pauses(replay) == []
    replay.apply(event(TurnStarted, "r", 5, turn=2))
    assert replay.root.limit_denial is None
