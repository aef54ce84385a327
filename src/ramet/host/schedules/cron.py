"""The next time of a cron line, computed by cronsim: also right on the days when the clock changes."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import lru_cache
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from ramet.core.errors import InvalidValue

_LINE = "minute, hour, day of month, month and day of week, such as '30 2 * * mon-fri'"
_ZONE = "the name of a time zone that this machine knows, such as 'Europe/Berlin' or 'UTC'"


def next_fire(line: str, tz: str, after: datetime) -> datetime | None:
    """Return the first time strictly after `after`, in UTC; None if there is none within 50 years.

    A time that the clock skips is moved to the end of the skip; a time that the clock shows twice counts once. Raises
    InvalidValue naming `cron` or `tz`.
    """
    zone = _zone(tz)
    try:
        # cronsim computes in wall time: started in the repeated hour, it may return a time that has passed.
        for tick in CronSim(_check_line(line), after.astimezone(zone)):
            if (moment := tick.astimezone(UTC)) > after:
                return moment
    except (CronSimError, OverflowError) as problem:
        raise InvalidValue("cron", line, f"{_LINE} ({problem})") from None
    return None


def check(line: str, tz: str, after: datetime) -> None:
    """Raise InvalidValue for an unreadable line or zone, and for a line whose time never comes."""
    if next_fire(line, tz, after) is None:
        raise InvalidValue("cron", line, "a line whose time comes within 50 years")


def _check_line(line: object) -> str:
    # Seconds, which cronsim reads from a sixth field, follow other rules when the clock changes.
    if not isinstance(line, str) or len(line) > 200 or len(line.split()) != 5:
        raise InvalidValue("cron", line, _LINE)
    return line


@lru_cache(maxsize=64)
def _zone(tz: object) -> ZoneInfo:
    try:
        if isinstance(tz, str):
            return ZoneInfo(tz)
    except (KeyError, ValueError, OSError):  # unknown; a path that leads elsewhere; a folder of zones
        pass
    raise InvalidValue("tz", tz, _ZONE)
