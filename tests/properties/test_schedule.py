"""A tick never begins twice or too early, and no promised tick is lost, for any schedule and any deaths."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import count, pairwise
from typing import Any, get_args

from hypothesis import assume, given
from hypothesis import strategies as st
from msgspec.structs import replace

from ramet.core.schedules import ticks
from ramet.core.schedules.schedule import (
    Cron,
    FunctionTarget,
    Interval,
    Misfire,
    Once,
    Overlap,
    Schedule,
    due_between,
    fires_at,
    next_fire_time,
)
from ramet.core.schedules.ticks import Claim, ScheduleRecord, TickResult, TickState, TickStatus
from ramet.host.schedules.cron import next_fire

START = datetime(2026, 10, 24, 20, tzinfo=UTC)  # hours before the clocks of Europe go back

intervals = st.builds(
    Interval,
    seconds=st.sampled_from([0.1, 1.0, 7.3, 60.0, 3600.0, 86_400.0]),
    anchor=st.integers(-10_000, 10_000).map(lambda n: START + timedelta(seconds=n / 10)),
)
crons = st.builds(
    Cron,
    line=st.sampled_from(
        ["30 2 * * *", "*/30 * * * *", "0,30 1-3 * * *", "15 2 * * *", "* 2 * * *", "0 0 1 * *", "30 2,3 * * sun"]
    ),
    tz=st.sampled_from(["Europe/Berlin", "America/New_York", "UTC", "Australia/Lord_Howe"]),
)
timings = intervals | crons | st.builds(Once, at=st.integers(0, 3600).map(lambda n: START + timedelta(seconds=n)))
#: How much time passes between two looks: an instant, a while, a day's absence, and a clock that is set back.
passings = st.lists(
    st.tuples(st.sampled_from([0.05, 1.0, 59.0, 300.0, 3601.0, 90_000.0, -3600.0]), st.booleans()), max_size=12
)


@st.composite
def schedules(draw: Any) -> Schedule:
    """Draw any schedule that is accepted."""
    timing = draw(timings)
    most = min(3600.0, timing.seconds) if isinstance(timing, Interval) else 3600.0
    return Schedule(
        id=draw(st.sampled_from(["a", "b"])),
        name="s",
        timing=timing,
        target=FunctionTarget(reference="m:f"),
        misfire=draw(st.sampled_from(get_args(Misfire))),
        misfire_max=draw(st.sampled_from([1, 3, 1000])),
        overlap=draw(st.sampled_from(get_args(Overlap))),
        jitter_s=draw(st.sampled_from([0, most / 2, most])),
        until=draw(st.none() | st.integers(0, 200_000).map(lambda n: START + timedelta(seconds=n))),
    )


@dataclass
class World:
    """Schedule with a clock and a current owner; schedulers look at it and are killed."""

    book: ScheduleRecord
    now: datetime
    owner: int = 0

    def look(self, names: Any) -> list[Claim]:
        """Reconcile and claim once, and return the claims that begin."""
        lives = {str(self.owner)}.__contains__
        settled = ticks.reconcile(self.book, self.now, next_fire, lives)
        assert settled.state.decided >= self.book.state.decided
        self.book, claims = ticks.claim_due(settled, self.now, str(self.owner), lambda: f"c{next(names)}")
        return list(claims)


@given(schedule=schedules(), passing=passings, data=st.data())
def test_a_tick_begins_at_most_once_and_never_before_its_time(schedule: Schedule, passing: Any, data: Any) -> None:
    """A tick begins at most once and in time. Schedulers look at any moment, and die between claim, start and end."""
    world = World(ScheduleRecord(schedule=schedule, state=TickState(decided=START)), START)
    names, begun, latest = count(), list[tuple[datetime, datetime]](), START
    for seconds, dies in passing:
        world.now += timedelta(seconds=seconds)
        latest = max(latest, world.now)  # A tick that waits for another may begin when the clock was set back.
        for claim in world.look(names):
            if dies and data.draw(st.booleans()):
                continue  # Killed between claim and start.
            started = ticks.update_claim(world.book, claim, replace(claim, run=f"run of {claim.id}"))
            assert started is not None
            world.book = started
            begun.append((claim.due.tick, latest))
            if data.draw(st.booleans()):
                ended = TickResult(id=claim.id, tick=claim.due.tick, status=TickStatus.COMPLETED)
                world.book = ticks.complete_claim(world.book, ended, claim.owner)
        world.owner += dies
        for claim in ticks.orphaned_claims(world.book, {str(world.owner)}.__contains__):
            taken = ticks.update_claim(world.book, claim, replace(claim, owner=str(world.owner)))
            gone_on = taken if data.draw(st.booleans()) else ticks.mark_lost(world.book, claim, world.now, "gone")
            assert gone_on is not None
            world.book = gone_on

    assert all(times == 1 for times in Counter(tick for tick, _ in begun).values())
    assert all(fires_at(schedule, tick) <= seen for tick, seen in begun)
    assert all(tick > START and (schedule.until is None or tick <= schedule.until) for tick, _ in begun)
    assert all(is_tick(schedule, tick) for tick, _ in begun)


@given(schedule=schedules(), passing=passings)
def test_misfire_all_begins_every_missed_tick_up_to_its_bound(schedule: Schedule, passing: Any) -> None:
    """Each look begins the newest ticks since the last look, up to `misfire_max`, if misfire is `all`.

    The test allows overlap.
    """
    schedule = replace(schedule, misfire="all", overlap="allow")
    world = World(ScheduleRecord(schedule=schedule, state=TickState(decided=START)), START)
    names, last, begun = count(), START, list[datetime]()
    for seconds, _ in passing:
        world.now += timedelta(seconds=seconds)
        came = walk_ticks(schedule, last, world.now)
        claims = world.look(names)
        assert [claim.due.tick for claim in claims] == came[-schedule.misfire_max :][-ticks.MAX_WAITING :]
        last = came[-1] if came else last
        begun += [claim.due.tick for claim in claims]
    assert begun == sorted(set(begun))


@given(schedule=schedules(), after=st.integers(-100, 200_000), span=st.integers(0, 400_000), most=st.integers(1, 5))
def test_due_ticks_are_those_that_a_walk_finds(schedule: Schedule, after: int, span: int, most: int) -> None:
    """The newest due ticks equal those of a walk from tick to tick, and `before` counts the older ones."""
    assume(not isinstance(schedule.timing, Interval) or span < 4000 * schedule.timing.seconds)
    begin = START + timedelta(seconds=after)
    come = due_between(schedule, begin, begin + timedelta(seconds=span), next_fire, limit=most)
    all_of_them = walk_ticks(schedule, begin, begin + timedelta(seconds=span))

    assert list(come.ticks) == all_of_them[-most:]
    assert come.earlier_count <= len(all_of_them) - len(come.ticks)
    if isinstance(schedule.timing, Interval) or len(all_of_them) < 1000:
        assert come.earlier_count == len(all_of_them) - len(come.ticks)


@given(schedule=schedules(), after=st.integers(-100_000, 40_000_000))
def test_the_next_tick_is_strictly_later_and_the_nearest(schedule: Schedule, after: int) -> None:
    """Every moment between two ticks has the same next tick."""
    begin = START + timedelta(seconds=after / 3)
    tick = next_fire_time(schedule, begin, next_fire)
    if tick is None:
        return
    assert tick > begin
    between = begin + (tick - begin) / 2
    assert next_fire_time(schedule, between, next_fire) == tick
    following = next_fire_time(schedule, tick, next_fire)
    assert following is None or following > tick


@given(schedule=schedules())
def test_ticks_of_an_interval_begin_in_order(schedule: Schedule) -> None:
    """Jitter lets no tick of an interval overtake the tick before it."""
    if isinstance(schedule.timing, Interval):
        moments = [fires_at(schedule, tick) for tick in walk_ticks(schedule, START, START + timedelta(seconds=5))]
        assert all(one <= other for one, other in pairwise(moments))


@given(schedule=schedules())
def test_a_schedule_reads_back_from_json(schedule: Schedule) -> None:
    """A schedule read from JSON equals the one that was written."""
    book = ScheduleRecord(schedule=schedule, state=TickState(decided=START))

    assert ticks.decode("s", ticks.encode(book)) == book


def walk_ticks(schedule: Schedule, after: datetime, now: datetime) -> list[datetime]:
    """Return the due ticks by walking from one to the next. Of a fast interval only the newest are walked."""
    if isinstance(schedule.timing, Interval):
        most = timedelta(seconds=schedule.timing.seconds) * 5000
        if now - after > most:
            after = max(after, min(now, schedule.until or now) - most)
    found = []
    while (tick := next_fire_time(schedule, after, next_fire)) is not None and fires_at(schedule, tick) <= now:
        found.append(tick)
        after = tick
    return found


def is_tick(schedule: Schedule, tick: datetime) -> bool:
    """Return whether the schedule fires at this very moment."""
    return next_fire_time(schedule, tick - timedelta(microseconds=1), next_fire) == tick
