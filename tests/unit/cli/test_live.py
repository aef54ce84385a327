"""The tree on a terminal while it runs."""

from __future__ import annotations

import asyncio
import io

import pytest
from rich.console import Console

from ramet.cli.render.live import FRAME_S, LiveTree
from ramet.cli.render.tree_model import TreeModel
from ramet.concurrency.clock import FakeClock
from ramet.core.events import Notice
from tests.unit.cli.story import START, TreeEventWriter, cancelled_story

HIDE, SHOW = "\x1b[?25l", "\x1b[?25h"


class Terminal:
    """A terminal of 80 columns that collects its output."""

    def __init__(self) -> None:
        self._written = io.StringIO()
        self.console = Console(
            file=self._written, width=80, height=24, force_terminal=True, color_system=None, markup=False, emoji=False
        )

    def fresh(self) -> str:
        """Return the output since the last call."""
        text = self._written.getvalue()
        self._written.seek(0)
        self._written.truncate()
        return text


async def watch(writer: TreeEventWriter, terminal: Terminal) -> None:
    """Show a story to its end, and one frame more."""
    picture, clock = TreeModel(), FakeClock(START)
    async with LiveTree(terminal.console, picture, clock) as live:
        for event in writer.events:
            picture.apply(event)
            live.show_event(event)
        await asyncio.sleep(0)
        await clock.advance(FRAME_S)


async def test_the_last_frame_stays_and_the_cursor_is_restored() -> None:
    """The screen shows the whole tree without a spinner."""
    terminal = Terminal()

    await watch(cancelled_story(), terminal)

    *_, last = terminal.fresh().split("\x1b[2K")
    assert last.rstrip().endswith(SHOW)
    assert "└─ ■ sources · explore    cancelled" in last
    assert "model calls" not in last


async def test_the_cursor_is_restored_after_an_error() -> None:
    """The terminal stays usable."""
    terminal = Terminal()

    async def fail() -> None:
        async with LiveTree(terminal.console, TreeModel(), FakeClock(START)):
            raise KeyError

    with pytest.raises(KeyError):
        await fail()
    output = terminal.fresh()
    assert output.count(HIDE) == output.count(SHOW) == 1


async def test_notices_are_printed_above_the_tree() -> None:
    """Notices stay, while the tree is redrawn."""
    terminal, writer = Terminal(), TreeEventWriter()
    writer.add_spawn("main", 0)
    writer.add(Notice, "main", 1, text="look at this")

    await watch(writer, terminal)

    assert "main: look at this\n" in terminal.fresh()


async def test_a_question_pauses_the_drawing() -> None:
    """Notices wait during the pause, and are printed above the tree afterwards."""
    terminal, picture, clock, writer = Terminal(), TreeModel(), FakeClock(START), TreeEventWriter()
    writer.add_spawn("main", 0)
    notice = writer.add(Notice, "main", 1, text="meanwhile")
    async with LiveTree(terminal.console, picture, clock) as live:
        for event in writer.events:
            picture.apply(event)
        live.pause()
        terminal.fresh()
        live.show_event(notice)
        await asyncio.sleep(0)
        await clock.advance(1)
        assert terminal.fresh() == ""

        live.resume()
        assert terminal.fresh().startswith("main: meanwhile\n")
