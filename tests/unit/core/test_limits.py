"""core/limits.py: the shape of a tree is bounded by whole numbers, refused by name."""

from __future__ import annotations

import math
from typing import Any

import pytest

from ramet.core.errors import InvalidValue
from ramet.core.limits import SpawnLimits

FIELDS = ("depth", "children", "runs", "running")


@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize("value", [-1, 1.0, math.nan, math.inf, True, False, "3", b"3", [3], 1e400, -(10**400)])
def test_what_is_no_count_is_refused_by_name(field: str, value: Any) -> None:
    """A bound that would silently mean something else, or nothing, never comes to be."""
    with pytest.raises(InvalidValue) as refusal:
        SpawnLimits(**{field: value})

    assert refusal.value.field == field


@pytest.mark.parametrize("field", ["depth", "children", "runs"])
def test_only_running_may_be_unbounded(field: str) -> None:
    """Whoever wants no bound on a tree's size has to write a number."""
    with pytest.raises(InvalidValue, match=field):
        SpawnLimits(**{field: None})  # type: ignore[arg-type]  # the point of the test


@pytest.mark.parametrize("field", ["runs", "running"])
def test_a_tree_without_room_for_its_root_is_refused(field: str) -> None:
    """Zero runs would be a tree that can never begin."""
    with pytest.raises(InvalidValue, match=field):
        SpawnLimits(**{field: 0})  # type: ignore[arg-type]  # a str key, an int value


def test_a_tree_of_one_run_is_possible() -> None:
    """Depth and children of zero mean: nobody is ever born below the root."""
    limits = SpawnLimits(depth=0, children=0, runs=1, running=1)

    assert (limits.depth, limits.children, limits.runs, limits.running) == (0, 0, 1, 1)


@pytest.mark.parametrize("value", ["", "Queue", "wait", None, True, 0, ["queue"]])
def test_what_to_do_when_full_is_one_of_two_words(value: Any) -> None:
    """A misspelt word is an error, not one of the two."""
    with pytest.raises(InvalidValue, match="when_full"):
        SpawnLimits(when_full=value)


def test_limits_cannot_be_changed_afterwards() -> None:
    """What was checked stays checked."""
    limits = SpawnLimits()

    with pytest.raises(AttributeError):
        limits.depth = -1  # type: ignore[misc]  # the point of the test
