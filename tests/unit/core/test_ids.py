"""Tests of `core/ids.py`: names never alias each other, and are safe as file names."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ramet.core.errors import InvalidValue
from ramet.core.ids import ROOT_NAME, Path, RunId, checked_name, child_path, run_id, safe_name, step_id

BAD_NAMES = [
    "",
    ".",
    "..",
    ".hidden",
    "-rf",
    "_private",
    "a/b",
    "a\\b",
    "a b",
    "a\n",
    "a\0",
    "ä",
    "٣",
    "a" * 65,
    "a" * 1_000_000,
    "\ud800",
    None,
    7,
    True,
    b"a",
    ["a"],
]

names = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", fullmatch=True)


@given(name=names)
@example(name="2")
@example(name="a" * 64)
def test_a_good_name_is_unchanged(name: str) -> None:
    """An agent has exactly the name that its user wrote."""
    assert checked_name("name", name) == name


@pytest.mark.parametrize("name", BAD_NAMES, ids=lambda name: repr(name)[:20])
def test_a_bad_name_is_refused_by_its_field(name: object) -> None:
    """The refusal names the field, and no name is repaired silently."""
    with pytest.raises(InvalidValue) as refusal:
        checked_name("agents[3].name", name)

    assert refusal.value.field == "agents[3].name"


@given(text=st.text())
@example(text="../../etc/passwd")
@example(text="..")
@example(text="-rf /")
@example(text="\ud800\0")
@example(text="." * 300 + "name")
@example(text="a" * 47 + "...b")
def test_any_text_becomes_a_good_name(text: str) -> None:
    """A hostile name cannot leave its folder, be empty, or be too long."""
    name = safe_name(text)

    assert checked_name("name", name) == name


@given(text=st.text())
def test_making_a_name_safe_twice_changes_nothing(text: str) -> None:
    """A lookup by the requested name finds the run with the safe name."""
    once = safe_name(text)

    assert safe_name(once) == once


def test_a_name_with_nothing_usable_becomes_the_fallback() -> None:
    """`safe_name` always returns a name."""
    assert safe_name("调查员", "explorer") == "explorer"


@given(parents=st.tuples(names, names), children=st.tuples(names, names))
def test_runs_of_different_parents_or_names_have_different_paths(
    parents: tuple[str, str], children: tuple[str, str]
) -> None:
    """Two runs share a path only if parent and name are equal."""
    first, second = (
        child_path(child_path(Path(ROOT_NAME), parent), child) for parent, child in zip(parents, children, strict=True)
    )

    same = (parents[0], children[0]) == (parents[1], children[1])

    assert (first == second) == same


@pytest.mark.parametrize("name", ["", "a/b", "..", "../main"])
def test_a_name_that_would_alias_another_path_is_refused(name: str) -> None:
    """`main` + `a/b` would alias the child `b` of `main/a`."""
    with pytest.raises(InvalidValue):
        child_path(Path(ROOT_NAME), name)


@given(entropy=st.tuples(st.binary(min_size=8, max_size=8), st.binary(min_size=8, max_size=8)))
def test_run_ids_with_different_entropy_differ(entropy: tuple[bytes, bytes]) -> None:
    """Every bit of entropy is part of the id."""
    first, second = map(run_id, entropy)

    assert (first == second) == (entropy[0] == entropy[1])


@given(runs=st.tuples(st.binary(min_size=8, max_size=8), st.binary(min_size=8, max_size=8)),
       steps=st.tuples(st.integers(0, 10**6), st.integers(0, 10**6)))  # fmt: skip
def test_step_ids_of_different_steps_differ(runs: tuple[bytes, bytes], steps: tuple[int, int]) -> None:
    """The key that makes an effect happen once never belongs to two steps."""
    first, second = (step_id(run_id(run), number) for run, number in zip(runs, steps, strict=True))

    assert (first == second) == ((runs[0], steps[0]) == (runs[1], steps[1]))


def test_a_step_id_names_its_run() -> None:
    """A person can find the run of a step in a log."""
    assert step_id(RunId("run-00"), 3) == "run-00:3"
