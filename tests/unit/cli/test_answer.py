"""Foreign text on the terminal."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from ramet.cli.render.answer import print_text, text_of
from ramet.cli.render.console import console
from ramet.core.outcome import Result, Status


def output_of(text: str, *, terminal: bool, width: int = 60) -> str:
    """Return the output without colours."""
    out = io.StringIO()
    page = console(out, width=width)
    if terminal:
        page = Console(file=out, width=width, force_terminal=True, color_system=None, markup=False, emoji=False)
    print_text(page, text)
    return out.getvalue()


def test_a_program_gets_the_text_unchanged() -> None:
    """The text is neither wrapped nor rendered; only terminal sequences are removed."""
    text = "# Title\n\n" + "word " * 60 + "\n\n* `x`\x1b[2J [bold]b[/bold] :smile:"

    assert output_of(text, terminal=False) == text.replace("\x1b[2J", "") + "\n"


def test_a_person_gets_rendered_markdown() -> None:
    """Headings are aligned left."""
    page = output_of("# Title\n\n* a **b** `c`", terminal=True)

    assert [line.rstrip() for line in page.splitlines() if line.strip()] == ["Title", " • a b c"]


@pytest.mark.parametrize("text", ["List<String>", "<script>x</script>", "a <task-notification> b"])
def test_tags_are_shown_as_text(text: str) -> None:
    """Markdown would hide text that looks like HTML."""
    assert text in output_of(text, terminal=True)


def test_a_link_shows_its_address() -> None:
    """A label cannot hide the address, and no terminal hyperlink is made."""
    page = output_of("[docs](http://evil.example)", terminal=True)

    assert "http://evil.example" in page
    assert "\x1b]8" not in page


def test_markup_and_emoji_codes_are_shown_as_text() -> None:
    """Foreign text cannot choose its colours."""
    assert "[red]x[/red] :bomb:" in output_of("[red]x[/red] :bomb:", terminal=True)


def test_a_typed_value_is_printed_as_json() -> None:
    """A program can read it, for any value."""
    assert (
        text_of(Result(status=Status.COMPLETED, value={"cause": "é", "at": (1,)}))
        == '{\n  "cause": "é",\n  "at": [\n    1\n  ]\n}'
    )
    assert text_of(Result(status=Status.COMPLETED, value="plain")) == "plain"
    assert text_of(Result(status=Status.FAILED, partial="half")) == "half"
