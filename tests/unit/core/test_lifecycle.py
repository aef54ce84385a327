"""core/lifecycle.py: the whole table, pair by pair. Long lives are in tests/machines/test_lifecycle.py."""

from __future__ import annotations

from itertools import product

import pytest

from ramet.core.errors import Bug
from ramet.core.lifecycle import LIVE_STATES, TERMINAL_STATES, Effect, Fact, State, Step, step

ENDS = (Fact.FINISHED, Fact.CUT_OFF)
EVERYTHING = list(product(State, Fact))
#: What must be done at an end, each once.
DUTIES = {
    Effect.RELEASE_SLOT,
    Effect.ABORT,
    Effect.REFUND,
    Effect.CLOSE_MAIL,
    Effect.RELEASE,
    Effect.RECORD_END,
    Effect.NOTIFY,
}


def outcome(state: State, fact: Fact) -> Step | None:
    try:
        return step(state, fact)
    except Bug:
        return None


def reachable(start: State) -> set[State]:
    found, pending = {start}, [start]
    while pending:
        state = pending.pop()
        for fact in Fact:
            after = outcome(state, fact)
            if after is not None and after.state not in found:
                found.add(after.state)
                pending.append(after.state)
    return found


def test_every_state_is_either_living_or_over() -> None:
    """There is no third kind."""
    assert LIVE_STATES | TERMINAL_STATES == set(State)
    assert not LIVE_STATES & TERMINAL_STATES


def test_every_state_can_be_reached() -> None:
    """The table has no dead rows."""
    assert reachable(State.STARTING) == set(State)


@pytest.mark.parametrize("state", sorted(LIVE_STATES))
@pytest.mark.parametrize("fact", ENDS)
def test_every_living_run_can_end_at_once(state: State, fact: Fact) -> None:
    """Wherever a run is, its end is one fact away, and everything it held is given back exactly once."""
    after = step(state, fact)

    assert after.state in TERMINAL_STATES
    assert sorted(after.effects) == sorted(DUTIES)


@pytest.mark.parametrize("state", sorted(LIVE_STATES))
@pytest.mark.parametrize("fact", ENDS)
def test_an_end_is_on_record_before_anybody_is_told(state: State, fact: Fact) -> None:
    """Nothing unrecorded is shown as final; and whoever is told finds place, mail and budget as they will stay."""
    effects = step(state, fact).effects

    assert effects[-2:] == (Effect.RECORD_END, Effect.NOTIFY)


@pytest.mark.parametrize("state", sorted(LIVE_STATES))
def test_a_stop_can_be_asked_at_any_time(state: State) -> None:
    """No living state is deaf to a stop."""
    assert step(state, Fact.STOP_ASKED).state is State.STOPPING


@pytest.mark.parametrize("state", sorted(LIVE_STATES - {State.STOPPING}))
def test_a_stop_reaches_the_work(state: State) -> None:
    """Asking is on record and aborts what runs."""
    assert step(state, Fact.STOP_ASKED).effects == (Effect.RECORD_STATE, Effect.ABORT)


def test_a_stopping_run_only_ends() -> None:
    """Nothing that happens on the way out starts it again or has an effect of its own."""
    others = {fact: outcome(State.STOPPING, fact) for fact in Fact if fact not in ENDS}

    assert {after for after in others.values() if after is not None} == {Step(State.STOPPING)}


@pytest.mark.parametrize(("state", "fact"), [pair for pair in EVERYTHING if pair[0] in TERMINAL_STATES])
def test_after_an_end_late_facts_are_void(state: State, fact: Fact) -> None:
    """A straggler changes nothing and has no effect; only mail to a finished run, and time, do."""
    allowed = {
        (State.ENDED, Fact.RESUMED): State.STARTING,
        (State.ENDED, Fact.EXPIRED): State.EXPIRED,
        (State.STOPPED, Fact.EXPIRED): State.EXPIRED,
    }

    after = step(state, fact)

    assert after.state is allowed.get((state, fact), state)
    assert bool(after.effects) == ((state, fact) in allowed)


def test_a_run_that_was_cut_off_is_never_brought_back() -> None:
    """STOPPED is an end by somebody's word: no sequence of facts leads back among the living."""
    assert not reachable(State.STOPPED) & LIVE_STATES


def test_a_tombstone_stays_a_tombstone() -> None:
    """What has expired is never anything else again."""
    assert reachable(State.EXPIRED) == {State.EXPIRED}


@pytest.mark.parametrize(("state", "fact"), EVERYTHING)
def test_what_cannot_happen_is_our_bug_and_nothing_else(state: State, fact: Fact) -> None:
    """The table answers or says Bug; it never fails in another way, and every effect comes once."""
    after = outcome(state, fact)

    if after is not None:
        assert len(set(after.effects)) == len(after.effects)


@pytest.mark.parametrize(("state", "fact"), EVERYTHING)
def test_a_state_that_is_left_for_another_living_one_is_on_record_or_begins_a_turn(state: State, fact: Fact) -> None:
    """Screens follow the records: what they are not told is told by a turn, or by a parent."""
    after = outcome(state, fact)
    if after is None or after.state is state or after.state in TERMINAL_STATES:
        return

    told = Effect.RECORD_STATE in after.effects or Effect.START_TURN in after.effects
    assert told or (state, fact) == (State.STARTING, Fact.BEGAN) or fact is Fact.PARENT_STOPS


@pytest.mark.parametrize("state", [State.RUNNING, State.WAITING, State.STARTING])
def test_an_idle_run_holds_no_slot(state: State) -> None:
    """A session that waits for its user keeps nobody from working."""
    after = step(state, Fact.TURN_OVER)

    assert after.state is State.IDLE
    assert after.effects[0] is Effect.RELEASE_SLOT
