"""The next time of a cron line, by cronsim: right also on the days when the clock changes."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import lru_cache
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from ramet.core.errors import InvalidValue

_LINE = "minute, hour, day of month, month and day of week, such as '30 2 * * mon-fri'"
_ZONE = "the name of a time zone that this machine knows, such as 'Europe/Berlin' or 'UTC'"


def next_fire(line: str, tz: str, after: datetime) -> datetime | None:
    """The first time strictly after `after`, in UTC; None if there is none within 50 years.

    A time that the clock skips comes at the end of the skip; one that it shows twice comes once. Raises InvalidValue
    naming `cron` or `tz`.
    """
    zone = _zone(tz)
    try:
        # cronsim reckons on the wall: begun in the hour that comes twice, it may name one that is over.
        for tick in CronSim(_checked(line), after.astimezone(zone)):
            if (moment := tick.astimezone(UTC)) > after:
                return moment
    except (CronSimError, OverflowError) as problem:
        raise InvalidValue("cron", line, f"{_LINE} ({problem})") from None
    return None


def check(line: str, tz: str, after: datetime) -> None:
    """Raise InvalidValue for a line or zone that cannot be read, and for a line whose time never comes."""
    if next_fire(line, tz, after) is None:
        raise InvalidValue("cron", line, "a line whose time comes within 50 years")


def _checked(line: object) -> str:
    # Seconds, which cronsim reads from a sixth field, have other rules when the clock changes.
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
