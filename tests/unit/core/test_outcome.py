"""Tests of `core/outcome.py`: a closed set of statuses, and one type of result."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs
from pydantic import BaseModel

from ramet.core.outcome import EXIT_CODES, ErrorInfo, Result, Status, Usage

counts = st.integers(0, 10**9)
usages = st.builds(
    Usage,
    model_calls=counts,
    tool_calls=counts,
    agents=counts,
    input_tokens=counts,
    output_tokens=counts,
    cache_read_tokens=counts,
    usd=st.integers(0, 10**6).map(lambda cents: cents / 64),  # exact in binary, so that sums are
    estimated=st.booleans(),
)


def test_every_status_has_an_exit_code_of_its_own() -> None:
    """A script can distinguish every status."""
    assert set(EXIT_CODES) == set(Status)
    assert len(set(EXIT_CODES.values())) == len(Status)


def test_only_a_completion_exits_with_zero() -> None:
    """No other status looks like success to a shell."""
    assert [status for status in Status if Result(status=status).exit_code == 0] == [Status.COMPLETED]


def test_exit_codes_fit_into_a_shell() -> None:
    """Codes are from 0 to 255, and 2 stays free for usage errors."""
    assert all(0 <= code <= 255 and code != 2 for code in EXIT_CODES.values())


def test_the_statuses_are_the_published_ones() -> None:
    """The contract of results is closed: another status needs a decision."""
    published = "completed failed cancelled timeout budget_exhausted oom crashed lost needs_input paused"

    assert [str(status) for status in Status] == published.split()


@given(first=usages, second=usages, third=usages)
def test_usage_adds_up_in_any_order(first: Usage, second: Usage, third: Usage) -> None:
    """The usage of a subtree does not depend on the order of ends."""
    assert first + second == second + first
    assert (first + second) + third == first + (second + third)


@given(usage=usages)
def test_no_usage_adds_nothing(usage: Usage) -> None:
    """A child that did nothing costs nothing."""
    assert usage + Usage() == usage


@given(first=usages, second=usages)
def test_every_part_of_usage_is_added(first: Usage, second: Usage) -> None:
    """A sum includes every field, and one estimate makes the sum an estimate."""
    total = first + second

    for field in Usage.__struct_fields__:
        parts = getattr(first, field), getattr(second, field)
        assert getattr(total, field) == (any(parts) if field == "estimated" else sum(parts)), field


@given(first=usages, second=usages)
def test_a_difference_is_what_was_used_since(first: Usage, second: Usage) -> None:
    """Every field of the earlier usage is subtracted, and what was estimated before stays an estimate."""
    total = first + second

    assert total - first == structs.replace(second, estimated=total.estimated)


def test_tokens_are_input_and_output() -> None:
    """Cache reads are part of the input, and are not counted twice."""
    assert Usage(input_tokens=10, cache_read_tokens=8, output_tokens=5).tokens == 15


class Line(BaseModel):
    """A line of a file."""

    number: int


@dataclass(frozen=True)
class Finding:
    """A place in a file."""

    path: Path
    line: Line


ENDLESS: list[object] = []
ENDLESS.append(ENDLESS)
FINDING = '{"path":"api.py","line":{"number":3}}'


@pytest.mark.parametrize(
    ("result", "text"),
    [
        (Result(status=Status.COMPLETED, value="found it"), "found it"),
        (Result(status=Status.COMPLETED, value=""), ""),
        (Result(status=Status.COMPLETED, value={"a": ["é", None, {1}]}), '{"a":["é",null,[1]]}'),
        (Result(status=Status.COMPLETED, value=Finding(Path("api.py"), Line(number=3))), FINDING),
        (Result(status=Status.COMPLETED, value=["\ud83d", {1: "é"}]), r'["\ud83d",{"1":"\u00e9"}]'),
        (Result(status=Status.COMPLETED, value={(1, 2): object}), """{"(1, 2)":"<class 'object'>"}"""),
        (Result(status=Status.COMPLETED, value=ENDLESS), "[[...]]"),
        (Result(status=Status.COMPLETED, value=0), "0"),
        (Result(status=Status.CANCELLED, partial="half of it"), "half of it"),
        (Result(status=Status.FAILED, error=ErrorInfo(type="Bug", message="no")), ""),
    ],
    ids=[
        "text",
        "empty",
        "data",
        "dataclass and model",
        "half of an emoji",
        "no data",
        "endless",
        "zero",
        "partial",
        "nothing",
    ],
)
def test_the_text_of_a_result_is_its_value_or_partial_findings(result: Result, text: str) -> None:
    """A reader sees partial findings, and a falsy value counts as a value."""
    assert result.text == text
