"""The lifecycle of a run as one table: `step(state, fact) -> (state, effects)`.

The table decides; the supervisor executes the effects.

    STARTING ── began ──▶ RUNNING ◀── wait ended ── WAITING ◀── pause ended ── PAUSED ◀─ start paused ── STARTING
        ▲                 │  │  └── wait began ───▶   ──────── pause began ──▶   ─ start unpaused ──▶
        └─ woken ── IDLE ◀┘  │
                      │      ▼
    any living ── stop asked ─▶ STOPPING ── finished ─▶ ENDED | STOPPED ── expired ─▶ EXPIRED
                                              ENDED ── resumed ─▶ STARTING

STOPPED is an end by request: mail does not wake such a run. After an end, a late fact changes nothing and has no
effect.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

from ramet.core.errors import Bug
from ramet.core.outcome import Status


class State(StrEnum):
    """The state of a run in its lifecycle."""

    STARTING = "starting"  #: admitted; waits for a slot
    RUNNING = "running"
    WAITING = "waiting"  #: for its children or a person; holds no slot
    #: by a person, or at a limit until that is raised or others return what they hold; holds no slot
    PAUSED = "paused"
    IDLE = "idle"  #: a turn is over; mail or a prompt wakes it
    STOPPING = "stopping"  #: has been asked to stop, has not ended yet
    ENDED = "ended"
    STOPPED = "stopped"
    EXPIRED = "expired"  #: only its tombstone is left


class Fact(StrEnum):
    """A fact that can happen to a run."""

    BEGAN = "began"
    WAIT_BEGAN = "wait_began"
    WAIT_ENDED = "wait_ended"
    PAUSE_BEGAN = "pause_began"
    PAUSE_ENDED = "pause_ended"
    START_PAUSED = "start_paused"  #: its turn waits for the end of a pause before it begins
    START_UNPAUSED = "start_unpaused"
    TURN_OVER = "turn_over"
    WOKEN = "woken"
    STOP_ASKED = "stop_asked"
    PARENT_STOPS = "parent_stops"  #: stopped together with its parent, whose record and controller cover this run
    FINISHED = "finished"
    CUT_OFF = "cut_off"  #: ended by a request from above or from a person
    RESUMED = "resumed"
    EXPIRED = "expired"


class Effect(StrEnum):
    """An action that the supervisor must then perform, in the given order."""

    RECORD_STATE = "record_state"
    RELEASE_SLOT = "let_go_slot"
    START_TURN = "start_turn"
    ABORT = "abort"  #: abort the run's controller, and so all runs below
    REFUND = "refund"
    CLOSE_MAIL = "close_mail"
    REOPEN_MAIL = "reopen_mail"
    RELEASE = "release"  #: release its place among the living runs
    RECORD_END = "record_end"
    NOTIFY = "notify"  #: notify the waiters and the parent
    FORGET = "forget"


class Step(NamedTuple):
    """The new state and the resulting effects."""

    state: State
    effects: tuple[Effect, ...] = ()


LIVE_STATES = frozenset({State.STARTING, State.RUNNING, State.WAITING, State.PAUSED, State.IDLE, State.STOPPING})
TERMINAL_STATES = frozenset({State.ENDED, State.STOPPED, State.EXPIRED})

_END = (
    Effect.RELEASE_SLOT,
    Effect.ABORT,
    Effect.REFUND,
    Effect.CLOSE_MAIL,
    Effect.RELEASE,
    Effect.RECORD_END,
    Effect.NOTIFY,
)
_STOP = Step(State.STOPPING, (Effect.RECORD_STATE, Effect.ABORT))

TABLE: dict[tuple[State, Fact], Step] = {
    (State.STARTING, Fact.BEGAN): Step(State.RUNNING),  # the event of the turn records this
    (State.STARTING, Fact.STOP_ASKED): _STOP,
    (State.STARTING, Fact.START_PAUSED): Step(State.PAUSED, (Effect.RECORD_STATE,)),
    (State.PAUSED, Fact.START_UNPAUSED): Step(State.STARTING, (Effect.RECORD_STATE,)),
    (State.RUNNING, Fact.WAIT_BEGAN): Step(State.WAITING, (Effect.RECORD_STATE,)),
    (State.RUNNING, Fact.TURN_OVER): Step(State.IDLE, (Effect.RELEASE_SLOT, Effect.RECORD_STATE)),
    (State.RUNNING, Fact.STOP_ASKED): _STOP,
    (State.WAITING, Fact.WAIT_ENDED): Step(State.RUNNING, (Effect.RECORD_STATE,)),
    (State.WAITING, Fact.TURN_OVER): Step(State.IDLE, (Effect.RELEASE_SLOT, Effect.RECORD_STATE)),
    (State.WAITING, Fact.STOP_ASKED): _STOP,
    (State.RUNNING, Fact.PAUSE_BEGAN): Step(State.PAUSED, (Effect.RECORD_STATE,)),
    (State.WAITING, Fact.PAUSE_BEGAN): Step(State.PAUSED, (Effect.RECORD_STATE,)),
    (State.PAUSED, Fact.PAUSE_ENDED): Step(State.WAITING, (Effect.RECORD_STATE,)),
    (State.PAUSED, Fact.WAIT_ENDED): Step(State.RUNNING, (Effect.RECORD_STATE,)),  # another of its calls goes on
    (State.PAUSED, Fact.TURN_OVER): Step(State.IDLE, (Effect.RELEASE_SLOT, Effect.RECORD_STATE)),
    (State.PAUSED, Fact.STOP_ASKED): _STOP,
    (State.IDLE, Fact.WOKEN): Step(State.STARTING, (Effect.START_TURN,)),
    (State.IDLE, Fact.STOP_ASKED): _STOP,
    (State.ENDED, Fact.RESUMED): Step(State.STARTING, (Effect.REOPEN_MAIL, Effect.START_TURN)),
    (State.ENDED, Fact.EXPIRED): Step(State.EXPIRED, (Effect.FORGET,)),
    (State.STOPPED, Fact.EXPIRED): Step(State.EXPIRED, (Effect.FORGET,)),
    # Facts that arrive twice, or shortly after the state that they refer to.
    (State.STARTING, Fact.WAIT_BEGAN): Step(State.STARTING),
    (State.STARTING, Fact.WAIT_ENDED): Step(State.STARTING),
    (State.IDLE, Fact.WAIT_BEGAN): Step(State.IDLE),
    (State.IDLE, Fact.WAIT_ENDED): Step(State.IDLE),
    (State.RUNNING, Fact.WAIT_ENDED): Step(State.RUNNING),
    (State.WAITING, Fact.WAIT_BEGAN): Step(State.WAITING),
    (State.PAUSED, Fact.WAIT_BEGAN): Step(State.PAUSED),
    (State.PAUSED, Fact.WOKEN): Step(State.PAUSED),
    (State.STARTING, Fact.PAUSE_BEGAN): Step(State.STARTING),
    (State.STARTING, Fact.PAUSE_ENDED): Step(State.STARTING),
    (State.STARTING, Fact.START_UNPAUSED): Step(State.STARTING),
    (State.IDLE, Fact.PAUSE_BEGAN): Step(State.IDLE),
    (State.IDLE, Fact.PAUSE_ENDED): Step(State.IDLE),
    (State.RUNNING, Fact.PAUSE_ENDED): Step(State.RUNNING),
    (State.WAITING, Fact.PAUSE_ENDED): Step(State.WAITING),
    (State.PAUSED, Fact.PAUSE_BEGAN): Step(State.PAUSED),
    (State.STARTING, Fact.WOKEN): Step(State.STARTING),
    (State.RUNNING, Fact.WOKEN): Step(State.RUNNING),
    (State.WAITING, Fact.WOKEN): Step(State.WAITING),
    (State.STARTING, Fact.TURN_OVER): Step(State.IDLE, (Effect.RELEASE_SLOT, Effect.RECORD_STATE)),
}
for _state in LIVE_STATES:
    TABLE[_state, Fact.PARENT_STOPS] = Step(State.STOPPING)
    TABLE[_state, Fact.FINISHED] = Step(State.ENDED, _END)
    TABLE[_state, Fact.CUT_OFF] = Step(State.STOPPED, _END)
TABLE[State.STOPPING, Fact.FINISHED] = Step(State.STOPPED, _END)  # A run that was asked to stop does not return.
for _fact in (
    Fact.BEGAN,
    Fact.WAIT_BEGAN,
    Fact.WAIT_ENDED,
    Fact.PAUSE_BEGAN,
    Fact.PAUSE_ENDED,
    Fact.START_PAUSED,
    Fact.START_UNPAUSED,
    Fact.TURN_OVER,
    Fact.WOKEN,
    Fact.STOP_ASKED,
):
    TABLE[State.STOPPING, _fact] = Step(State.STOPPING)


class Next(StrEnum):
    """The next step of a run when a turn is over, or when something changes while it is idle."""

    END = "end"
    WAKE = "wake"  #: its mail begins the next turn
    REST = "rest"  #: it is idle: something may still come
    HOLD = "hold"  #: it is idle, and only a user starts it again: its turn was interrupted


def next_after(
    status: Status | None, *, is_session: bool, has_mail: bool, has_user_mail: bool, can_wake: bool, is_expecting: bool
) -> Next:
    """Return how a run goes on after a turn of that status, unless it was asked to stop; None if no turn ended here.

    A session outlives its turns. `has_mail` is about mail that wakes, and `can_wake` is False once such mail has woken
    it too often without a user; `is_expecting` is True while children live or runs are to report that they are idle.
    """
    if is_session and status is Status.CANCELLED and not has_user_mail:
        return Next.HOLD
    if not is_session and status not in (Status.COMPLETED, None):
        return Next.END
    if has_mail and can_wake:
        return Next.WAKE
    return Next.REST if is_session or is_expecting else Next.END


def step(state: State, fact: Fact) -> Step:
    """Return the step that a fact causes in a state.

    Raises Bug if the fact cannot occur in that state. After an end, no fact has an effect.
    """
    transition = TABLE.get((state, fact))
    if transition is not None:
        return transition
    if state in TERMINAL_STATES:
        return Step(state)
    raise Bug(f"a run that is {state} cannot have {fact}")
