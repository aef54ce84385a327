"""The state of a schedule's ticks: due ticks, current runs, and the newest results.

A tick moves in one direction: decided (it runs, or it never will) → waiting → claimed by one scheduler → started →
ended. Each step is a new `ScheduleRecord`, which its owner writes by compare-and-swap. If two schedulers try the same
step, one gets a Conflict, reads again and finds the step done. `decided` only moves forward, and only ticks after it
are taken, so no tick is taken twice. A started tick has one run and never another: a scheduler that takes over the
claim of a dead scheduler continues with that run.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from enum import StrEnum
from typing import NamedTuple

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from ramet.core.errors import Damaged
from ramet.core.outcome import ErrorInfo
from ramet.core.schedules.schedule import DueTicks, NextFire, Schedule, due_between, fires_at, next_fire_time

#: The newest due tick is on time for this long; any other due tick is missed.
GRACE = timedelta(seconds=60)
#: The number of results stored per schedule; the number of ticks that may wait for a current run.
MAX_RESULTS = 20
MAX_WAITING = 1000
VERSION = 1


class TickStatus(StrEnum):
    """The status of a tick: its position on the way to its run, or the status of that run."""

    WAITING = "waiting"
    STARTING = "starting"
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    TIMEOUT = "timeout"
    BUDGET_EXHAUSTED = "budget_exhausted"
    OOM = "oom"
    CRASHED = "crashed"
    LOST = "lost"
    NEEDS_INPUT = "needs_input"


class Due(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A tick that is to run."""

    tick: datetime
    manual: bool = False  #: triggered by a user, in addition to the schedule's own times


