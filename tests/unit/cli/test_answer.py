"""Foreign text on paper."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from ramet.cli.render.answer import print_text, text_of
from ramet.cli.render.console import console
from ramet.core.outcome import Result, Status


def printed(text: str, *, terminal: bool, width: int = 60) -> str:
    """What comes out, without colours."""
    out = io.StringIO()
    page = console(out, width=width)
    if terminal:
        page = Console(file=out, width=width, force_terminal=True, color_system=None, markup=False, emoji=False)
    print_text(page, text)
    return out.getvalue()


def test_a_program_gets_the_text_as_it_is() -> None:
    """Not wrapped, not rendered; only what acts on a terminal is gone."""
    text = "# Title\n\n" + "word " * 60 + "\n\n* `x`\x1b[2J [bold]b[/bold] :smile:"

    assert printed(text, terminal=False) == text.replace("\x1b[2J", "") + "\n"


def test_a_person_gets_a_page() -> None:
    """Markdown is rendered, headings stay left."""
    page = printed("# Title\n\n* a **b** `c`", terminal=True)

    assert [line.rstrip() for line in page.splitlines() if line.strip()] == ["Title", " • a b c"]


@pytest.mark.parametrize("text", ["List<String>", "<script>x</script>", "a <task-notification> b"])
def test_tags_are_text(text: str) -> None:
    """What looks like HTML is shown, as evidence may: Markdown would swallow it."""
    assert text in printed(text, terminal=True)


def test_a_link_shows_where_it_leads() -> None:
    """A label cannot hide its address, and no terminal hyperlink is made."""
    page = printed("[docs](http://evil.example)", terminal=True)

    assert "http://evil.example" in page
    assert "\x1b]8" not in page


def test_markup_and_emoji_codes_are_text() -> None:
    """Foreign text does not choose its own colours."""
    assert "[red]x[/red] :bomb:" in printed("[red]x[/red] :bomb:", terminal=True)


def test_a_typed_value_is_json() -> None:
    """An answer with a schema can be read by a program, any value included."""
    assert (
        text_of(Result(status=Status.COMPLETED, value={"cause": "é", "at": {1}}))
        == '{\n  "cause": "é",\n  "at": "{1}"\n}'
    )
    assert text_of(Result(status=Status.COMPLETED, value="plain")) == "plain"
    assert text_of(Result(status=Status.FAILED, partial="half")) == "half"
