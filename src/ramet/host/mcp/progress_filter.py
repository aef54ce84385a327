"""Reports of progress that a server sends during a call, thinned out: each becomes an event of a run."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from typing import Any, Final

METHOD: Final = "notifications/progress"
INTERVAL_S: Final = 0.5  #: between two reports of one call
MAX_REPORTS, MAX_CALLS = 200, 1_000  #: of one call, and calls of one session


class ProgressFilter:
    """The reports of one session."""

    def __init__(self) -> None:
        self._reports: dict[str | int, tuple[int, float]] = {}  #: number and time of the last one

    def is_shown(self, params: Mapping[str, Any] | None) -> bool:
        """Return whether a report is to be shown; it counts then."""
        token, done = (params or {}).get("progressToken"), (params or {}).get("progress")
        if not isinstance(token, str | int) or not isinstance(done, int | float) or not math.isfinite(done):
            return False
        count, last_at = self._reports.get(token, (0, -math.inf))
        now = time.monotonic()
        if count >= MAX_REPORTS or now - last_at < INTERVAL_S or (not count and len(self._reports) >= MAX_CALLS):
            return False
        self._reports[token] = (count + 1, now)
        return True
