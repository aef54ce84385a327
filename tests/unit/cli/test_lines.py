"""`--json`: a tree as lines."""

from __future__ import annotations

import io
import json

import pytest

from ramet.cli.render.views import JsonView
from ramet.core.events import RunEnded, ToolStarted, decode, encode
from ramet.core.outcome import Status, Usage
from tests.unit.cli.story import TreeEventWriter, cancelled_story, hostile_story


def test_every_event_is_one_line_that_decodes_to_itself() -> None:
    """Nothing is lost or added, even for hostile text."""
    for writer in (cancelled_story(), hostile_story()):
        out = io.BytesIO()
        view = JsonView(out)
        for event in writer.events:
            view.show_event(event)
        view.finish()

        assert [decode(line) for line in out.getvalue().splitlines()] == writer.events


def test_the_end_of_the_root_comes_last() -> None:
    """A detached child that ends later comes before."""
    writer = TreeEventWriter()
    writer.add_spawn("main", 0)
    writer.add_spawn("main/late", 0)
    writer.add_end("main", 1, Status.COMPLETED, "answer", Usage())
    writer.add_end("main/late", 2, Status.COMPLETED, "late", Usage())
    out = io.BytesIO()
    view = JsonView(out)
    for event in writer.events:
        view.show_event(event)
    view.finish()

    assert [event.path for event in map(decode, out.getvalue().splitlines()) if isinstance(event, RunEnded)] == [
        "main/late",
        "main",
    ]


def test_both_ends_of_a_root_are_printed() -> None:
    """Mail can wake a root, which then ends again."""
    writer = TreeEventWriter()
    writer.add_spawn("main", 0)
    writer.add_end("main", 1, Status.COMPLETED, "first", Usage())
    writer.add_end("main", 2, Status.COMPLETED, "second", Usage())
    out = io.BytesIO()
    view = JsonView(out)
    for event in writer.events:
        view.show_event(event)
    view.finish()

    assert [decode(line) for line in out.getvalue().splitlines()] == writer.events


def test_an_event_that_is_not_json_becomes_a_notice() -> None:
    """A tool's arguments cannot end the stream."""
    writer = TreeEventWriter()
    writer.add_spawn("main", 0)
    writer.add_tool_start("main", 0, "c", "odd", value=object())
    out = io.BytesIO()
    for event in writer.events:
        JsonView(out).show_event(event)

    last = json.loads(out.getvalue().splitlines()[-1])
    assert (last["type"], last["path"], last["call_id"]) == ("notice", "main", "c")
    assert "ToolStarted" in last["text"]


def test_lines_are_utf8_in_every_locale() -> None:
    """The bytes are those of the encoder."""
    writer = TreeEventWriter()
    writer.add_tool_start("main", 0, "c", "Grep", pattern="é漢")
    out = io.BytesIO()
    JsonView(out).show_event(writer.events[0])

    assert out.getvalue() == encode(writer.events[0]) + b"\n"
    assert isinstance(writer.events[0], ToolStarted)


async def test_no_other_output_reaches_stdout(capsys: pytest.CaptureFixture[str]) -> None:
    """Output of tools and libraries goes to stderr."""
    async with JsonView(io.BytesIO()):
        print("a tool that prints")  # noqa: T201 - the subject of the test

    assert capsys.readouterr() == ("", "a tool that prints\n")
