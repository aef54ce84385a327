"""Long sequences of facts in any order: every path can end, and after an end there is no effect."""

from __future__ import annotations

from collections import Counter

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from ramet.core.errors import Bug
from ramet.core.lifecycle import LIVE_STATES, TERMINAL_STATES, Effect, Fact, State, step

ONCE_A_LIFE = (Effect.REFUND, Effect.CLOSE_MAIL, Effect.RELEASE, Effect.RECORD_END, Effect.NOTIFY)


#: What may end a pause: a wait that ended is another call of the run, which goes on. Mail and a start do not end one.
ENDS_A_PAUSE = {
    Fact.PAUSE_ENDED,
    Fact.START_UNPAUSED,
    Fact.WAIT_ENDED,
    Fact.TURN_OVER,
    Fact.STOP_ASKED,
    Fact.PARENT_STOPS,
    Fact.FINISHED,
    Fact.CUT_OFF,
}


class Lifecycle(RuleBasedStateMachine):
    """Run, with what its supervisor would have done by now."""

    def __init__(self) -> None:
        super().__init__()
        self.state = State.STARTING
        self.lives = 1
        self.done: Counter[Effect] = Counter()
        self.aborted = False
        self.mail_open = True

    @rule(fact=st.sampled_from(Fact))
    def apply(self, fact: Fact) -> None:
        before = self.state
        try:
            self.state, effects = step(self.state, fact)
        except Bug:
            assert before in LIVE_STATES, "after an end nothing is a bug: it is void"
            return
        if fact is Fact.PARENT_STOPS and before in LIVE_STATES:
            self.aborted = True  # Its parent's controller has done so.
        if before in TERMINAL_STATES and not (before is State.ENDED and fact is Fact.RESUMED):
            assert self.state in TERMINAL_STATES, "only mail to a finished run brings one back"
            assert set(effects) <= {Effect.FORGET}, "an effect after the end"
        if self.state is State.PAUSED and before is not State.PAUSED:
            assert fact in (Fact.PAUSE_BEGAN, Fact.START_PAUSED), "only a limit or a person pauses"
            assert Effect.RECORD_STATE in effects, "a pause that nobody sees"
        if before is State.PAUSED and self.state is not State.PAUSED:
            assert fact in ENDS_A_PAUSE, f"{fact} ended a pause"
            assert Effect.START_TURN not in effects, "a pause ends in the middle of its turn"
        if before is State.STOPPING:
            assert self.state in TERMINAL_STATES | {State.STOPPING}, "what was told to stop went on"
        for effect in effects:
            self.do(effect)

    def do(self, effect: Effect) -> None:
        self.done[effect] += 1
        match effect:
            case Effect.ABORT:
                self.aborted = True
            case Effect.CLOSE_MAIL:
                assert self.mail_open
                self.mail_open = False
            case Effect.REOPEN_MAIL:
                assert not self.mail_open
                self.mail_open, self.aborted = True, False
                self.lives += 1
            case Effect.START_TURN:
                assert self.mail_open, "a turn of a run that takes no mail"
                assert not self.aborted, "a turn of a run that was told to stop"
            case Effect.NOTIFY:
                assert self.done[Effect.RECORD_END] == self.done[Effect.NOTIFY], "told before it was recorded"

    @invariant()
    def every_start_has_exactly_one_end(self) -> None:
        ended = self.lives - (self.state in LIVE_STATES)
        assert {effect: self.done[effect] for effect in ONCE_A_LIFE} == dict.fromkeys(ONCE_A_LIFE, ended)

    @invariant()
    def mail_is_open_while_the_run_is_live(self) -> None:
        assert self.mail_open == (self.state in LIVE_STATES)

    @invariant()
    def one_fact_can_always_end_a_live_run(self) -> None:
        if self.state in LIVE_STATES:
            assert step(self.state, Fact.FINISHED).state in TERMINAL_STATES
            assert step(self.state, Fact.CUT_OFF).state is State.STOPPED

    @invariant()
    def an_ended_run_was_aborted(self) -> None:
        """Runs that end or stop are aborted, so that no run below continues."""
        assert self.aborted or self.state in LIVE_STATES - {State.STOPPING}

    @invariant()
    def a_run_is_forgotten_once_and_only_when_it_has_expired(self) -> None:
        assert self.done[Effect.FORGET] == (self.state is State.EXPIRED)


TestLifecycle = Lifecycle.TestCase
TestLifecycle.settings = settings(max_examples=200, stateful_step_count=40)
