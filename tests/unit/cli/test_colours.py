"""Colours: what NO_COLOR, FORCE_COLOR, TERM=dumb and the lack of a terminal do, as docs/reference/cli.md has it."""

from __future__ import annotations

import os
import pty
from typing import NamedTuple

import pytest
from rich.text import Text

from ramet.cli.render.console import console, is_live


class Shown(NamedTuple):
    """Text that a console wrote, and whether it may overwrite its lines."""

    text: str
    is_live: bool


PLAIN, COLOURED, BOLD = "word\n", "\x1b[1;31mword\x1b[0m\n", "\x1b[1mword\x1b[0m\n"


@pytest.mark.parametrize(
    ("variables", "at_terminal", "in_a_pipe"),
    [
        ({}, Shown(COLOURED, True), Shown(PLAIN, False)),
        ({"NO_COLOR": "1"}, Shown(BOLD, True), Shown(PLAIN, False)),
        ({"NO_COLOR": ""}, Shown(COLOURED, True), Shown(PLAIN, False)),
        ({"FORCE_COLOR": "1"}, Shown(COLOURED, True), Shown(COLOURED, False)),
        ({"FORCE_COLOR": ""}, Shown(COLOURED, True), Shown(PLAIN, False)),
        ({"FORCE_COLOR": "1", "NO_COLOR": "1"}, Shown(BOLD, True), Shown(BOLD, False)),
        ({"TERM": "dumb"}, Shown(PLAIN, False), Shown(PLAIN, False)),
        ({"TERM": "dumb", "FORCE_COLOR": "1"}, Shown(PLAIN, False), Shown(PLAIN, False)),
    ],
)
def test_variables_decide_over_colours_and_only_a_terminal_is_overwritten(
    variables: dict[str, str], at_terminal: Shown, in_a_pipe: Shown, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same words at a real terminal and in a pipe."""
    for name in ("NO_COLOR", "FORCE_COLOR", "COLORTERM"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    for name, value in variables.items():
        monkeypatch.setenv(name, value)

    assert (shown_by(*pty.openpty()), shown_by(*os.pipe())) == (at_terminal, in_a_pipe)


def shown_by(reader: int, writer: int) -> Shown:
    """Return what a console writes to a descriptor."""
    with os.fdopen(writer, "w") as stream:
        screen = console(stream)
        screen.print(Text("word", "bold red"))
        stream.flush()
        shown = Shown(os.read(reader, 1_000).decode().replace("\r\n", "\n"), is_live(screen))
    os.close(reader)
    return shown
