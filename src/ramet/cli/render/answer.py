"""Print foreign text: as Markdown on a terminal, unchanged for a program."""

from __future__ import annotations

import msgspec
from markdown_it import MarkdownIt
from rich.console import Console
from rich.markdown import Heading, Markdown
from rich.text import Text

from ramet.cli.render.sanitize import sanitize
from ramet.core.outcome import Result, value_json

MAX_MARKDOWN = 200_000  #: a longer text is printed unchanged: parsing could take longer than reading


class _PlainHeading(Heading):
    LEVEL_ALIGN = dict.fromkeys(("h1", "h2", "h3", "h4", "h5", "h6"), "left")


class _Page(Markdown):
    """Markdown that hides nothing: tags are text, and a link shows its target."""

    elements = {**Markdown.elements, "heading_open": _PlainHeading}  # noqa: RUF012 - as in rich

    def __init__(self, text: str) -> None:
        super().__init__("", code_theme="ansi_dark", hyperlinks=False)
        self.markup = text
        parser = MarkdownIt("commonmark", {"html": False}).enable("strikethrough").enable("table")
        self.parsed = parser.parse(text)


def text_of(result: Result) -> str:
    """Return the answer as text: a typed value as indented JSON."""
    if result.value is None or isinstance(result.value, str):
        return result.text
    try:
        return msgspec.json.format(value_json(result.value), indent=2).decode()
    except Exception:  # as in `Result.text`
        return result.text


def print_text(out: Console, text: str) -> None:
    """Print foreign text, sanitized. Nothing is wrapped or coloured outside of a terminal."""
    text = sanitize(text).strip("\n")
    if out.is_terminal and len(text) <= MAX_MARKDOWN:
        out.print(_Page(text))
    else:
        out.print(Text(text), soft_wrap=True)
