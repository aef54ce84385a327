"""The active time of a run, computed from its journal; clocks of two processes are never compared."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta


@dataclass
class ActiveTime:
    """A counter of active time, from each `begin` to the last event `seen` before the next `begin`.

    Time that no event covers is unknown.
    """

    _before: float = 0.0
    _since: datetime | None = None
    _seen: datetime | None = None

    @property
    def seconds(self) -> float:
        """The lower bound of the active time in seconds."""
        if self._since is None or self._seen is None:
            return self._before
        return self._before + max(0.0, (self._seen - self._since).total_seconds())

    def begin(self, at: datetime | None, *, anew: bool = False) -> None:
        """Start counting when a process starts to work on the run.

        With `anew`, the time counted before is dropped.
        """
        self._before, self._since, self._seen = 0.0 if anew else self.seconds, at, at

    def step(self, by_s: float) -> None:
        """Adjust for a clock that was set by `by_s` seconds."""
        by = timedelta(seconds=by_s)
        if self._since is not None and self._seen is not None:
            self._since, self._seen = self._since + by, self._seen + by

    def seen(self, at: datetime | None) -> None:
        """Record that the run was active at this time."""
        self._seen = at
