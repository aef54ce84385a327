"""Reports of progress that a server sends during a call, thinned out: each becomes an event of a run."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from typing import Any, Final

METHOD: Final = "notifications/progress"
INTERVAL_S: Final = 0.5  #: between two reports of one call
MAX_NUMBER: Final = 1e300
MAX_REPORTS, MAX_CALLS = 200, 1_000  #: of one call, and the newest calls of one session


class ProgressFilter:
    """The reports of one session."""

    def __init__(self) -> None:
        self._reports: dict[int, tuple[int, float]] = {}  #: number and time of the last one
        self._forgotten_at = -math.inf

    def is_shown(self, params: Mapping[str, Any] | None) -> bool:
        """Return whether a report is to be shown; it counts then."""
        token, done, total = ((params or {}).get(name) for name in ("progressToken", "progress", "total"))
        # The client's tokens are numbers of requests. A text would be kept here.
        if type(token) is not int or not _is_float(done) or not (total is None or _is_float(total)):
            return False
        count, last_at = self._reports.get(token, (0, -math.inf))
        now = time.monotonic()
        if count >= MAX_REPORTS or now - last_at < INTERVAL_S:
            return False
        if not count and len(self._reports) >= MAX_CALLS:
            if now - self._forgotten_at < INTERVAL_S:  # Otherwise a server could forget the counts of its own calls.
                return False
            del self._reports[next(iter(self._reports))]
            self._forgotten_at = now
        self._reports[token] = (count + 1, now)
        return True


def _is_float(value: object) -> bool:
    """Return whether a value is a number that a float can be: a whole number may be too large."""
    return type(value) in (int, float) and -MAX_NUMBER <= value <= MAX_NUMBER  # type: ignore[operator]  # checked before