class Claim(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A tick that one scheduler has taken."""

    id: str
    due: Due
    owner: str  #: the scheduler
    at: datetime
    run: str | None = None  #: recorded before the run is spawned: from then on this tick has no other run


class TickResult(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The current or final state of one tick.

    `lost` means that the process of the run ended, and that no scheduler could continue the run.
    """

    id: str
    tick: datetime
    status: TickStatus
    manual: bool = False
    run: str | None = None  #: id of its run
    began: datetime | None = None
    ended: datetime | None = None
    text: str = ""  #: the beginning of the returned text, or of the partial text
    error: ErrorInfo | None = None


class TickState(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The part of a schedule that changes."""

    decided: datetime  #: the fate of every tick up to this time is decided
    paused: bool = False
    cancelled: bool = False  #: the schedule is deleted as soon as its current runs have ended
    waiting: tuple[Due, ...] = ()
    claims: tuple[Claim, ...] = ()
    results: tuple[TickResult, ...] = ()  #: the newest last
    skipped: int = 0  #: ticks that never run: missed, or due during a run; after a long absence a lower bound


class ScheduleRecord(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A schedule and its state: one document of the store."""

    schedule: Schedule
    state: TickState
    version: int = VERSION


class ClaimedTicks(NamedTuple):
    """A record with new claims, and these claims."""

    record: ScheduleRecord
    claims: tuple[Claim, ...]


_decoder = msgspec.json.Decoder(ScheduleRecord)


class _Version(Struct):
    version: int = VERSION


def encode(record: ScheduleRecord) -> bytes:
    """Encode a record as JSON; `decode` returns an equal record."""
    return msgspec.json.encode(record)


def decode(key: str, data: bytes) -> ScheduleRecord:
    """Decode a record from JSON.

    Raises Damaged if the bytes are not a record, or are of a newer version.
    """
    try:
        version = msgspec.json.decode(data, type=_Version).version
        if version > VERSION:
            raise Damaged("schedule", key, f"it is of version {version}, and this ramet reads {VERSION}")
        return _decoder.decode(data)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as problem:
        raise Damaged("schedule", key, str(problem)) from None


def reconcile(
    record: ScheduleRecord, now: datetime, next_fire: NextFire, is_alive: Callable[[str], bool]
) -> ScheduleRecord:
    """Decide on every tick that is due by `now`, and on claims whose owner has ended.

    Return the same record if there is nothing to decide. The tick of a claim that was not started is decided again, as
    a missed tick. A started claim stays for a scheduler that can continue its run: see `orphaned_claims`.
    """
    schedule, state = record.schedule, record.state
    unstarted_claims = tuple(claim for claim in state.claims if claim.run is None and not is_alive(claim.owner))
    state = _without_claims(state, *unstarted_claims)
    orphaned_ticks = [claim.due for claim in unstarted_claims]
    due_ticks = DueTicks((), 0)
    if not (state.paused or state.cancelled):
        due_ticks = due_between(schedule, state.decided, now, next_fire, limit=schedule.misfire_max)
    selected_ticks = _select_ticks(schedule, due_ticks.ticks, now)
    if schedule.overlap == "skip" and state.claims:
        selected_ticks = ()
    selected_ticks = selected_ticks[: max(0, MAX_WAITING - len(state.waiting))]
    requeued_ticks = [
        due for due in orphaned_ticks if due.manual or _is_still_due(schedule, due.tick, selected_ticks, now)
    ]
    dropped_count = (
        due_ticks.earlier_count + len(due_ticks.ticks) - len(selected_ticks) + len(orphaned_ticks) - len(requeued_ticks)
    )
    state = replace(
        state,
        decided=max(state.decided, *due_ticks.ticks[-1:]) if due_ticks.ticks else state.decided,
        waiting=(*requeued_ticks, *state.waiting, *(Due(tick=tick) for tick in selected_ticks)),
        skipped=state.skipped + dropped_count,
    )
    return _with_state(record, state)


def replace_definition(record: ScheduleRecord, schedule: Schedule, decided_until: datetime) -> ScheduleRecord:
    """Replace the content of a schedule from now on; current runs continue, waiting ticks are dropped."""
    results = () if record.state.cancelled else record.state.results
    return ScheduleRecord(
        schedule=schedule, state=TickState(decided=decided_until, claims=record.state.claims, results=results)
    )


def claim_due(record: ScheduleRecord, now: datetime, owner: str, mint: Callable[[], str]) -> ClaimedTicks:
    """Claim for `owner` the ticks that may begin now.

    If the schedule is paused, only manually triggered ticks may begin.
    """
    state = record.state
    startable = tuple(due for due in state.waiting if due.manual or not state.paused)
    if record.schedule.overlap != "allow":
        startable = () if state.claims else startable[:1]
    if not startable:
        return ClaimedTicks(record, ())
    claims = tuple(Claim(id=mint(), due=due, owner=owner, at=now) for due in startable)
    waiting = tuple(due for due in state.waiting if due not in startable)
    return ClaimedTicks(_with_state(record, replace(state, waiting=waiting, claims=(*state.claims, *claims))), claims)


def orphaned_claims(record: ScheduleRecord, is_alive: Callable[[str], bool]) -> tuple[Claim, ...]:
    """Return the started claims whose owner has ended; another scheduler must continue their runs."""
    return tuple(claim for claim in record.state.claims if claim.run is not None and not is_alive(claim.owner))


def update_claim(record: ScheduleRecord, claim: Claim, new_claim: Claim) -> ScheduleRecord | None:
    """Record that a claim's run is about to be spawned, or that another scheduler took the claim.

    Return None if the claim has changed meanwhile.
    """
    if claim not in record.state.claims:
        return None
    claims = tuple(new_claim if each == claim else each for each in record.state.claims)
    return _with_state(record, replace(record.state, claims=claims))


def mark_lost(record: ScheduleRecord, claim: Claim, now: datetime, reason: str) -> ScheduleRecord | None:
    """Record that a claim's run cannot be continued.

    Return None if the claim has changed meanwhile.
    """
    if claim not in record.state.claims:
        return None
    result = TickResult(
        id=claim.id,
        tick=claim.due.tick,
        status=TickStatus.LOST,
        manual=claim.due.manual,
        run=claim.run,
        began=claim.at,
        ended=now,
        error=ErrorInfo(type="Lost", message=reason),
    )
    return complete_claim(record, result, claim.owner)


def release(record: ScheduleRecord, claim: Claim) -> ScheduleRecord | None:
    """Release a claim whose run was not spawned; its tick waits again, before all others.

    Return None if another scheduler has the claim now.
    """
    if all((each.id, each.owner) != (claim.id, claim.owner) for each in record.state.claims):
        return None
    state = _without_claims(record.state, claim)
    return _with_state(record, state if state.cancelled else replace(state, waiting=(claim.due, *state.waiting)))


def complete_claim(record: ScheduleRecord, result: TickResult, owner: str) -> ScheduleRecord:
    """Record how a tick's run ended, replacing its claim, or its result if that was `lost`.

    Return the same record if the claim belongs to a scheduler other than `owner`, or if that scheduler recorded its
    end.
    """
    matching = tuple(claim for claim in record.state.claims if claim.id == result.id)
    is_recorded = any(each.id == result.id and each.status is not TickStatus.LOST for each in record.state.results)
    if is_recorded or any(claim.owner != owner for claim in matching):
        return record
    return _with_state(record, _with_result(_without_claims(record.state, *matching), result))


def trigger(record: ScheduleRecord, now: datetime) -> ScheduleRecord:
    """Add a manual tick at `now`, in addition to the scheduled ticks.

    The tick waits for a current run, unless ticks may overlap.
    """
    return _with_state(record, replace(record.state, waiting=(*record.state.waiting, Due(tick=now, manual=True))))


def cancel(record: ScheduleRecord) -> ScheduleRecord:
    """Prevent every further start; current runs continue, and the record is kept until they end."""
    started_claims = tuple(claim for claim in record.state.claims if claim.run is not None)
    return _with_state(record, replace(record.state, cancelled=True, waiting=(), claims=started_claims))


def is_deletable(record: ScheduleRecord) -> bool:
    """Return whether the schedule was cancelled and has no current run."""
    return record.state.cancelled and not record.state.claims


def pause(record: ScheduleRecord) -> ScheduleRecord:
    """Prevent every start until the schedule is resumed; current runs continue."""
    return _with_state(record, replace(record.state, paused=True))


def resume(record: ScheduleRecord, now: datetime) -> ScheduleRecord:
    """Continue from `now`; ticks that were due during the pause never run."""
    if not record.state.paused:
        return record
    return _with_state(record, replace(record.state, paused=False, decided=max(record.state.decided, now)))


def next_tick(record: ScheduleRecord, next_fire: NextFire) -> datetime | None:
    """Return when the schedule fires next by itself, jitter included; None if it never will, or is paused."""
    if record.state.paused or record.state.cancelled:
        return None
    tick = next_fire_time(record.schedule, record.state.decided, next_fire)
    return None if tick is None else fires_at(record.schedule, tick)


def is_over(record: ScheduleRecord, next_fire: NextFire) -> bool:
    """Return whether nothing runs, waits, or will ever be due."""
    state = record.state
    return not (state.claims or state.waiting or next_fire_time(record.schedule, state.decided, next_fire))


def report(state: TickState) -> tuple[TickResult, ...]:
    """Return every tick that is kept: ended ticks, then current ones, then waiting ones."""
    return (
        *state.results,
        *(
            TickResult(
                id=claim.id,
                tick=claim.due.tick,
                status=TickStatus.RUNNING if claim.run else TickStatus.STARTING,
                manual=claim.due.manual,
                run=claim.run,
                began=claim.at,
            )
            for claim in state.claims
        ),
        *(TickResult(id="", tick=due.tick, status=TickStatus.WAITING, manual=due.manual) for due in state.waiting),
    )


def _select_ticks(schedule: Schedule, ticks: tuple[datetime, ...], now: datetime) -> tuple[datetime, ...]:
    """Return the due ticks that run: at most the newest is on time, the others were missed."""
    match schedule.misfire:
        case "skip":
            return tuple(tick for tick in ticks[-1:] if _is_on_time(schedule, tick, now))
        case "once":
            return ticks[-1:]
        case "all":
            return ticks[-schedule.misfire_max :]


def _is_still_due(schedule: Schedule, tick: datetime, selected_ticks: tuple[datetime, ...], now: datetime) -> bool:
    """Return whether a tick runs that was claimed once and not started.

    `selected_ticks` are newer ticks that run now.
    """
    match schedule.misfire:
        case "skip":
            return not selected_ticks and _is_on_time(schedule, tick, now)
        case "once":
            return not selected_ticks
        case "all":
            return True


def _is_on_time(schedule: Schedule, tick: datetime, now: datetime) -> bool:
    return now - fires_at(schedule, tick) <= GRACE


def _with_state(record: ScheduleRecord, state: TickState) -> ScheduleRecord:
    return record if state == record.state else replace(record, state=state)


def _without_claims(state: TickState, *claims: Claim) -> TickState:
    removed_ids = {claim.id for claim in claims}
    return (
        replace(state, claims=tuple(claim for claim in state.claims if claim.id not in removed_ids))
        if removed_ids
        else state
    )


def _with_result(state: TickState, result: TickResult) -> TickState:
    others = tuple(each for each in state.results if each.id != result.id)
    return replace(state, results=(*others, result)[-MAX_RESULTS:])
