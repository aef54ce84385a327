"""The signs of life of one run in this process: its newest event, the parts of its replies, and its waits."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import TYPE_CHECKING, Protocol

from ramet.concurrency.clock import Clock
from ramet.core.events import Event, MessageRecorded
from ramet.core.ids import StepId

if TYPE_CHECKING:
    from langchain_core.messages import AIMessageChunk


class Watcher(Protocol):
    """An observer of a run's signs of life."""

    def on_event(self, event: Event) -> None:
        """Take an event of the run, after it was recorded."""

    def on_chunk(self) -> None:
        """Take note of a part of a reply."""


class RunActivity:
    """The activity of one run. Its events pass through `record`, and the chunks of its replies through `feed`."""

    __slots__ = (
        "_append",
        "_clock",
        "_feed",
        "last_event_at",
        "quota_waits",
        "room_waits",
        "streamed_at",
        "streamed_text",
        "watcher",
    )

    def __init__(
        self, append: Callable[[Event], Event], feed: Callable[[AIMessageChunk, StepId], None], clock: Clock
    ) -> None:
        self._append, self._feed, self._clock = append, feed, clock
        self.streamed_text: list[str] = []  #: of the reply that is streaming, until it is recorded
        self.last_event_at: datetime | None = None  #: of the newest event, or of a newer part of a reply
        self.streamed_at: datetime | None = None  #: of the newest part of a reply, until an event follows
        self.room_waits = 0  #: its spawns that wait until others have ended
        self.quota_waits = 0  #: its requests that wait for the quota of a provider
        self.watcher: Watcher | None = None  #: None: nobody watches the run

    def record(self, event: Event) -> Event:
        """Record an event of the run, and return it numbered."""
        event = self._append(event)
        self.last_event_at, self.streamed_at = event.at, None
        if isinstance(event, MessageRecorded) and event.step_id is not None:  # It has the text now.
            self.streamed_text.clear()
        if self.watcher is not None:
            self.watcher.on_event(event)
        return event

    def feed(self, chunk: AIMessageChunk, step: StepId) -> None:
        """Pass a chunk of a step's reply to its readers; its text is partial output until the reply is recorded."""
        self.streamed_text.append(chunk.text)
        self.on_chunk()
        self._feed(chunk, step)

    def on_chunk(self) -> None:
        """Take note of a part of a reply, which no event records."""
        self.last_event_at = self.streamed_at = self._clock.now()
        if self.watcher is not None:
            self.watcher.on_chunk()
