"""The handler of the pauses of one tree: asks a person, or leaves the tree."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from rich.console import Console

from ramet.cli.pauses.pause_watch import PauseWatch
from ramet.cli.pauses.questions import PauseQuestions
from ramet.cli.render.approvals import Questions
from ramet.core.events import Event
from ramet.host.trees.factory import OpenTree


class PauseHandler:
    """A handler for a tree that begins later: `serve` works until it is cancelled, or until `leave` ends the process.

    With `questions` a person is asked at each pause, and may leave the tree if `can_leave`. Without, the first pause
    leaves it. `handle_event` is called with each event after it was shown.
    """

    def __init__(
        self,
        err: Console,
        questions: Questions | None,
        leave: Callable[[OpenTree], Awaitable[object]],
        *,
        can_leave: bool = True,
    ) -> None:
        self._err, self._questions, self._leave, self._can_leave = err, questions, leave, can_leave
        self._watch: PauseWatch | None = None
        self._newest: Event | None = None  #: of the recorded ones that were shown

    def handle_event(self, event: Event) -> None:
        """Note that an event was shown."""
        self._newest = event if event.seq else self._newest
        if self._watch is not None:
            self._watch.handle_event(event)

    async def serve(self, tree: OpenTree) -> None:
        """Handle the pauses of a tree."""
        with PauseWatch(tree) as watch:
            self._watch = watch
            if self._newest is not None:
                watch.handle_event(self._newest)
            if self._questions is None:
                await watch.wait_paused()
            else:
                await self._ask(tree, watch, self._questions)
            await self._leave(tree)

    async def _ask(self, tree: OpenTree, watch: PauseWatch, questions: Questions) -> None:
        """Ask until a person leaves the tree."""
        has_left = asyncio.Event()
        leave = has_left.set if self._can_leave else None
        serving = asyncio.create_task(PauseQuestions(tree, watch, questions, self._err, leave).serve())
        leaving = asyncio.create_task(has_left.wait())
        try:
            await asyncio.wait((serving, leaving), return_when=asyncio.FIRST_COMPLETED)
            if serving.done():
                await serving  # Raises its error.
        finally:
            serving.cancel()
            leaving.cancel()
            await asyncio.wait((serving, leaving))
