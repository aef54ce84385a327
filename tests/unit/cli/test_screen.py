"""The tree drawn as lines of text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.text import Text

from ramet.cli.render.tree_model import TreeModel
from ramet.cli.render.tree_text import ASCII, UNICODE, Glyphs, _truncate, draw
from ramet.core.outcome import Status, Usage
from tests.unit.cli.golden import assert_golden
from tests.unit.cli.story import TreeEventWriter, active_story, at, cancelled_story, hostile_story

STORIES = {
    "working": active_story(),
    "paid": active_story(0.013),
    "cut-short": cancelled_story(),
    "hostile": hostile_story(),
}


def lines(
    writer: TreeEventWriter, *, width: int = 80, height: int = 24, glyphs: Glyphs = UNICODE, tick: int | None = 0
) -> list[str]:
    """Return the screen of a story at 3.2 seconds."""
    picture = TreeModel()
    for event in writer.events:
        picture.apply(event)
    return [line.plain for line in draw(picture, now=at(3.2), width=width, height=height, glyphs=glyphs, tick=tick)]


@pytest.mark.parametrize("name", STORIES)
def test_the_screen_equals_the_approved_one(name: str) -> None:
    """Each story is drawn at four widths, and in ASCII."""
    pages = [f"width {width}\n" + "\n".join(lines(STORIES[name], width=width)) for width in (120, 80, 50, 30)]
    pages.append("ascii\n" + "\n".join(lines(STORIES[name], glyphs=ASCII)))

    assert_golden(f"cli/{name}.txt", "\n\n".join(pages) + "\n")


@given(st.sampled_from(sorted(STORIES)), st.integers(1, 140), st.integers(1, 30), st.sampled_from([UNICODE, ASCII]))
def test_a_screen_never_overflows(name: str, width: int, height: int, glyphs: Glyphs) -> None:
    """No line is wider than the terminal, and the height is kept from five lines on."""
    drawn = lines(STORIES[name], width=width, height=height, glyphs=glyphs)

    assert max(len(line) for line in drawn) <= width
    assert len(drawn) <= max(height, 5)


def test_ascii_glyphs_are_ascii() -> None:
    """A terminal without UTF-8 gets only ASCII from us."""
    assert all(line.isascii() for line in lines(STORIES["working"], glyphs=ASCII))


def test_a_text_that_is_cut_twice_has_one_ellipsis() -> None:
    """The arguments of a call are cut before its line is: the last character tells both."""
    assert [_truncate(Text("Grep err|e… in logs"), width, "…").plain for width in (12, 11, 30)] == [
        "Grep err|e…", "Grep err|e…", "Grep err|e… in logs",
    ]  # fmt: skip


def test_wide_characters_keep_the_columns() -> None:
    """Characters of two cells count as two."""
    writer = TreeEventWriter()
    writer.add_spawn("main", 0)
    writer.add_spawn("main/調査", 0)
    writer.add_tool_start("main/調査", 0, "c", "Grep", pattern="エラー" * 40)

    assert all(cells <= 60 for cells in map(_cells, lines(writer, width=60)))


def many_agents(agents: int, finished_count: int) -> TreeEventWriter:
    """Return a story of a root with many children, the first of which have finished in order."""
    writer = TreeEventWriter()
    writer.add_spawn("main", 0)
    for number in range(agents):
        writer.add_spawn(f"main/a{number}", 0)
    for number in range(finished_count):
        writer.add_end(f"main/a{number}", 1 + number / 1000, Status.COMPLETED, "ok", Usage())
    return writer


def test_a_large_tree_shows_active_and_latest_runs() -> None:
    """The other runs are counted."""
    shown_lines = lines(many_agents(50, 45), height=12)

    assert [line.split()[2] for line in shown_lines[1:9]] == ["a42", "a43", "a44", "a45", "a46", "a47", "a48", "a49"]
    assert shown_lines[9] == "… 42 more: 42 done"


def test_active_runs_beyond_the_screen_are_counted() -> None:
    """The last line gives their number."""
    assert lines(many_agents(50, 10), height=12)[9] == "… 42 more: 10 done, 32 active"


def _cells(text: str) -> int:
    from rich.cells import cell_len

    return cell_len(text)
