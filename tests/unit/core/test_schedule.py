"""core/schedules/: what a schedule says follows from its data, and reads back as it was written."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from msgspec.structs import replace

from ramet.core.budget import Limits
from ramet.core.errors import Damaged, InvalidValue
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
    """So many seconds after the start."""
    return START + timedelta(seconds=seconds)


def never(line: str, tz: str, after: datetime) -> datetime | None:
    """A `next_fire` that is not asked."""
    raise AssertionError("no cron line here")


def hourly(line: str, tz: str, after: datetime) -> datetime | None:
    """A `next_fire` without a clock on a wall: the full hours."""
    return after.replace(minute=0, second=0, microsecond=0) + timedelta(hours=1)


def schedule(timing: Any = None, **fields: Any) -> Schedule:
    """A schedule of an interval of 100 s, unless it is told otherwise."""
    timing = timing or Interval(seconds=100, anchor=START)
    return Schedule(**{"id": "s", "name": "s", "timing": timing, "target": TARGET, **fields})


def book(timing: Any = None, state: TickState | None = None, **fields: Any) -> ScheduleRecord:
    """A book of such a schedule, made at the start."""
    return ScheduleRecord(schedule=schedule(timing, **fields), state=state or TickState(decided=START))


def claimed(owner: str = "me", *, run: str | None = None) -> Claim:
    """A claim of the first tick."""
    return Claim(id="c", due=Due(tick=at(100)), owner=owner, at=at(100), run=run)


def settled(book: ScheduleRecord, seconds: float, *living: str) -> TickState:
    """What is decided so many seconds after the start."""
    return ticks.reconcile(book, at(seconds), never, living.__contains__).state


def seconds(moments: Any) -> list[float]:
    """Moments as seconds after the start."""
    return [(moment - START).total_seconds() for moment in moments]


FULL = ScheduleRecord(
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
        claims=(claimed(run="run-1"),),
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
    "written",
    [FULL, book(), book(Once(at=at(5)), target=NamedTarget(name="n")), book(Interval(seconds=0.1, anchor=at(-5)))],
)
def test_a_book_reads_back_as_it_was_written(written: ScheduleRecord) -> None:
    """Every field survives JSON, and comes back equal."""
    data = ticks.encode(written)

    assert ticks.decode("s", data) == written
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
        ticks.encode(book()).replace(b'"interval"', b'"monthly"'),
        ticks.encode(book()).replace(b"100.0", b"-1.0"),
        ticks.encode(book()).replace(b'"id":"s"', b'"id":"s","more":1'),
        ticks.encode(book()).replace(b"2026-01-01T00:00:00Z", b"2026-01-01T00:00:00"),
    ],
)
def test_what_is_no_book_is_damaged(data: bytes) -> None:
    """Whatever stands in the store, it is one typed error, and never a schedule that means something else."""
    with pytest.raises(Damaged):
        ticks.decode("s", data)


def test_ticks_of_an_interval_do_not_drift() -> None:
    """The millionth is the anchor and a million intervals, to the microsecond, whichever tick one comes from."""
    tenths = schedule(Interval(seconds=0.1, anchor=START))

    assert next_fire_time(tenths, at(99_999.95), never) == at(100_000)
    assert next_fire_time(tenths, at(100_000), never) == at(100_000.1)
    assert next_fire_time(tenths, at(-1e6), never) == START


def test_a_long_absence_is_reckoned_and_not_walked() -> None:
    """Ten years of tenths of seconds: the newest are named, the others counted."""
    tenths = schedule(Interval(seconds=0.1, anchor=START))

    come = due_between(tenths, START, at(315_360_000), never, limit=3)

    assert seconds(come.ticks) == [315_359_999.8, 315_359_999.9, 315_360_000]
    assert come.before == 3_153_600_000 - 3


def test_a_long_absence_of_a_cron_line_names_the_newest() -> None:
    """Those before them are counted as far as that is cheap."""
    cron = schedule(Cron(line="0 * * * *", tz="UTC"))

    come = due_between(cron, START, at(3600 * 50_000.5), hourly, limit=2)

    assert seconds(come.ticks) == [3600 * 49_999, 3600 * 50_000]
    assert come.before == 1000


def test_a_line_that_ended_long_ago_names_its_last(monkeypatch: pytest.MonkeyPatch) -> None:
    """However far back one has to look."""
    cron = schedule(Cron(line="0 * * * *", tz="UTC"), until=at(3600 * 1500))

    come = due_between(cron, START, at(3600 * 90_000), hourly, limit=2)

    assert seconds(come.ticks) == [3600 * 1499, 3600 * 1500]


def test_jitter_is_bounded_and_always_the_same() -> None:
    """It follows from schedule and tick: another process knows it, too, and two schedules do not fire together."""
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

    assert next_fire_time(ends, at(100), never) == at(200)
    assert next_fire_time(ends, at(200), never) is None
    assert seconds(due_between(ends, START, at(1000), never, limit=9).ticks) == [100, 200]


def test_a_time_is_aware_and_kept_in_utc() -> None:
    """A naive one could mean anything; any zone's is the same moment."""
    there = datetime(2026, 1, 1, 5, tzinfo=timezone(timedelta(hours=5)))

    assert (utc("when", there), utc("when", there).tzinfo) == (START, UTC)
    for wrong in (datetime(2026, 1, 1), "2026-01-01", 0, None, datetime.max.replace(tzinfo=UTC)):  # noqa: DTZ001
        with pytest.raises(InvalidValue, match="when"):
            utc("when", wrong)


