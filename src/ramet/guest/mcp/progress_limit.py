"""Reports of progress that a server in the sandbox may send on to the host: each call reports rarely, and so do all."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from typing import Final

PROGRESS: Final = "notifications/progress"
REPORT_INTERVAL_S: Final = 0.2  #: between two reports of one call
_MAX_CALLS: Final = 64  #: calls that may report in one interval


class ProgressLimit:
    """The limit of one server. The server names its calls, so it may name any number of them."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        """Set a monotonic clock."""
        self._now = now
        self._reported_at: dict[int, float] = {}  #: by call, the oldest report first

    def is_passed(self, message: Mapping[str, object]) -> bool:
        """Return whether a notification is a report of progress that is passed on; it counts then."""
        params = message.get("params")
        token = params.get("progressToken") if isinstance(params, dict) else None
        if message.get("method") != PROGRESS or type(token) is not int:  # The host takes no others.
            return False
        now = self._now()
        if now - self._reported_at.get(token, -math.inf) < REPORT_INTERVAL_S:
            return False
        if token not in self._reported_at and len(self._reported_at) >= _MAX_CALLS:
            oldest = next(iter(self._reported_at))
            if now - self._reported_at[oldest] < REPORT_INTERVAL_S:
                return False
            del self._reported_at[oldest]
        self._reported_at.pop(token, None)
        self._reported_at[token] = now
        return True
