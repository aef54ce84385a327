"""Numbers in readable form."""

from __future__ import annotations

import pytest

from ramet.cli.render import formatting


@pytest.mark.parametrize(
    ("count", "expected"),
    [(0, "0"), (999, "999"), (1000, "1.0k"), (9_949, "9.9k"), (9_950, "10k"), (999_499, "999k"), (999_500, "1.0M")],
)
def test_tokens_have_few_digits_and_a_unit(count: int, expected: str) -> None:
    """Two or three digits are shown, without a jump between units."""
    assert formatting.tokens(count) == expected


@pytest.mark.parametrize(
    ("usd", "expected"),
    [(0, "$0.00"), (0.0000001, "<$0.00001"), (0.00042, "$0.00042"), (0.0042, "$0.0042"), (0.042, "$0.042"),
     (0.0949, "$0.095"), (0.1, "$0.10"), (12.4, "$12.40")],
)  # fmt: skip
def test_money_keeps_two_significant_digits(usd: float, expected: str) -> None:
    """No paid amount looks like zero."""
    assert formatting.money(usd) == expected


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [(-1, "0.0s"), (0.04, "0.0s"), (9.94, "9.9s"), (9.96, "10s"), (59.6, "1m00s"), (125, "2m05s"), (3780, "1h03m")],
)
def test_a_duration_is_rounded_by_its_size(seconds: float, expected: str) -> None:
    """A clock that went back shows zero."""
    assert formatting.duration(seconds) == expected


def test_a_count_of_one_is_singular() -> None:
    """Other counts are plural."""
    assert [formatting.count(n, "agent") for n in (0, 1, 2)] == ["0 agents", "1 agent", "2 agents"]
