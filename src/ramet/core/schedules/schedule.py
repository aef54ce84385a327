"""Schedules as plain data that is equal after a round trip through JSON.

A **tick** is a time that a schedule names. Ticks are aware datetimes in UTC and follow from the data alone: the n-th
tick of an interval is its anchor + n·interval. So nothing drifts, and every process computes the same ticks.
`ramet.core.schedules.ticks` records the outcome of ticks. `next_fire`, which the host passes in, computes the next time
of a cron line.
"""

from __future__ import annotations

import hashlib
import math
from collections import deque
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, Literal, NamedTuple, get_args

from msgspec import Struct
from msgspec.structs import force_setattr

from ramet.core.errors import InvalidValue
from ramet.core.limits import NO_LIMITS, Limits
from ramet.core.policy.policy import Policy

#: (cron line, zone, after) → the first tick strictly after; None if there is none. Raises InvalidValue by field.
NextFire = Callable[[str, str, datetime], datetime | None]
Misfire = Literal["skip", "once", "all"]
Overlap = Literal["skip", "queue", "allow"]

SHORTEST_S = 0.1
LONGEST_S = 10 * 366 * 86_400.0
MAX_JITTER_S = 3600.0
MAX_MISSED = 1000
#: The number of ticks of a cron line that are counted one by one; after a longer absence only the newest are looked
#: for.
MAX_COUNTED = 1000
_MICROSECOND = timedelta(microseconds=1)


class Interval(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="interval"):
    """A tick every `seconds`, counted from `anchor`, which is the first tick itself."""

    seconds: float
    anchor: datetime

    def __post_init__(self) -> None:
        force_setattr(self, "seconds", checked_number("interval_seconds", self.seconds, SHORTEST_S, LONGEST_S))
        force_setattr(self, "anchor", utc("anchor", self.anchor))

    @property
    def step(self) -> timedelta:
        """The interval in whole microseconds, so that n steps are exact."""
        return timedelta(seconds=self.seconds)


class Once(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="once"):
    """A single tick."""

    at: datetime

    def __post_init__(self) -> None:
        force_setattr(self, "at", utc("at", self.at))


class Cron(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="cron"):
    """The ticks of a cron line, in the local time of zone `tz`."""

    line: str
    tz: str


class FunctionTarget(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="function"):
    """A function, by the reference that finds it again."""

    reference: str


class AgentTarget(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="agent"):
    """A definition, as the fields that differ from the default values of a definition."""

    fields: dict[str, Any]


class NamedTarget(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="named"):
    """A definition of the project, as it is when the tick fires."""

    name: str


