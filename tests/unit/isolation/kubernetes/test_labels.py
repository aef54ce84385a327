"""Tests of labels: which the API accepts, and which are reserved for the system."""

from __future__ import annotations

import re

import pytest

from ramet.core.errors import InvalidValue
from ramet.isolation.kubernetes.api import labels
from ramet.isolation.kubernetes.api.labels import PodLabels

_LEGAL = re.compile(r"(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?\Z")  # as the API's own validation has it


@pytest.mark.parametrize(
    "word", ["run-0123456789abcdef", "a" * 64, "-a", "a-", "ä", "a b", "a/b", "", "main/searcher/2", "a\n", "x" * 1000]
)
def test_every_id_has_a_valid_label_value(word: str) -> None:
    """A valid id stays unchanged, and any other becomes a hash."""
    value = labels.value_of(word)

    assert _LEGAL.match(value)
    assert len(value) <= 63
    assert value == word or value.startswith("sha256-")
    assert (value == word) == (len(word) <= 63 and bool(_LEGAL.match(word)))


def test_long_ids_have_different_label_values() -> None:
    """Two ids that begin alike have two values."""
    assert labels.value_of("a" * 64) != labels.value_of("a" * 65)


def test_labels_of_a_run_name_its_tree_team_and_owner() -> None:
    """Annotations have the full names, and unknown values have no label."""
    about = PodLabels(tree="run-1", team="a team", path="main/searcher/2")

    marked = labels.of_run("run-2", about, place="p", owner="o")

    assert marked[labels.RUN] == "run-2"
    assert marked[labels.TREE] == "run-1"
    assert marked[labels.TEAM] == labels.value_of("a team")
    assert (marked[labels.PLACE], marked[labels.OWNER], marked[labels.MANAGED]) == ("p", "o", "ramet")
    assert labels.in_full("run-2", about)[labels.TEAM] == "a team"
    assert labels.in_full("run-2", about)[labels.NAME] == "main/searcher/2"
    assert labels.TEAM not in labels.of_run("run-2", PodLabels(), place="p", owner="o")


@pytest.mark.parametrize("key", ["app", "example.org/app", "a.b-c/d_e.f"])
def test_labels_of_users_are_accepted(key: str) -> None:
    assert labels.check_labels("user_labels", {key: "value"}) == {key: "value"}


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("ramet.dev/owner", "another"),
        ("sub.ramet.dev/x", "y"),
        ("kubernetes.io/x", "y"),
        ("app.kubernetes.io/managed-by", "me"),
        ("node.k8s.io/x", "y"),
        ("", "x"),
        ("/a", "x"),
        ("a/", "x"),
        ("a/b/c", "x"),
        ("A.org/b", "x"),
        ("a" * 64, "x"),
        ("a", "x" * 64),
        ("a", "x y"),
        ("a", 3),
    ],
)
def test_system_labels_and_invalid_labels_are_refused(key: str, value: object) -> None:
    """The error names the setting before any request to a cluster."""
    with pytest.raises(InvalidValue) as refusal:
        labels.check_labels("user_labels", {key: value})  # type: ignore[dict-item]  # as it may come from a file

    assert "user_labels" in refusal.value.field
