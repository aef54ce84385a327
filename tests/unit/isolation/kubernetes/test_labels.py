"""Labels: what the API takes, and what is the system's."""

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
def test_every_word_has_a_value(word: str) -> None:
    """Whatever an id is, its label is one that the API takes; what can be read stays as it is."""
    value = labels.value_of(word)

    assert _LEGAL.match(value)
    assert len(value) <= 63
    assert value == word or value.startswith("sha256-")
    assert (value == word) == (len(word) <= 63 and bool(_LEGAL.match(word)))


def test_long_words_keep_apart() -> None:
    """Two ids that begin alike have two values."""
    assert labels.value_of("a" * 64) != labels.value_of("a" * 65)


def test_a_runs_labels_say_whose_it_is() -> None:
    """And its annotations the words in full; what is not known is not there."""
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
def test_a_user_has_labels_of_their_own(key: str) -> None:
    assert labels.checked("user_labels", {key: "value"}) == {key: "value"}


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
def test_what_is_the_systems_or_no_label_is_refused(key: str, value: object) -> None:
    """By its name, and before anything is asked of a cluster."""
    with pytest.raises(InvalidValue) as refusal:
        labels.checked("user_labels", {key: value})  # type: ignore[dict-item]  # as it may come from a file

    assert "user_labels" in refusal.value.field