class Schedule(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A schedule: what runs, when, and how missed ticks and ticks during a run are handled.

    The fields are checked when the schedule is created and when it is read. Raises InvalidValue, naming the field.
    """

    id: str
    name: str
    timing: Interval | Once | Cron
    target: FunctionTarget | AgentTarget | NamedTarget
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = {}
    prompt: str = ""
    policy: Policy | None = None  #: None: the default policy, unless the agent cannot touch the machine
    limits: Limits = NO_LIMITS  #: of each run
    misfire: Misfire = "once"  #: missed ticks: none runs, the newest runs, or the newest `misfire_max` run in order
    misfire_max: int = 10
    overlap: Overlap = "skip"  #: a tick during a run: never runs, runs afterwards, runs concurrently
    jitter_s: float = 0.0  #: a tick fires up to this much later; the delay follows from the tick
    until: datetime | None = None  #: the latest time that may be a tick
    repeatable: bool = False  #: its function may be called again if the process that called it died
    in_process: bool = False  #: without a policy it runs in the kernel's own process, whatever it touches
    asked: str = ""  #: a digest of the request: an equal request changes nothing

    def __post_init__(self) -> None:
        for field, choices in (("misfire", Misfire), ("overlap", Overlap)):
            if getattr(self, field) not in get_args(choices):
                raise InvalidValue(field, getattr(self, field), " or ".join(get_args(choices)))
        if (
            isinstance(self.misfire_max, bool)
            or not isinstance(self.misfire_max, int)
            or not 1 <= self.misfire_max <= MAX_MISSED
        ):
            raise InvalidValue("misfire_max", self.misfire_max, f"a whole number from 1 to {MAX_MISSED}")
        maximum = min(MAX_JITTER_S, self.timing.seconds) if isinstance(self.timing, Interval) else MAX_JITTER_S
        force_setattr(self, "jitter_s", checked_number("jitter_seconds", self.jitter_s, 0, maximum))
        if self.until is not None:
            force_setattr(self, "until", utc("until", self.until))
        for field in ("repeatable", "in_process"):
            if not isinstance(getattr(self, field), bool):
                raise InvalidValue(field, getattr(self, field), "True or False")
        if self.in_process and self.policy is not None:
            raise InvalidValue("in_process", True, "False if a policy is given, since a policy is for a sandbox")


class DueTicks(NamedTuple):
    """The ticks that are due: the newest, oldest first, and the number of earlier ones."""

    ticks: tuple[datetime, ...]
    earlier_count: int  #: of a cron line after a long absence: a lower bound


def utc(field: str, value: object) -> datetime:
    """Convert an aware datetime to UTC.

    Raises InvalidValue for anything else, naive datetimes included: their time zone is unknown.
    """
    accepted = "an aware datetime of the years 1970 to 8999, such as datetime(2027, 1, 31, 9, tzinfo=UTC)"
    if not isinstance(value, datetime) or value.tzinfo is None or not 1970 <= value.year < 9000:
        raise InvalidValue(field, value, accepted)
    return value.astimezone(UTC)


def checked_number(field: str, value: object, minimum: float, maximum: float) -> float:
    """Return a finite number within bounds.

    Raises InvalidValue otherwise.
    """
    if isinstance(value, bool) or not isinstance(value, int | float) or not minimum <= value <= maximum:
        raise InvalidValue(field, value, f"a number of seconds from {minimum:g} to {maximum:.10g}")
    return float(value)


def fires_at(schedule: Schedule, tick: datetime) -> datetime:
    """Return when the run of a tick may begin: the tick plus its jitter.

    The jitter is the same for every caller and every call.
    """
    if not schedule.jitter_s:
        return tick
    digest = hashlib.sha256(f"{schedule.id} {tick.isoformat()}".encode()).digest()
    return tick + timedelta(seconds=schedule.jitter_s) * (int.from_bytes(digest[:6]) / 2**48)


def next_fire_time(schedule: Schedule, start: datetime, next_fire: NextFire) -> datetime | None:
    """Return the first tick strictly after `start`; None if there is none."""
    timing = schedule.timing
    tick: datetime | None
    match timing:
        case Interval():
            tick = timing.anchor + max(0, (start - timing.anchor) // timing.step + 1) * timing.step
        case Once():
            tick = timing.at if timing.at > start else None
        case Cron():
            tick = next_fire(timing.line, timing.tz, start)
    if tick is None or (schedule.until is not None and tick > schedule.until):
        return None
    return tick


def due_between(schedule: Schedule, start: datetime, now: datetime, next_fire: NextFire, *, limit: int) -> DueTicks:
    """Return the ticks strictly after `start` that may fire by `now`, in order; only the newest `limit` are named.

    No tick is named before an earlier one, whatever their jitters.
    """
    timing = schedule.timing
    if isinstance(timing, Interval):
        return _due_of_interval(schedule, timing, start, now, limit)
    newest: deque[datetime] = deque(maxlen=limit)
    count, last = 0, start
    for tick in _walk(schedule, start, now, next_fire):
        newest.append(tick)
        count, last = count + 1, tick
        if count == MAX_COUNTED and not isinstance(timing, Once):
            return _due_after_long_absence(schedule, last, now, next_fire, newest)
    return DueTicks(tuple(newest), count - len(newest))


def _walk(schedule: Schedule, start: datetime, now: datetime, next_fire: NextFire) -> Iterator[datetime]:
    while (tick := next_fire_time(schedule, start, next_fire)) is not None and fires_at(schedule, tick) <= now:
        yield tick
        start = tick


def _due_of_interval(schedule: Schedule, timing: Interval, start: datetime, now: datetime, limit: int) -> DueTicks:
    end = min(now, schedule.until) if schedule.until is not None else now
    first = max(0, (start - timing.anchor) // timing.step + 1)
    last = (end - timing.anchor) // timing.step
    # Jitter is at most one interval: only the newest tick may still have to wait for its jitter.
    if last >= first and fires_at(schedule, timing.anchor + last * timing.step) > now:
        last -= 1
    begin = max(first, last - limit + 1)
    return DueTicks(tuple(timing.anchor + n * timing.step for n in range(begin, last + 1)), max(0, begin - first))


def _due_after_long_absence(
    schedule: Schedule, start: datetime, now: datetime, next_fire: NextFire, newest: deque[datetime]
) -> DueTicks:
    """Find the newest ticks after a long absence.

    Look back from the end in ever wider windows until there are enough ticks.
    """
    limit = newest.maxlen or 1
    end = min(now, schedule.until) if schedule.until is not None else now
    span = timedelta(hours=1)
    # Every tick before a window is due, since the window begins before now - jitter.
    while (begin := end - timedelta(seconds=schedule.jitter_s) - span) > start:
        ticks = deque(_walk(schedule, begin, now, next_fire), maxlen=limit)
        if len(ticks) == limit:
            return DueTicks(tuple(ticks), MAX_COUNTED)
        span *= 2
    count = MAX_COUNTED
    for tick in _walk(schedule, start, now, next_fire):
        newest.append(tick)
        count += 1
    return DueTicks(tuple(newest), count - len(newest))


def just_before(moment: datetime) -> datetime:
    """Return the latest time that is strictly before `moment`."""
    return moment - _MICROSECOND


def seconds_until(moment: datetime, now: datetime, *, maximum: float) -> float:
    """Return the seconds to wait for a time: at least 0, at most `maximum`."""
    return min(maximum, max(0.0, math.ceil((moment - now).total_seconds() * 1e6) / 1e6))
