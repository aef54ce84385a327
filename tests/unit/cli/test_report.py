"""The report of an ended tree."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from ramet.cli.render.console import console
from ramet.cli.render.report import print_result, print_status
from ramet.cli.render.tree_model import TreeModel
from ramet.core.events import ForwardRefused, RunEnded
from ramet.core.outcome import ErrorInfo, Result, Status, Usage
from tests.unit.cli.golden import assert_golden
from tests.unit.cli.story import TreeEventWriter, active_story, at, cancelled_story


def root_result(writer: TreeEventWriter) -> Result:
    """Return the result of the story's root."""
    return next(each.result for each in reversed(writer.events) if isinstance(each, RunEnded) and each.path == "main")


def completed_story() -> TreeEventWriter:
    """Return a story of a tree that found an answer."""
    writer = active_story()
    writer.add_end(
        "main/sources", 2.8, Status.COMPLETED, "No retry.", Usage(model_calls=2, tool_calls=3, input_tokens=3100)
    )
    own_usage = Usage(model_calls=2, tool_calls=2, agents=2, input_tokens=2900)
    usage_below = Usage(model_calls=3, tool_calls=4, input_tokens=4000)
    writer.add_end(
        "main", 3.2, Status.COMPLETED, "The **timeout** is too short: `config.py:3`.", own_usage, below=usage_below
    )
    return writer


def page(writer: TreeEventWriter, result: Result | None = None, *, width: int = 100) -> str:
    """Return stdout and stderr of an end, as pipes get them."""
    out, err, picture = io.StringIO(), io.StringIO(), TreeModel()
    for event in writer.events:
        picture.apply(event)
    result = result or root_result(writer)
    print_result(console(out), result, picture)
    print_status(console(err, width=width), result, picture, now=at(3.2), transcripts=Path("/data/t-1"))
    return f"stdout\n{out.getvalue()}stderr\n{err.getvalue()}"


def test_ends_are_reported_as_approved() -> None:
    """The ends are an answer, a stop with findings, and a limit of a child."""
    out_of_budget = Result(
        status=Status.BUDGET_EXHAUSTED,
        partial="I had read two files.",
        error=ErrorInfo(type="BudgetExceeded", message="budget of main: tokens asked 900, left 100", scope="main"),
        usage_subtree=Usage(model_calls=12, tool_calls=40, input_tokens=123_456, usd=0.71, estimated=True),
    )
    pages = [
        page(completed_story()),
        page(completed_story(), width=60),
        page(cancelled_story()),
        page(active_story(), out_of_budget),
    ]

    assert_golden("cli/ends.txt", "\n".join(pages))


@pytest.mark.parametrize("status", list(Status))
def test_every_status_has_a_line(status: Status) -> None:
    """No status is left without a text."""
    writer = TreeEventWriter()
    writer.add_spawn("main", 0)

    assert len(page(writer, Result(status=status, value="x")).splitlines()) >= 4


def test_an_end_before_the_first_event_is_reported() -> None:
    """The tree never started."""
    text = page(TreeEventWriter(), Result(status=Status.FAILED, error=ErrorInfo(type="X", message="no\x1b[2J luck")))

    assert "failed: no luck" in text


def test_a_refused_request_of_a_program_is_in_the_last_line() -> None:
    """Each once, and at most five."""
    writer = active_story()
    for number in (1, 1, 2, 3, 4, 5, 6):
        writer.add(ForwardRefused, "main", 2.9, model=f"m{number}", by="provider" if number < 6 else "host")

    text = page(writer, Result(status=Status.FAILED))

    assert "429 of the provider of m1 · 429 of the provider of m2" in text
    assert (text.count(" m1"), text.count(" m6")) == (1, 0)


def test_a_long_finding_is_cut_and_says_so() -> None:
    """The whole text is in the transcript."""
    writer = cancelled_story()
    writer.add_end("main/huge", 3, Status.COMPLETED, "line\n" * 10_000, Usage())

    text = page(writer)

    assert len(text) < 10_000
    assert "… (the rest is in the transcript)" in text
