"""Values of command line options."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from ramet.cli.values import parse_folder, parse_int, parse_memory, parse_name, parse_number


@pytest.mark.parametrize(
    "text", ["", "x", "-1", "1.5", "nan", "inf", "1e3", "9" * 5000, str(2**53 + 1), "0x10", "\x1b[2J"]
)
def test_an_invalid_whole_number_is_refused(text: str) -> None:
    """The error says in one short line what is accepted."""
    with pytest.raises(argparse.ArgumentTypeError, match=r"expected a whole number from 0 to 2\^53") as refusal:
        parse_int(0)(text)

    assert len(str(refusal.value)) < 200
    assert str(refusal.value).isprintable()


def test_a_minimum_is_enforced() -> None:
    """An option from 1 refuses 0."""
    assert parse_int(1)("1") == 1
    with pytest.raises(argparse.ArgumentTypeError):
        parse_int(1)("0")


@pytest.mark.parametrize("text", ["", "x", "-0.1", "nan", "inf", "-inf", "1e999", "$5"])
def test_an_invalid_amount_is_refused(text: str) -> None:
    """NaN and infinity are not limits."""
    with pytest.raises(argparse.ArgumentTypeError, match=r"expected a number from 0 to 2\^53"):
        parse_number(text)


def test_amounts_are_numbers_from_zero() -> None:
    """Zero is accepted."""
    assert [parse_number(text) for text in ("0", "0.5", "1e2", "7")] == [0, 0.5, 100, 7]


def test_a_folder_must_exist(tmp_path: Path) -> None:
    """A file, a missing folder and an unusable name are refused."""
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to(tmp_path)

    assert parse_folder(str(tmp_path / "link")) == tmp_path.resolve()
    for text, reason in {
        str(tmp_path / "none"): "does not exist",
        str(tmp_path / "file"): "is not a folder",
        "\0": "is not a usable name|does not exist",
        "x" * 100_000: "is not a usable name|does not exist",
        "~nobody-of-that-name/x": "is not a usable name|does not exist",
    }.items():
        with pytest.raises(argparse.ArgumentTypeError, match=reason):
            parse_folder(text)


def test_an_empty_name_is_refused() -> None:
    """Blanks count as empty."""
    assert parse_name("x") == "x"
    with pytest.raises(argparse.ArgumentTypeError):
        parse_name("  ")


def test_memory_is_given_in_mebibytes_or_gibibytes() -> None:
    assert [parse_memory(text) for text in ("512M", "2G", "1g")] == [512, 2048, 1024]


@pytest.mark.parametrize("text", ["", "2", "G", "0M", "-1G", "1.5G", "2T", "2GB", "2 G\n"])
def test_an_invalid_amount_of_memory_is_refused(text: str) -> None:
    """A number without a unit is no amount: it might be meant in bytes."""
    with pytest.raises(argparse.ArgumentTypeError, match="expected an amount of memory such as 512M or 2G"):
        parse_memory(text)
