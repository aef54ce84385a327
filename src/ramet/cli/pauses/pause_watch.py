"""The watch on a tree: it notices that nothing goes on because limits must be raised."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Self

from ramet.core.errors import StoreFailed
from ramet.core.events import Event, TextDelta
from ramet.host.journal.subscription import listen
from ramet.host.trees.exhausted_limits import ExhaustedLimit, exhausted_limits
from ramet.host.trees.factory import OpenTree

#: Steps of the event loop after which a run that could go on is seen to do so.
_STEPS = 50


class PauseWatch:
    """A context that watches a tree until its exit. Its owner reports each event that was shown."""

    def __init__(self, tree: OpenTree) -> None:
        self._tree, self._register = tree, tree.tree.register
        self._change_event = asyncio.Event()
        self._recorded = self._shown = 0  #: numbers of the newest events

    def __enter__(self) -> Self:
        self._register.on_state.append(self._change_event.set)
        self._listener = listen(self._tree.recorder, self._note, self._change_event.set)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._register.on_state.remove(self._change_event.set)
        self._listener.close()

    @property
    def limits(self) -> list[ExhaustedLimit]:
        """The limits at which runs are paused now; others may work meanwhile."""
        return exhausted_limits(self._register)

    @property
    def is_paused(self) -> bool:
        """Return whether runs are paused, and nothing in the tree works."""
        return self._register.is_paused and bool(self.limits)

    def handle_event(self, event: Event) -> None:
        """Note that an event was shown."""
        if not isinstance(event, TextDelta):
            self._shown = max(self._shown, event.seq)
            self._change_event.set()

    async def wait_changed(self) -> None:
        """Wait until something has changed since the last call."""
        await self._change_event.wait()
        self._change_event.clear()

    async def wait_paused(self) -> None:
        """Wait until runs are paused, nothing in the tree goes on, and all that is on record was shown."""
        while not (self.is_paused and await self._is_settled()):
            await self.wait_changed()

    async def _is_settled(self) -> bool:
        """Return whether nothing has changed once everything is recorded, and every run had its turn.

        A run that waits for the record of another run's end, for example, seems to do nothing until then.
        """
        self._change_event.clear()
        if self._tree.recorder.durable is not None:
            try:
                await self._tree.recorder.durable()
            except StoreFailed:  # Its runs end for this reason.
                return False
        for _ in range(_STEPS):
            await asyncio.sleep(0)
        is_shown = self._shown >= self._recorded and not self._tree.recorder.waiting
        return is_shown and not self._change_event.is_set() and self.is_paused

    def _note(self, event: Event) -> None:
        if not isinstance(event, TextDelta):
            self._recorded = event.seq
            self._change_event.set()