# ---- what becomes of ticks


def test_nothing_new_is_the_same_book() -> None:
    """A look that finds nothing writes nothing."""
    empty = book()

    assert ticks.reconcile(empty, at(99.9), never, {"me"}.__contains__) is empty
    assert ticks.claim_due(empty, at(99.9), "me", lambda: "c").record is empty


@pytest.mark.parametrize(
    ("misfire", "waiting", "skipped"), [("skip", [], 5), ("once", [500], 4), ("all", [300, 400, 500], 2)]
)
def test_missed_ticks(misfire: str, waiting: list[float], skipped: int) -> None:
    """None, the newest, or the newest so many; all of them are decided on, and none twice."""
    missed = book(misfire=misfire, misfire_max=3)

    state = settled(missed, 590)

    assert (seconds(due.tick for due in state.waiting), state.skipped) == (waiting, skipped)
    assert state.decided == at(500)
    assert settled(ScheduleRecord(schedule=missed.schedule, state=state), 599) == state


@pytest.mark.parametrize("misfire", ["skip", "once", "all"])
def test_a_tick_is_on_time_for_a_minute(misfire: str) -> None:
    """The newest that has come runs under every policy, if it is not older than that."""
    assert seconds(due.tick for due in settled(book(misfire=misfire), 160).waiting) == [100]
    assert bool(settled(book(misfire="skip"), 160.1).waiting) is False


@pytest.mark.parametrize(("overlap", "waiting"), [("skip", 0), ("queue", 1), ("allow", 1)])
def test_a_tick_that_comes_during_a_run(overlap: str, waiting: int) -> None:
    """It never runs, or waits; only `allow` lets it begin at once."""
    going = book(state=TickState(decided=at(100), claims=(claimed(run="run-1"),)), overlap=overlap)

    state = settled(going, 200, "me")
    begun = ticks.claim_due(ScheduleRecord(schedule=going.schedule, state=state), at(200), "me", lambda: "d")

    assert (len(state.waiting), state.skipped) == (waiting, 1 - waiting)
    assert len(begun.claims) == (1 if overlap == "allow" else 0)


def test_a_newer_tick_stands_for_one_that_was_never_begun() -> None:
    """`once` makes up for an absence with one run, not with two."""
    dead = book(state=TickState(decided=at(100), claims=(claimed("dead"),)))

    assert seconds(due.tick for due in settled(dead, 100.5).waiting) == [100]
    assert seconds(due.tick for due in settled(dead, 250).waiting) == [200]


def test_what_was_left_of_catching_up_is_not_lost() -> None:
    """A process dies in the middle of it: what it had claimed and not begun comes first, the new ones last."""
    state = TickState(decided=at(300), claims=(claimed("dead"),), waiting=(Due(tick=at(200)), Due(tick=at(300))))

    after = settled(book(state=state, misfire="all"), 450)

    assert seconds(due.tick for due in after.waiting) == [100, 200, 300, 400]


@pytest.mark.parametrize(("overlap", "waiting"), [("skip", 0), ("queue", 1), ("allow", 1)])
def test_a_started_claim_of_the_dead_is_left_to_who_can_go_on_with_its_run(overlap: str, waiting: int) -> None:
    """That run is going until somebody says that it is not: what comes meanwhile is treated so."""
    going = book(state=TickState(decided=at(100), claims=(claimed("them", run="run-1"),)), overlap=overlap)

    after = ScheduleRecord(schedule=going.schedule, state=settled(going, 200))

    assert after.state.claims == going.state.claims
    assert len(after.state.waiting) == waiting
    assert len(ticks.claim_due(after, at(200), "me", lambda: "d").claims) == (1 if overlap == "allow" else 0)
    assert ticks.orphaned_claims(after, {"them"}.__contains__) == ()
    assert ticks.orphaned_claims(after, {"me"}.__contains__) == going.state.claims


