"""Tests of `core/lifecycle.py`: every pair of state and fact. Sequences are in `tests/machines/test_lifecycle.py`."""

from __future__ import annotations

from itertools import product

import pytest

from ramet.core.errors import Bug
from ramet.core.lifecycle import LIVE_STATES, TERMINAL_STATES, Effect, Fact, Next, State, Step, next_after, step
from ramet.core.outcome import Status

END_FACTS = (Fact.FINISHED, Fact.CUT_OFF)
ALL_PAIRS = list(product(State, Fact))
#: What must be done at an end, each once.
END_EFFECTS = {
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


def reachable_states(start: State) -> set[State]:
    states, pending = {start}, [start]
    while pending:
        state = pending.pop()
        for fact in Fact:
            after = outcome(state, fact)
            if after is not None and after.state not in states:
                states.add(after.state)
                pending.append(after.state)
    return states


def test_every_state_is_either_living_or_over() -> None:
    """No third kind of state exists."""
    assert LIVE_STATES | TERMINAL_STATES == set(State)
    assert not LIVE_STATES & TERMINAL_STATES


def test_every_state_can_be_reached() -> None:
    """The table has no unreachable rows."""
    assert reachable_states(State.STARTING) == set(State)


@pytest.mark.parametrize("state", sorted(LIVE_STATES))
@pytest.mark.parametrize("fact", END_FACTS)
def test_every_living_run_can_end_at_once(state: State, fact: Fact) -> None:
    """Each end is one fact away from every living state, and releases everything exactly once."""
    after = step(state, fact)

    assert after.state in TERMINAL_STATES
    assert sorted(after.effects) == sorted(END_EFFECTS)


@pytest.mark.parametrize("state", sorted(LIVE_STATES))
@pytest.mark.parametrize("fact", END_FACTS)
def test_an_end_is_recorded_before_it_is_reported(state: State, fact: Fact) -> None:
    """RECORD_END and NOTIFY are the last effects, after slot, mail and budget are final."""
    effects = step(state, fact).effects

    assert effects[-2:] == (Effect.RECORD_END, Effect.NOTIFY)


@pytest.mark.parametrize("state", sorted(LIVE_STATES))
def test_a_stop_can_be_requested_in_every_living_state(state: State) -> None:
    """Every living state moves to STOPPING."""
    assert step(state, Fact.STOP_ASKED).state is State.STOPPING


@pytest.mark.parametrize("state", sorted(LIVE_STATES - {State.STOPPING}))
def test_a_stop_is_recorded_and_aborts_the_work(state: State) -> None:
    """STOP_ASKED has the effects RECORD_STATE and ABORT."""
    assert step(state, Fact.STOP_ASKED).effects == (Effect.RECORD_STATE, Effect.ABORT)


def test_a_stopping_run_only_ends() -> None:
    """No other fact restarts a stopping run or has an effect."""
    others = {fact: outcome(State.STOPPING, fact) for fact in Fact if fact not in END_FACTS}

    assert {after for after in others.values() if after is not None} == {Step(State.STOPPING)}


@pytest.mark.parametrize(("state", "fact"), [pair for pair in ALL_PAIRS if pair[0] in TERMINAL_STATES])
def test_late_facts_after_an_end_have_no_effect(state: State, fact: Fact) -> None:
    """Late facts change nothing, except mail to a finished run and expiry."""
    allowed_states = {
        (State.ENDED, Fact.RESUMED): State.STARTING,
        (State.ENDED, Fact.EXPIRED): State.EXPIRED,
        (State.STOPPED, Fact.EXPIRED): State.EXPIRED,
    }

    after = step(state, fact)

    assert after.state is allowed_states.get((state, fact), state)
    assert bool(after.effects) == ((state, fact) in allowed_states)


def test_a_stopped_run_never_becomes_living_again() -> None:
    """No sequence of facts leads from STOPPED to a living state."""
    assert not reachable_states(State.STOPPED) & LIVE_STATES


def test_an_expired_run_stays_expired() -> None:
    """No fact changes EXPIRED."""
    assert reachable_states(State.EXPIRED) == {State.EXPIRED}


@pytest.mark.parametrize(("state", "fact"), ALL_PAIRS)
def test_an_impossible_fact_raises_bug_and_no_other_error(state: State, fact: Fact) -> None:
    """The table answers each pair or raises Bug, and repeats no effect."""
    after = outcome(state, fact)

    if after is not None:
        assert len(set(after.effects)) == len(after.effects)


@pytest.mark.parametrize(("state", "fact"), ALL_PAIRS)
def test_a_change_of_living_state_is_recorded_or_starts_a_turn(state: State, fact: Fact) -> None:
    """Screens follow the journal: a change that is not recorded is visible by its turn or its parent."""
    after = outcome(state, fact)
    if after is None or after.state is state or after.state in TERMINAL_STATES:
        return

    is_reported = Effect.RECORD_STATE in after.effects or Effect.START_TURN in after.effects
    assert is_reported or (state, fact) == (State.STARTING, Fact.BEGAN) or fact is Fact.PARENT_STOPS


@pytest.mark.parametrize("state", [State.RUNNING, State.WAITING, State.STARTING])
def test_an_idle_run_holds_no_slot(state: State) -> None:
    """A session that waits for its user blocks no other run."""
    after = step(state, Fact.TURN_OVER)

    assert after.state is State.IDLE
    assert after.effects[0] is Effect.RELEASE_SLOT


@pytest.mark.parametrize("status", [None, *Status])
@pytest.mark.parametrize("flags", list(product((False, True), repeat=5)))
def test_a_run_goes_on_as_its_mail_and_children_demand(status: Status | None, flags: tuple[bool, ...]) -> None:
    """Each situation of a run that nobody stops leads to one next step."""
    is_session, has_mail, has_user_mail, can_wake, is_expecting = flags
    found = next_after(
        status,
        is_session=is_session,
        has_mail=has_mail,
        has_user_mail=has_user_mail,
        can_wake=can_wake,
        is_expecting=is_expecting,
    )

    if is_session:
        assert found is not Next.END, "a session outlives its turns"
        assert (found is Next.HOLD) == (status is Status.CANCELLED and not has_user_mail)
    else:
        assert found is not Next.HOLD, "only a session is interrupted"
        if status not in (Status.COMPLETED, None):
            assert found is Next.END, "a turn that failed is the end"
        elif not (has_mail and can_wake):
            assert (found is Next.REST) == is_expecting
    if found not in (Next.END, Next.HOLD):
        assert (found is Next.WAKE) == (has_mail and can_wake)
