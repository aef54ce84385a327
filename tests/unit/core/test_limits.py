"""Tests of `core/limits.py`: whole numbers bound the shape of a tree, and wrong ones are refused by name."""

from __future__ import annotations

import math
from typing import Any

import pytest

from ramet.core.errors import InvalidValue
from ramet.core.limits import SpawnLimits

FIELDS = ("depth", "children", "runs", "running")


@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize("value", [-1, 1.0, math.nan, math.inf, True, False, "3", b"3", [3], 1e400, -(10**400)])
def test_a_limit_that_is_no_count_is_refused_by_name(field: str, value: Any) -> None:
    """No limit is converted silently."""
    with pytest.raises(InvalidValue) as refusal:
        SpawnLimits(**{field: value})

    assert refusal.value.field == field


@pytest.mark.parametrize("field", ["depth", "children", "runs"])
def test_only_running_may_be_unbounded(field: str) -> None:
    """A user who wants no limit on a tree's size must write a number."""
    with pytest.raises(InvalidValue, match=field):
        SpawnLimits(**{field: None})  # type: ignore[arg-type]  # the point of the test


@pytest.mark.parametrize("field", ["runs", "running"])
def test_a_tree_without_room_for_its_root_is_refused(field: str) -> None:
    """A tree of zero runs could never start."""
    with pytest.raises(InvalidValue, match=field):
        SpawnLimits(**{field: 0})  # type: ignore[arg-type]  # a str key, an int value


def test_a_tree_of_one_run_is_possible() -> None:
    """A depth and a number of children of zero allow no run below the root."""
    limits = SpawnLimits(depth=0, children=0, runs=1, running=1)

    assert (limits.depth, limits.children, limits.runs, limits.running) == (0, 0, 1, 1)


@pytest.mark.parametrize("value", ["", "Queue", "wait", None, True, 0, ["queue"]])
def test_when_full_accepts_two_words_only(value: Any) -> None:
    """A misspelt word is an error."""
    with pytest.raises(InvalidValue, match="when_full"):
        SpawnLimits(when_full=value)


def test_limits_are_immutable() -> None:
    """Checked limits stay checked."""
    limits = SpawnLimits()

    with pytest.raises(AttributeError):
        limits.depth = -1  # type: ignore[misc]  # the point of the test
