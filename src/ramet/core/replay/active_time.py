"""The active time of a run, computed from its journal; clocks of two processes are never compared."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta


@dataclass
class ActiveTime:
    """A counter of active time, from each `start` to the last event `observe` before the next `start`.

    Time that no event covers is unknown.
    """

    _earlier_s: float = 0.0
    _started_at: datetime | None = None
    _last_seen_at: datetime | None = None

    @property
    def seconds(self) -> float:
        """The lower bound of the active time in seconds."""
        if self._started_at is None or self._last_seen_at is None:
            return self._earlier_s
        return self._earlier_s + max(0.0, (self._last_seen_at - self._started_at).total_seconds())

    def start(self, at: datetime | None, *, anew: bool = False) -> None:
        """Start counting when a process starts to work on the run.

        With `anew`, the time counted before is dropped.
        """
        self._earlier_s, self._started_at, self._last_seen_at = 0.0 if anew else self.seconds, at, at

    def shift(self, by_s: float) -> None:
        """Adjust for a clock that was set by `by_s` seconds."""
        delta = timedelta(seconds=by_s)
        if self._started_at is not None and self._last_seen_at is not None:
            self._started_at, self._last_seen_at = self._started_at + delta, self._last_seen_at + delta

    def observe(self, at: datetime | None) -> None:
        """Record that the run was active at this time."""
        self._last_seen_at = at