def test_of_those_that_would_take_a_claim_one_has_it() -> None:
    """Who comes late neither takes it, nor calls it lost, nor says how it ended."""
    theirs = claimed("them", run="run-1")
    left = book(state=TickState(decided=at(100), claims=(theirs,)))
    ended = TickResult(id="c", tick=at(100), status=TickStatus.FAILED)

    taken = ticks.update_claim(left, theirs, claimed("me", run="run-1"))

    assert taken is not None
    assert taken.state.claims == (claimed("me", run="run-1"),)
    assert ticks.update_claim(taken, theirs, claimed("another", run="run-1")) is None
    assert ticks.mark_lost(taken, theirs, at(150), "gone") is None
    assert ticks.complete_claim(taken, ended, "them") is taken
    over = ticks.complete_claim(taken, replace(ended, status=TickStatus.COMPLETED), "me")
    assert ticks.complete_claim(over, ended, "them") is over
    assert (over.state.claims, [each.status for each in over.state.results]) == ((), ["completed"])


def test_an_end_replaces_what_was_believed() -> None:
    """A run that was called lost and was not says so itself."""
    theirs = claimed("them", run="run-1")

    lost = ticks.mark_lost(book(state=TickState(decided=at(100), claims=(theirs,))), theirs, at(150), "gone")

    assert lost is not None
    (result,) = lost.state.results
    assert (result.status, result.tick, result.run, result.ended) == ("lost", at(100), "run-1", at(150))
    after = ticks.complete_claim(lost, TickResult(id="c", tick=at(100), status=TickStatus.COMPLETED), "them")
    assert [each.status for each in after.state.results] == ["completed"]


def test_of_what_is_cancelled_only_a_run_that_is_going_is_known() -> None:
    """Nothing more comes of it, not even what was claimed; asked for again it begins with nothing but that run."""
    going = (claimed(run="run-1"), replace(claimed(), id="d"))
    known = (TickResult(id="b", tick=at(1), status=TickStatus.COMPLETED),)
    state = TickState(decided=at(100), waiting=(Due(tick=at(100)),), claims=going, results=known)

    cancelled = ticks.cancel(book(state=state, overlap="allow"))

    assert (cancelled.state.claims, cancelled.state.waiting, ticks.is_deletable(cancelled)) == (going[:1], (), False)
    assert (settled(cancelled, 1000, "me"), ticks.next_tick(cancelled, never)) == (cancelled.state, None)
    assert ticks.update_claim(cancelled, going[1], replace(going[1], run="run-2")) is None
    assert ticks.replace_definition(cancelled, schedule(), at(1000)).state == TickState(
        decided=at(1000), claims=going[:1]
    )
    released = ticks.release(cancelled, going[0])
    assert released is not None
    assert (released.state.waiting, ticks.is_deletable(released)) == ((), True)


def test_only_its_owner_starts_a_claim_and_only_once() -> None:
    """Who was overtaken learns it before anything is born."""
    mine = book(state=TickState(decided=at(100), claims=(claimed(),)))

    started = ticks.update_claim(mine, claimed(), claimed(run="run-1"))

    assert started is not None
    assert ticks.update_claim(started, claimed(), claimed(run="run-2")) is None
    assert ticks.update_claim(book(), claimed(), claimed(run="run-2")) is None
    assert ticks.release(book(), claimed()) is None
    released = ticks.release(started, claimed())
    assert released is not None
    assert released.state == TickState(decided=at(100), waiting=(Due(tick=at(100)),))
    assert ticks.release(started, replace(claimed(run="run-1"), owner="who was believed dead")) is None


def test_the_queue_is_bounded() -> None:
    """What does not fit is counted as skipped."""
    full = TickState(decided=START, waiting=tuple(Due(tick=at(-n)) for n in range(ticks.MAX_WAITING)))

    assert settled(book(state=full, overlap="queue"), 100).skipped == 1


@pytest.mark.parametrize(
    ("field", "value"),
    [("misfire", "never"), ("overlap", ""), ("misfire_max", True), ("misfire_max", 1001), ("jitter_seconds", 101)],
)
def test_a_schedule_that_makes_no_sense_never_comes_to_be(field: str, value: Any) -> None:
    """Refused by name."""
    with pytest.raises(InvalidValue) as refusal:
        schedule(**{field.replace("jitter_seconds", "jitter_s"): value})

    assert refusal.value.field == field
