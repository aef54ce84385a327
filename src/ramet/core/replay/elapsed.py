"""How much of its time a run has had, as a journal tells it: clocks of two processes are never compared."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta


@dataclass
class ActiveTime:
    """Counts from one `begin` to the last thing `seen` before the next: what was not seen is not known."""

    _before: float = 0.0
    _since: datetime | None = None
    _seen: datetime | None = None

    @property
    def seconds(self) -> float:
        """At least so many."""
        if self._since is None or self._seen is None:
            return self._before
        return self._before + max(0.0, (self._seen - self._since).total_seconds())

    def begin(self, at: datetime | None, *, anew: bool = False) -> None:
        """A process sets it to work; `anew`: its time begins with that."""
        self._before, self._since, self._seen = 0.0 if anew else self.seconds, at, at

    def step(self, by_s: float) -> None:
        """The clock was set by so much: from now on it tells other times of the same moments."""
        by = timedelta(seconds=by_s)
        if self._since is not None and self._seen is not None:
            self._since, self._seen = self._since + by, self._seen + by

    def seen(self, at: datetime | None) -> None:
        """It did something there."""
        self._seen = at
