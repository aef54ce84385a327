"""The tree on a terminal, redrawn in place several times a second, and left on the screen at the end."""

from __future__ import annotations

import asyncio
import os
from types import TracebackType
from typing import Self

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from ramet.cli.render.console import glyphs_for
from ramet.cli.render.progress import describe
from ramet.cli.render.tree_model import TreeModel
from ramet.cli.render.tree_text import draw
from ramet.cli.render.views import View
from ramet.concurrency.clock import Clock
from ramet.core.events import Event

FRAME_S = 0.1  #: frequent enough to show movement, rare enough to be calm and cheap


class LiveTree(View):
    """A context that draws the tree; at exit the last frame stays on the screen and the cursor is restored."""

    shows_deltas = True

    def __init__(self, screen: Console, model: TreeModel, clock: Clock) -> None:
        self._screen, self._model, self._clock = screen, model, clock
        self._glyphs = glyphs_for(screen)
        self._live: Live | None = None
        self._drawing: asyncio.Task[None] | None = None
        self._tick = 0
        self._pending_lines: list[Text] = []  #: lines that wait until a question is answered
        self._note = ""  #: one line below the tree

    async def __aenter__(self) -> Self:
        self.resume()
        self._drawing = asyncio.create_task(self._draw(), name="ramet live tree")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._drawing is not None:
            self._drawing.cancel()
            await asyncio.wait({self._drawing})
        self._stop(last=True)
        if self._drawing is not None and not self._drawing.cancelled():
            self._drawing.result()  # A frame that cannot be drawn is a bug to report.

    def show_event(self, event: Event) -> None:
        """Print events above the tree that its rows cannot show."""
        line = describe(event, self._model)
        if line is not None and line.is_rare:
            self._pending_lines.append(Text(line.text, "yellow"))
            if self._live is not None:
                self._print_pending()

    def show_message(self, text: str) -> None:
        self._note = text

    def pause(self) -> None:
        self._stop(last=False)

    def resume(self) -> None:
        """Draw again, below the lines printed meanwhile."""
        self._print_pending()
        # No refresh thread: the event loop draws the frames, so a model never changes while it is drawn.
        self._live = Live(self._frame(), console=self._screen, auto_refresh=False, vertical_overflow="crop")
        self._live.start()

    def restore(self) -> None:
        """Restore the cursor below the tree, at once, from a signal handler.

        The signal may have come in the middle of a frame: Python's own streams refuse a second write then.
        """
        os.write(self._screen.file.fileno(), b"\n\x1b[?25h")

    def _stop(self, *, last: bool) -> None:
        live, self._live = self._live, None
        if live is None:
            return
        if last:
            live.update(self._frame(moving=False), refresh=True)
        else:
            live.transient = True
        live.stop()

    def _print_pending(self) -> None:
        for line in self._pending_lines:
            self._screen.print(line, soft_wrap=True)
        self._pending_lines.clear()

    async def _draw(self) -> None:
        while True:
            if self._live is not None:
                self._tick += 1
                self._live.update(self._frame(), refresh=True)
            await self._clock.sleep(FRAME_S)

    def _frame(self, *, moving: bool = True) -> Group:
        width, height = self._screen.size
        available = height - 2 - bool(self._note)
        tick = self._tick if moving else None
        lines = draw(self._model, now=self._clock.now(), width=width, height=available, glyphs=self._glyphs, tick=tick)
        if self._note and moving:
            lines.append(Text(self._note, "yellow", no_wrap=True, overflow="crop"))
        return Group(*lines)
