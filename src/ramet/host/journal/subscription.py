"""A reader of a tree that is called with each event as it is published, and at the end: no task, no queue, no loss."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from ramet.core.events import Event
from ramet.host.journal.recorder import Recorder, Subscription

if TYPE_CHECKING:
    from langchain_core.messages import AIMessageChunk

_log = logging.getLogger("ramet.subscription")


class Listener(Subscription):
    """A subscription that calls `on_event` with every kept and new event of a tree, in order, and `on_close` once at
    the close.

    Neither callback can harm the tree: the first exception is logged.
    """

    def __init__(self, recorder: Recorder, on_event: Callable[[Event], None], on_close: Callable[[], None]) -> None:
        super().__init__(recorder, run=None, deltas=False, chunks=False, past=False)
        self._on_event, self._on_close = on_event, on_close
        self._is_over = self._has_failed = False

    def offer(self, event: Event) -> None:
        """Pass an event to `on_event` at once."""
        if not self._is_over:
            try:
                self._on_event(event)
            except Exception:
                self._log_failure()

    def put(self, item: Event | AIMessageChunk) -> None:
        """Pass an event to `on_event` at once; chunks are ignored."""
        if isinstance(item, Event):
            self.offer(item)

    def close(self) -> None:
        """Stop listening; idempotent. The recorder calls this when the tree is closed."""
        if not self._is_over:
            self._is_over = True
            super().close()
            self._recorder.remove_reader(self)
            try:
                self._on_close()
            except Exception:
                self._log_failure()

    def _log_failure(self) -> None:
        if not self._has_failed:
            self._has_failed = True
            _log.exception("a listener failed; the tree continues, and the listener misses this event")


def listen(
    recorder: Recorder, on_event: Callable[[Event], None], on_close: Callable[[], None] = lambda: None
) -> Listener:
    """Listen to a tree until the tree, or the returned listener, is closed."""
    listener = Listener(recorder, on_event, on_close)
    for event in recorder.recent_events:
        listener.offer(event)
    if recorder._is_closed:
        listener.close()
    else:
        recorder._readers.append(listener)
    return listener
