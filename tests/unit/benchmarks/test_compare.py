"""Comparison of this tree and a commit: both are measured in turn, and compared within each round."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from benchmarks.base_checkout import Checkout, checkout_of
from benchmarks.catalogue import named
from benchmarks.compare import DEFAULT_NAMES, compare, main
from benchmarks.measurement import Figure, Measurement

IMPORTS = Measurement(
    name="import",
    title="An import",
    kind="import",
    arguments=("ramet",),
    figures=(Figure("s", "time", "s wall"), Figure("mb", "memory", "MB")),
)
#: Prints what the folder says for this run, and writes down that it ran.
SCRIPT = """
import json, pathlib, sys
root = pathlib.Path(__file__).parents[2]
with (root.parent / "order").open("a") as order:
    order.write(root.name + "\\n")
count = (root.parent / "order").read_text().split().count(root.name)
print("a line before")
print(json.dumps(json.loads((root / "figures").read_text())[count - 1]))
"""


def checkout(folder: Path, figures: str) -> Checkout:
    """Return sources whose measurement prints these figures, one after another."""
    script = folder / "benchmarks" / "measures" / "imports.py"
    script.parent.mkdir(parents=True)
    script.write_text(SCRIPT)
    (folder / "figures").write_text(figures)
    return Checkout(name=folder.name, root=folder, python=sys.executable)


def test_both_trees_are_measured_in_turn(tmp_path: Path) -> None:
    """The order changes from round to round, so that neither is always the first."""
    base = checkout(tmp_path / "base", '[{"s": 2.0, "mb": 0}, {"s": 4.0, "mb": 0}]')
    ours = checkout(tmp_path / "now", '[{"s": 1.0, "mb": 5}, {"s": 6.0, "mb": 5}]')
    comparison = compare([IMPORTS], base, ours, rounds=2)
    assert (tmp_path / "order").read_text().split() == ["base", "now", "now", "base"]
    assert comparison.pairs["import", "s"] == [(2.0, 1.0), (4.0, 6.0)]
    lines = [" ".join(line.split()) for line in comparison.lines([IMPORTS])]
    assert lines[1:] == [
        "import: An import",
        "3 3.5 1.00 (0.50 to 1.50) s wall time",
        "0 5 - (a base of 0) MB memory",
    ]


def test_a_failed_round_is_named_and_the_rest_goes_on(tmp_path: Path) -> None:
    """A pair of which one value is missing is no pair. A figure that the base does not have is left out."""
    base = checkout(tmp_path / "base", '[{"s": 2.0}]')
    ours = checkout(tmp_path / "now", '[{"s": 1.0, "mb": 5}, {"s": 1.0, "mb": 5}]')
    comparison = compare([IMPORTS], base, ours, rounds=2)
    assert comparison.pairs == {("import", "s"): [(2.0, 1.0)]}
    assert len(comparison.failures) == 1
    assert comparison.failures[0].startswith("import, base, round 2: status 1:")


@pytest.mark.parametrize("revision", ["no-such-branch", "--all", "HEAD:README.md", ""])
def test_a_revision_that_does_not_exist_is_refused_in_one_line(
    revision: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Text that looks like an option of git is no commit either."""
    with pytest.raises(RuntimeError, match="is no commit of this repository"):
        checkout_of(revision)
    if revision and not revision.startswith("-"):
        assert main([revision]) == 2
        assert capsys.readouterr().err.count("\n") == 1


def test_the_default_measurements_exist() -> None:
    """The names of the default measurements are those of the catalogue."""
    assert len(named(DEFAULT_NAMES)) == len(DEFAULT_NAMES)
