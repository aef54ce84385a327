"""Tests of `core/schedules/`: a schedule's ticks follow from its data, and a record decodes equal."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from msgspec.structs import replace

from ramet.core.errors import Damaged, InvalidValue
from ramet.core.limits import Limits
from ramet.core.outcome import ErrorInfo
from ramet.core.policy.policy import Isolation, Policy
from ramet.core.schedules import ticks
from ramet.core.schedules.schedule import (
    AgentTarget,
    Cron,
    FunctionTarget,
    Interval,
    NamedTarget,
    Once,
    Schedule,
    due_between,
    fires_at,
    next_fire_time,
    utc,
)
from ramet.core.schedules.ticks import Claim, Due, ScheduleRecord, TickResult, TickState, TickStatus

START = datetime(2026, 1, 1, tzinfo=UTC)
TARGET = FunctionTarget(reference="module:function")


def at(seconds: float) -> datetime:
    """Return the time this many seconds after the start."""
    return START + timedelta(seconds=seconds)


def refuse_next_fire(line: str, tz: str, after: datetime) -> datetime | None:
    """Fail, as a `next_fire` that must not be called."""
    raise AssertionError("no cron line here")


def next_full_hour(line: str, tz: str, after: datetime) -> datetime | None:
    """Return the next full hour in UTC, as a `next_fire`."""
    return after.replace(minute=0, second=0, microsecond=0) + timedelta(hours=1)


def schedule(timing: Any = None, **fields: Any) -> Schedule:
    """Return a schedule with an interval of 100 s by default."""
    timing = timing or Interval(seconds=100, anchor=START)
    return Schedule(**{"id": "s", "name": "s", "timing": timing, "target": TARGET, **fields})


def schedule_record(timing: Any = None, state: TickState | None = None, **fields: Any) -> ScheduleRecord:
    """Return the record of such a schedule, made at the start."""
    return ScheduleRecord(schedule=schedule(timing, **fields), state=state or TickState(decided=START))


def claim_of(owner: str = "me", *, run: str | None = None) -> Claim:
    """Return a claim of the first tick."""
    return Claim(id="c", due=Due(tick=at(100)), owner=owner, at=at(100), run=run)


def state_after(schedule_record: ScheduleRecord, seconds: float, *living: str) -> TickState:
    """Return the state of the record this many seconds after the start."""
    return ticks.reconcile(schedule_record, at(seconds), refuse_next_fire, living.__contains__).state


def seconds(moments: Any) -> list[float]:
    """Return times as seconds after the start."""
    return [(moment - START).total_seconds() for moment in moments]


FULL_RECORD = ScheduleRecord(
    schedule=schedule(
        Cron(line="30 2 * * *", tz="Europe/Berlin"),
        target=AgentTarget(fields={"name": "a", "model": "offline", "tools": ["Read"]}),
        args=(1, "two", [3.0, None], {"four": True}),
        kwargs={"k": [1]},
        prompt="Ünïcode \U0001f600",
        policy=Policy(memory_mb=64, allowed_endpoints=["a.org:443"], isolation=Isolation.L1, env_vars={"A": "b"}),
        limits=Limits(tokens=10, usd=0.5),
        misfire="all",
        misfire_max=3,
        overlap="queue",
        jitter_s=5,
        until=at(1e6),
        asked="digest",
    ),
    state=TickState(
        decided=at(0.000001),
        paused=True,
        cancelled=True,
        waiting=(Due(tick=at(1)), Due(tick=at(2), manual=True)),
        claims=(claim_of(run="run-1"),),
        results=(
            TickResult(
                id="r",
                tick=at(3),
                status=TickStatus.FAILED,
                run="run-1",
                began=at(3),
                ended=at(4),
                text="t",
                error=ErrorInfo(type="E", message="m"),
            ),
        ),
        skipped=7,
    ),
)


@pytest.mark.parametrize(
    "record",
    [
        FULL_RECORD,
        schedule_record(),
        schedule_record(Once(at=at(5)), target=NamedTarget(name="n")),
        schedule_record(Interval(seconds=0.1, anchor=at(-5))),
    ],
)
def test_a_schedule_record_decodes_equal(record: ScheduleRecord) -> None:
    """Every field survives JSON."""
    data = ticks.encode(record)

    assert ticks.decode("s", data) == record
    assert ticks.encode(ticks.decode("s", data)) == data


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"[]",
        b'{"version": 2}',
        b'{"version": "1"}',
        b"\xff",
        b"[" * 100_000,
        ticks.encode(schedule_record()).replace(b'"interval"', b'"monthly"'),
        ticks.encode(schedule_record()).replace(b"100.0", b"-1.0"),
        ticks.encode(schedule_record()).replace(b'"id":"s"', b'"id":"s","more":1'),
        ticks.encode(schedule_record()).replace(b"2026-01-01T00:00:00Z", b"2026-01-01T00:00:00"),
    ],
)
def test_an_invalid_schedule_record_raises_damaged(data: bytes) -> None:
    """No damaged record decodes as another schedule."""
    with pytest.raises(Damaged):
        ticks.decode("s", data)


def test_ticks_of_an_interval_do_not_drift() -> None:
    """The millionth tick is exact to the microsecond, whatever tick the search starts from."""
    tenths = schedule(Interval(seconds=0.1, anchor=START))

    assert next_fire_time(tenths, at(99_999.95), refuse_next_fire) == at(100_000)
    assert next_fire_time(tenths, at(100_000), refuse_next_fire) == at(100_000.1)
    assert next_fire_time(tenths, at(-1e6), refuse_next_fire) == START


def test_a_long_absence_of_an_interval_is_computed_without_a_loop() -> None:
    """The newest ticks of ten years are returned, and earlier ones are counted."""
    tenths = schedule(Interval(seconds=0.1, anchor=START))

    come = due_between(tenths, START, at(315_360_000), refuse_next_fire, limit=3)

    assert seconds(come.ticks) == [315_359_999.8, 315_359_999.9, 315_360_000]
    assert come.earlier_count == 3_153_600_000 - 3


def test_a_long_absence_of_a_cron_line_returns_the_newest_ticks() -> None:
    """Earlier ticks are counted up to 1,000."""
    cron = schedule(Cron(line="0 * * * *", tz="UTC"))

    come = due_between(cron, START, at(3600 * 50_000.5), next_full_hour, limit=2)

    assert seconds(come.ticks) == [3600 * 49_999, 3600 * 50_000]
    assert come.earlier_count == 1000


def test_a_cron_line_that_ended_long_ago_returns_its_last_ticks(monkeypatch: pytest.MonkeyPatch) -> None:
    """The search goes back as far as needed."""
    cron = schedule(Cron(line="0 * * * *", tz="UTC"), until=at(3600 * 1500))

    come = due_between(cron, START, at(3600 * 90_000), next_full_hour, limit=2)

    assert seconds(come.ticks) == [3600 * 1499, 3600 * 1500]


def test_jitter_is_bounded_and_always_the_same() -> None:
    """Jitter follows from schedule and tick: every process computes the same, and two schedules differ."""
    shaky = schedule(jitter_s=50)
    late = [(fires_at(shaky, at(n)) - at(n)).total_seconds() for n in range(200)]

    assert late == [(fires_at(schedule(jitter_s=50), at(n)) - at(n)).total_seconds() for n in range(200)]
    assert all(0 <= each < 50 for each in late)
    assert max(late) > 40
    assert min(late) < 10
    assert fires_at(shaky, START) != fires_at(schedule(jitter_s=50, id="other"), START)


def test_until_is_inclusive() -> None:
    """A tick at the last moment counts."""
    ends = schedule(until=at(200))

    assert next_fire_time(ends, at(100), refuse_next_fire) == at(200)
    assert next_fire_time(ends, at(200), refuse_next_fire) is None
    assert seconds(due_between(ends, START, at(1000), refuse_next_fire, limit=9).ticks) == [100, 200]


def test_a_time_is_aware_and_kept_in_utc() -> None:
    """A naive time is refused, and a time of any zone is converted."""
    other_zone = datetime(2026, 1, 1, 5, tzinfo=timezone(timedelta(hours=5)))

    assert (utc("when", other_zone), utc("when", other_zone).tzinfo) == (START, UTC)
    for wrong in (datetime(2026, 1, 1), "2026-01-01", 0, None, datetime.max.replace(tzinfo=UTC)):  # noqa: DTZ001
        with pytest.raises(InvalidValue, match="when"):
            utc("when", wrong)


# ---- what becomes of ticks


def test_reconciling_without_a_due_tick_returns_the_same_record() -> None:
    """The scheduler writes nothing when no tick is due."""
    empty = schedule_record()

    assert ticks.reconcile(empty, at(99.9), refuse_next_fire, {"me"}.__contains__) is empty
    assert ticks.claim_due(empty, at(99.9), "me", lambda: "c").record is empty


@pytest.mark.parametrize(
    ("misfire", "waiting", "skipped"), [("skip", [], 5), ("once", [500], 4), ("all", [300, 400, 500], 2)]
)
def test_missed_ticks_run_as_the_misfire_policy_says(misfire: str, waiting: list[float], skipped: int) -> None:
    """The policy keeps no tick, the newest, or the newest few; each tick is decided once."""
    missed_record = schedule_record(misfire=misfire, misfire_max=3)

    state = state_after(missed_record, 590)

    assert (seconds(due.tick for due in state.waiting), state.skipped) == (waiting, skipped)
    assert state.decided == at(500)
    assert state_after(ScheduleRecord(schedule=missed_record.schedule, state=state), 599) == state


@pytest.mark.parametrize("misfire", ["skip", "once", "all"])
def test_a_tick_is_on_time_for_a_minute(misfire: str) -> None:
    """The newest tick runs under every policy if it is at most 60 s old."""
    assert seconds(due.tick for due in state_after(schedule_record(misfire=misfire), 160).waiting) == [100]
    assert bool(state_after(schedule_record(misfire="skip"), 160.1).waiting) is False


@pytest.mark.parametrize(("overlap", "waiting"), [("skip", 0), ("queue", 1), ("allow", 1)])
def test_a_tick_during_a_run_follows_the_overlap_policy(overlap: str, waiting: int) -> None:
    """The tick is skipped or waits; it begins at once only with `allow`."""
    going = schedule_record(state=TickState(decided=at(100), claims=(claim_of(run="run-1"),)), overlap=overlap)

    state = state_after(going, 200, "me")
    claimed = ticks.claim_due(ScheduleRecord(schedule=going.schedule, state=state), at(200), "me", lambda: "d")

    assert (len(state.waiting), state.skipped) == (waiting, 1 - waiting)
    assert len(claimed.claims) == (1 if overlap == "allow" else 0)


def test_a_newer_tick_replaces_one_that_never_began() -> None:
    """`once` makes up for an absence with one run."""
    dead = schedule_record(state=TickState(decided=at(100), claims=(claim_of("dead"),)))

    assert seconds(due.tick for due in state_after(dead, 100.5).waiting) == [100]
    assert seconds(due.tick for due in state_after(dead, 250).waiting) == [200]


def test_ticks_of_an_interrupted_catch_up_are_not_lost() -> None:
    """A claimed tick of a dead process comes first, and new ticks come last."""
    state = TickState(decided=at(300), claims=(claim_of("dead"),), waiting=(Due(tick=at(200)), Due(tick=at(300))))

    after = state_after(schedule_record(state=state, misfire="all"), 450)

    assert seconds(due.tick for due in after.waiting) == [100, 200, 300, 400]


@pytest.mark.parametrize(("overlap", "waiting"), [("skip", 0), ("queue", 1), ("allow", 1)])
def test_a_started_claim_of_a_dead_kernel_stays_until_its_run_is_resolved(overlap: str, waiting: int) -> None:
    """The run counts as active until a kernel says otherwise, so the overlap policy applies."""
    going = schedule_record(state=TickState(decided=at(100), claims=(claim_of("them", run="run-1"),)), overlap=overlap)

    after = ScheduleRecord(schedule=going.schedule, state=state_after(going, 200))

    assert after.state.claims == going.state.claims
    assert len(after.state.waiting) == waiting
    assert len(ticks.claim_due(after, at(200), "me", lambda: "d").claims) == (1 if overlap == "allow" else 0)
    assert ticks.orphaned_claims(after, {"them"}.__contains__) == ()
    assert ticks.orphaned_claims(after, {"me"}.__contains__) == going.state.claims


def test_a_claim_has_one_owner() -> None:
    """A late kernel can neither take the claim, nor mark it lost, nor complete it."""
    other_claim = claim_of("them", run="run-1")
    record = schedule_record(state=TickState(decided=at(100), claims=(other_claim,)))
    tick_result = TickResult(id="c", tick=at(100), status=TickStatus.FAILED)

    updated_record = ticks.update_claim(record, other_claim, claim_of("me", run="run-1"))

    assert updated_record is not None
    assert updated_record.state.claims == (claim_of("me", run="run-1"),)
    assert ticks.update_claim(updated_record, other_claim, claim_of("another", run="run-1")) is None
    assert ticks.mark_lost(updated_record, other_claim, at(150), "gone") is None
    assert ticks.complete_claim(updated_record, tick_result, "them") is updated_record
    completed_record = ticks.complete_claim(updated_record, replace(tick_result, status=TickStatus.COMPLETED), "me")
    assert ticks.complete_claim(completed_record, tick_result, "them") is completed_record
    assert (completed_record.state.claims, [each.status for each in completed_record.state.results]) == (
        (),
        ["completed"],
    )


def test_the_end_of_a_run_replaces_its_lost_status() -> None:
    """A run that was marked lost reports its own end."""
    other_claim = claim_of("them", run="run-1")

    lost_state = ticks.mark_lost(
        schedule_record(state=TickState(decided=at(100), claims=(other_claim,))), other_claim, at(150), "gone"
    )

    assert lost_state is not None
    (result,) = lost_state.state.results
    assert (result.status, result.tick, result.run, result.ended) == ("lost", at(100), "run-1", at(150))
    after = ticks.complete_claim(lost_state, TickResult(id="c", tick=at(100), status=TickStatus.COMPLETED), "them")
    assert [each.status for each in after.state.results] == ["completed"]


def test_a_cancelled_schedule_keeps_only_its_active_run() -> None:
    """No waiting tick or unstarted claim begins, and a new definition starts with only the active run."""
    going = (claim_of(run="run-1"), replace(claim_of(), id="d"))
    results = (TickResult(id="b", tick=at(1), status=TickStatus.COMPLETED),)
    state = TickState(decided=at(100), waiting=(Due(tick=at(100)),), claims=going, results=results)

    cancelled = ticks.cancel(schedule_record(state=state, overlap="allow"))

    assert (cancelled.state.claims, cancelled.state.waiting, ticks.is_deletable(cancelled)) == (going[:1], (), False)
    assert (state_after(cancelled, 1000, "me"), ticks.next_tick(cancelled, refuse_next_fire)) == (cancelled.state, None)
    assert ticks.update_claim(cancelled, going[1], replace(going[1], run="run-2")) is None
    assert ticks.replace_definition(cancelled, schedule(), at(1000)).state == TickState(
        decided=at(1000), claims=going[:1]
    )
    released_record = ticks.release(cancelled, going[0])
    assert released_record is not None
    assert (released_record.state.waiting, ticks.is_deletable(released_record)) == ((), True)


def test_only_the_owner_starts_a_claim_and_only_once() -> None:
    """A kernel that lost its claim learns so before it spawns a run."""
    record = schedule_record(state=TickState(decided=at(100), claims=(claim_of(),)))

    started_state = ticks.update_claim(record, claim_of(), claim_of(run="run-1"))

    assert started_state is not None
    assert ticks.update_claim(started_state, claim_of(), claim_of(run="run-2")) is None
    assert ticks.update_claim(schedule_record(), claim_of(), claim_of(run="run-2")) is None
    assert ticks.release(schedule_record(), claim_of()) is None
    released_record = ticks.release(started_state, claim_of())
    assert released_record is not None
    assert released_record.state == TickState(decided=at(100), waiting=(Due(tick=at(100)),))
    assert ticks.release(started_state, replace(claim_of(run="run-1"), owner="who was believed dead")) is None


def test_the_queue_of_waiting_ticks_is_bounded() -> None:
    """A tick that does not fit is counted as skipped."""
    full = TickState(decided=START, waiting=tuple(Due(tick=at(-n)) for n in range(ticks.MAX_WAITING)))

    assert state_after(schedule_record(state=full, overlap="queue"), 100).skipped == 1


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("misfire", "never"),
        ("overlap", ""),
        ("misfire_max", True),
        ("misfire_max", 1001),
        ("jitter_seconds", 101),
    ],
)
def test_an_invalid_schedule_is_refused_by_its_field(field: str, value: Any) -> None:
    """InvalidValue names the field."""
    with pytest.raises(InvalidValue) as refusal:
        schedule(**{field.replace("jitter_seconds", "jitter_s"): value})

    assert refusal.value.field == field
