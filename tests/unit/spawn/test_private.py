"""Tests of masking: the time to mask a guest's text does not depend on the text behind the cut."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest

from ramet.core.outcome import ErrorInfo
from ramet.spawn.masking import masked_error, masked_text
from ramet.spawn.run import Run

SECRET = "correct horse battery"


@pytest.fixture
def run() -> Any:
    """Return a run with one environment variable."""
    grant = SimpleNamespace(secrets={}, env_vars={"GREETING": SECRET})
    return SimpleNamespace(grants=lambda: [grant])


@pytest.mark.parametrize("field", ["grant", "step_ceiling"])
def test_values_of_runs_far_above_are_masked(run: Any, field: str) -> None:
    """The grant of any run above counts, also of one that was given another grant when it was resumed."""
    (grant,) = run.grants()
    top = make_run(None, **{field: grant})
    below = make_run(make_run(top))

    assert masked_text(below, f"it is {SECRET}") == "it is ***"
    setattr(top, field, SimpleNamespace(secrets={"TOKEN": "another secret"}, env_vars={}))
    assert masked_text(below, "it is another secret") == "it is ***"
    assert list(make_run(make_run(None)).grants()) == []


def test_values_of_the_run_that_a_resumed_run_is_moved_below_are_masked(run: Any) -> None:
    """A run whose parent is not restored is built without one, and then moved below the nearest run above."""
    (grant,) = run.grants()
    resumed = make_run(None)
    resumed.move_below(make_run(make_run(None, grant=grant)))

    assert masked_text(resumed, f"it is {SECRET}") == "it is ***"
    resumed.move_below(None)
    assert list(resumed.grants()) == []


def make_run(parent: Run | None, **fields: Any) -> Run:
    """Return a run of which only its grants and its place in the tree are needed."""
    unused: Any = None
    return Run(
        info=unused,
        name="a",
        agent=unused,
        parent=parent,
        request=unused,
        context=unused,
        admission_slot=unused,
        max_turns=1,
        limits=unused,
        activity=unused,
        rights=(),
        **fields,
    )


def test_a_value_is_masked_before_the_text_is_cut(run: Any) -> None:
    """A value that the cut would divide is masked, too."""
    assert masked_text(run, f"it is {SECRET}", 100) == "it is ***"
    assert masked_text(run, f"it is {SECRET}", 12) == "it is ***"
    assert masked_error(run, ErrorInfo(type="E", message=f"{SECRET}!"), 100) == ErrorInfo(type="E", message="***!")


def test_text_far_behind_the_cut_takes_no_time_to_mask(run: Any) -> None:
    """A long run of backslashes, the slowest text to search, costs no time of the host's event loop."""

    def least(length: int) -> float:
        times = []
        for _ in range(5):
            start_time = time.thread_time()
            masked_text(run, "\\" * length, 2_000)
            times.append(time.thread_time() - start_time)
        return min(times)

    assert least(256 * 1024) < 5 * least(8 * 1024)


def test_many_lines_in_variables_of_a_child_take_no_time_to_mask(run: Any) -> None:
    """A guest chooses the variables of its children. What its own run was given stays masked."""
    (own,) = run.grants()
    own.env_vars["KEY"] = "\n".join(f"line-{number:03d}-of-a-key" for number in range(50))
    lines = "\n".join(f"{number:09x}" for number in range(13_000))
    child = make_run(make_run(None, grant=own), grant=SimpleNamespace(secrets={}, env_vars={"KEY": lines}))
    start_s = time.thread_time()

    assert masked_text(child, f"{lines} {'y' * 50_000}, line-049-of-a-key, {SECRET}") == f"*** {'y' * 50_000}, ***, ***"
    assert time.thread_time() - start_s < 1.0
