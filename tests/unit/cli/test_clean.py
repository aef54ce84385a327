"""Foreign text made safe to print."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramet.cli.render.sanitize import one_line, sanitize

ATTACKS = {
    "colour": ("\x1b[31mred\x1b[0m", "red"),
    "clear the screen": ("a\x1b[2J\x1b[Hb", "ab"),
    "private mode": ("\x1b[?1049hx\x1b[?25l", "x"),
    "8-bit introducer": ("\x9b31mred", "red"),
    "window title": ("\x1b]0;owned\x07x", "x"),
    "hyperlink": ("\x1b]8;;http://evil\x1b\\click\x1b]8;;\x1b\\", "click"),
    "clipboard": ("\x1b]52;c;cm0gLXJm\x07x", "x"),
    "device control": ("\x1bP+q544e\x1b\\x", "x"),
    "a string with another one in it": ("\x9d0;a\x90b\x9cx", "0;ax"),
    "a string without an end keeps what follows": ("\x1b]0;all of this", "0;all of this"),
    "reset": ("\x1bcx", "x"),
    "a nested introducer": ("\x1b\x1b[31mx", "x"),
    "overprinting": ("good\rbad", "good\nbad"),
    "backspace": ("rm\x08\x08ls", "rmls"),
    "text turned round": ("\u202egnp.exe", "gnp.exe"),
    "text that only machines see": ("x\U000e0061\U000e0062", "x"),
    "zero width": ("pass\u200bword", "password"),
    "half a character": ("\ud83d", "\ufffd"),
    "null": ("a\x00b", "ab"),
    "tab": ("a\tb", "a    b"),
    "line separator": ("a\u2028b", "a\nb"),
}


@pytest.mark.parametrize(("attack", "expected"), ATTACKS.values(), ids=ATTACKS)
def test_terminal_sequences_are_removed(attack: str, expected: str) -> None:
    """The words of hostile text stay."""
    assert sanitize(attack) == expected


@given(st.text(st.characters(codec=None), max_size=300))
def test_no_control_character_is_left(text: str) -> None:
    """Newlines stay, and the result can be encoded."""
    result = sanitize(text)

    assert not [each for each in result if unicodedata.category(each) in ("Cc", "Cs") and each != "\n"]
    result.encode()


@given(st.text(st.sampled_from("ab\x1b[]\\;0m\x07\r\n\t\x9b\x9d\u202e"), max_size=60))
def test_cleaning_twice_equals_cleaning_once(text: str) -> None:
    """Removing one sequence does not form another."""
    assert sanitize(sanitize(text)) == sanitize(text)


def test_many_unclosed_sequences_are_cleaned_in_linear_time() -> None:
    """The test would hang otherwise."""
    assert sanitize("\x1b]" * 500_000) == ""
    assert sanitize("\x90" * 500_000) == ""
    assert len(sanitize("\x1b[" + "1" * 1_000_000)) >= 1_000_000


def test_one_line_joins_lines_and_marks_a_cut() -> None:
    """Newlines become spaces, and a cut end becomes an ellipsis."""
    assert one_line(" a\n\n b\tc ", 10) == "a b c"
    assert one_line("x" * 50, 10) == "x" * 9 + "…"
    assert one_line("word " * 50, 11) == "word word…"
