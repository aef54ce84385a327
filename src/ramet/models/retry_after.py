"""The wait that a provider asks for, as its answers say it: Retry-After, the resets of its limits, Google's details.

Answers are not trusted. A value that cannot be read, or that is longer than `MAX_WAIT_S`, counts as none.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from email.utils import parsedate_to_datetime
from typing import Any, Final

#: A longer wait is a mistake of its sender: no provider has a longer window than a month.
MAX_WAIT_S: Final = 32 * 86_400.0
_MAX_CHARS: Final = 64
_MAX_DETAILS: Final = 32
#: For each limit: the header that says what is left, and the one that says when all of it is back.
_RESETS: Final = (
    *((f"x-ratelimit-remaining-{each}", f"x-ratelimit-reset-{each}") for each in ("requests", "tokens")),
    *(
        (f"anthropic-ratelimit-{each}-remaining", f"anthropic-ratelimit-{each}-reset")
        for each in ("requests", "tokens", "input-tokens", "output-tokens", "unified")
    ),
)
_DURATION: Final = re.compile(
    r"(?:(\d{1,4})d)?(?:(\d{1,6})h)?(?:(\d{1,6})m(?!s))?(?:(\d{1,9}(?:\.\d{1,9})?)s)?(?:(\d{1,9}(?:\.\d{1,9})?)ms)?"
)
_UNITS_S: Final = (86_400.0, 3_600.0, 60.0, 1.0, 0.001)
#: Numbers above it are times since 1970, not waits.
_FIRST_EPOCH_S: Final = 1e9


def retry_after_s(headers: Mapping[str, str], now: datetime) -> float | None:
    """Return the seconds of Retry-After (seconds or an HTTP date) or retry-after-ms; None without such a header."""
    for name, unit_s in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        text = _header(headers, name)
        if text is None:
            continue
        try:
            seconds: float | None = float(text) * unit_s
        except ValueError:
            date = _http_date(text)
            seconds = (date - now).total_seconds() if date is not None else None
        if (wait_s := _bounded(seconds)) is not None:
            return wait_s
    return None


def quota_reset_s(headers: Mapping[str, str], body: object, now: datetime) -> float | None:
    """Return the seconds until a provider that refused for a limit answers again; None if its answer does not say.

    Of several limits that are used up, the last to come back counts; if none is said to be, the first to come back.
    """
    if (wait_s := _google_delay_s(body, now)) is not None:
        return wait_s
    exhausted, others = list[float](), list[float]()
    for remaining, reset in _RESETS:
        text = _header(headers, reset)
        seconds = _bounded(_seconds(text, now)) if text is not None else None
        if seconds is not None:
            (exhausted if _header(headers, remaining) == "0" else others).append(seconds)
    return max(exhausted) if exhausted else min(others, default=None)


def _header(headers: Mapping[str, str], name: str) -> str | None:
    text = headers.get(name) or headers.get(name.title())
    return text.strip() if isinstance(text, str) and len(text) <= _MAX_CHARS else None


def _bounded(seconds: float | None) -> float | None:
    """Return a wait of at least 0 s; None for one that no provider means, such as NaN."""
    return max(0.0, seconds) if seconds is not None and seconds <= MAX_WAIT_S else None


def _seconds(text: str, now: datetime) -> float | None:
    """Return the wait that a reset states: a duration such as `6m0s`, a number, or a time of RFC 3339."""
    if match := _DURATION.fullmatch(text) if text else None:
        return sum(float(part) * unit for part, unit in zip(match.groups(), _UNITS_S, strict=True) if part)
    try:
        number = float(text)
    except ValueError:
        pass
    else:
        return number - now.timestamp() if number > _FIRST_EPOCH_S else number
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        return None
    return ((time if time.tzinfo else time.replace(tzinfo=UTC)) - now).total_seconds()


def _http_date(text: str) -> datetime | None:
    try:
        date = parsedate_to_datetime(text)
    except (ValueError, OverflowError):
        return None
    return date if date.tzinfo else date.replace(tzinfo=UTC)


def _google_delay_s(body: object, now: datetime) -> float | None:
    """Return the delay of google.rpc.RetryInfo; for a quota of a day, the rest of Google's day."""
    details = list(_google_details(body))
    for each in details:
        violations = each.get("violations")
        for violation in violations[:_MAX_DETAILS] if isinstance(violations, list) else ():
            if isinstance(violation, Mapping) and "PerDay" in str(violation.get("quotaId", ""))[:200]:
                return _rest_of_day_s(now)
    delays = (each.get("retryDelay") for each in details)
    texts = [each for each in delays if isinstance(each, str) and len(each) <= _MAX_CHARS]
    return _bounded(_seconds(texts[0], now)) if texts else None


def _google_details(body: object) -> Iterator[Mapping[str, Any]]:
    if isinstance(body, list) and body:  # The body of a refused stream is a list of one.
        body = body[0]
    error = body.get("error", body) if isinstance(body, Mapping) else None
    details = error.get("details") if isinstance(error, Mapping) else None
    if isinstance(details, list):
        yield from (each for each in details[:_MAX_DETAILS] if isinstance(each, Mapping))


def _rest_of_day_s(now: datetime) -> float:
    """Return the seconds until midnight in California, where Google's quotas of a day begin."""
    from zoneinfo import ZoneInfo, ZoneInfoNotFoundError  # Rarely needed.

    zone: tzinfo
    try:
        zone = ZoneInfo("America/Los_Angeles")
    except ZoneInfoNotFoundError:
        zone = timezone(timedelta(hours=-8))
    local = now.astimezone(zone)
    midnight = (local + timedelta(days=1)).replace(hour=0, minute=0, second=0, microsecond=0)
    return (midnight.astimezone(UTC) - now).total_seconds()
