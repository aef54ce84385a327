"""The two outputs of a command: stdout for the answer, stderr for everything else."""

from __future__ import annotations

import contextlib
import os
import sys
from typing import IO

from rich.console import Console
from rich.text import Text
from rich.theme import Theme

from ramet.cli.render.tree_text import ASCII, UNICODE, Glyphs

#: Plain colours of the terminal's palette without backgrounds, readable on light and dark terminals.
_THEME = Theme(
    {
        "markdown.code": "cyan",
        "markdown.h1": "bold",
        "markdown.h2": "bold",
        "markdown.h3": "bold",
        "markdown.h4": "bold",
        "markdown.item.bullet": "dim",
        "markdown.item.number": "dim",
        "markdown.block_quote": "dim",
        "markdown.hr": "dim",
        "markdown.link": "none",
        "markdown.link_url": "underline",
    }
)


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """Let the caller decide; rich would end the process."""
        raise BrokenPipeError


def console(stream: IO[str], *, width: int | None = None) -> Console:
    """Return a console that prints text unchanged: no markup, no emoji codes, no automatic colours.

    FORCE_COLOR asks for colours in a file or a pipe. It makes no terminal of them: nothing is overwritten there, and
    nobody is asked. NO_COLOR, and `TERM=dumb`, go before it.
    """
    at_terminal = stream.isatty()
    forced = not at_terminal and bool(os.environ.get("FORCE_COLOR")) and not _is_dumb()
    return _Console(
        file=stream,
        width=width,
        force_terminal=at_terminal,
        color_system="standard" if forced else "auto",
        markup=False,
        emoji=False,
        highlight=False,
        theme=_THEME,
    )


def _is_dumb() -> bool:
    return os.environ.get("TERM", "").lower() in ("dumb", "unknown")


def print_note(text: str) -> None:
    """Print a remark on stderr, if that can still be written."""
    with contextlib.suppress(OSError):
        console(sys.stderr).print(Text(text, "dim"), soft_wrap=True)


def glyphs_for(screen: Console) -> Glyphs:
    """Return the symbols that this terminal can show."""
    return UNICODE if screen.encoding.lower().startswith("utf") else ASCII


def is_live(screen: Console) -> bool:
    """Return whether printed lines can be overwritten."""
    return screen.is_terminal and not screen.is_dumb_terminal
