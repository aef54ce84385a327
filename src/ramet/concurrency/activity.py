"""The signs of life of one run in this process: its newest event, the parts of its replies, and its waits."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Protocol

from ramet.concurrency.clock import Clock
from ramet.core.events import Event


class Watcher(Protocol):
    """An observer of a run's signs of life."""

    def on_event(self, event: Event) -> None:
        """Take an event of the run, after it was recorded."""

    def on_chunk(self) -> None:
        """Take note of a part of a reply."""


class RunActivity:
    """The activity of one run. All its events pass through `record`."""

    __slots__ = ("_append", "_clock", "last_event_at", "quota_waits", "room_waits", "streamed_at", "watcher")

    def __init__(self, append: Callable[[Event], Event], clock: Clock) -> None:
        self._append, self._clock = append, clock
        self.last_event_at: datetime | None = None  #: of the newest event, or of a newer part of a reply
        self.streamed_at: datetime | None = None  #: of the newest part of a reply, until an event follows
        self.room_waits = 0  #: its spawns that wait until others have ended
        self.quota_waits = 0  #: its requests that wait for the quota of a provider
        self.watcher: Watcher | None = None  #: None: nobody watches the run

    def record(self, event: Event) -> Event:
        """Record an event of the run, and return it numbered."""
        event = self._append(event)
        self.last_event_at, self.streamed_at = event.at, None
        if self.watcher is not None:
            self.watcher.on_event(event)
        return event

    def on_chunk(self) -> None:
        """Take note of a part of a reply, which no event records."""
        self.last_event_at = self.streamed_at = self._clock.now()
        if self.watcher is not None:
            self.watcher.on_chunk()
