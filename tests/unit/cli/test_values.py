"""Values of options."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from ramet.cli.values import parse_folder, parse_int, parse_name, parse_number


@pytest.mark.parametrize(
    "text", ["", "x", "-1", "1.5", "nan", "inf", "1e3", "9" * 5000, str(2**53 + 1), "0x10", "\x1b[2J"]
)
def test_what_is_no_whole_number_is_refused(text: str) -> None:
    """And the refusal says what would be accepted, in one short line."""
    with pytest.raises(argparse.ArgumentTypeError, match=r"expected a whole number from 0 to 2\^53") as refusal:
        parse_int(0)(text)

    assert len(str(refusal.value)) < 200
    assert str(refusal.value).isprintable()


def test_a_least_is_kept() -> None:
    """One from 1 does not take 0."""
    assert parse_int(1)("1") == 1
    with pytest.raises(argparse.ArgumentTypeError):
        parse_int(1)("0")


@pytest.mark.parametrize("text", ["", "x", "-0.1", "nan", "inf", "-inf", "1e999", "$5"])
def test_what_is_no_amount_is_refused(text: str) -> None:
    """NaN and infinity are no limits."""
    with pytest.raises(argparse.ArgumentTypeError, match=r"expected a number from 0 to 2\^53"):
        parse_number(text)


def test_amounts() -> None:
    """Zero is one."""
    assert [parse_number(text) for text in ("0", "0.5", "1e2", "7")] == [0, 0.5, 100, 7]


def test_folders(tmp_path: Path) -> None:
    """Existing, a folder, and usable as a name at all."""
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to(tmp_path)

    assert parse_folder(str(tmp_path / "link")) == tmp_path.resolve()
    for text, why in {
        str(tmp_path / "none"): "does not exist",
        str(tmp_path / "file"): "is not a folder",
        "\0": "is not a usable name|does not exist",
        "x" * 100_000: "is not a usable name|does not exist",
        "~nobody-of-that-name/x": "is not a usable name|does not exist",
    }.items():
        with pytest.raises(argparse.ArgumentTypeError, match=why):
            parse_folder(text)


def test_names() -> None:
    """An empty name is none."""
    assert parse_name("x") == "x"
    with pytest.raises(argparse.ArgumentTypeError):
        parse_name("  ")
