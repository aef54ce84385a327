"""Progress of a tree: one line per notable event."""

from __future__ import annotations

import io

from ramet.cli.render.console import console
from ramet.cli.render.tree_model import TreeModel
from ramet.cli.render.views import LineView
from ramet.core.events import (
    ApprovalAnswered,
    ApprovalAsked,
    BudgetRefused,
    ClampEvent,
    Compacted,
    Event,
    HookFailed,
    Notice,
    PolicyDecided,
    QuotaReached,
    RunLooping,
    RunSilent,
)
from tests.unit.cli.golden import assert_golden
from tests.unit.cli.story import TreeEventWriter, at, cancelled_story, hostile_story


def log_of(events: list[Event], *, width: int = 80) -> str:
    """Return the log of these events."""
    log, picture = io.StringIO(), TreeModel()
    view = LineView(console(log, width=width), picture)
    for event in events:
        picture.apply(event)
        view.show_event(event)
    return log.getvalue()


def rare_events() -> TreeEventWriter:
    """Return a story with rare events."""
    writer = TreeEventWriter()
    writer.add_spawn("main", 0)
    writer.add_tool_start("main", 1, "b", "Bash", command="rm -rf build")
    writer.add(ApprovalAsked, "main", 1, approval_id="a", tool="Bash", question="Really?", args={"command": "rm"})
    writer.add(ApprovalAnswered, "main", 65, approval_id="a", allowed=False, reason="no")
    writer.add_tool_end("main", 65, "b", "Bash", "denied", "a person said no")
    writer.add(HookFailed, "main", 66, hook="check.sh", event="PreToolUse", reason="timeout")
    writer.add(BudgetRefused, "main", 67, resource="tokens", asked=900, left=100, scope="main")
    writer.add(QuotaReached, "main", 67, model="openai:gpt", until=at(7267), wait_s=7200.0)
    writer.add(RunSilent, "main", 67, silent_s=600.0, waits_for="model", action="end")
    writer.add(RunLooping, "main", 67, tool="Re\x1b[2Jad", times=3)
    writer.add(ClampEvent, "main", 68, field="timeout_s", asked=900, given=60)
    adapter_fields = {"adapter": "house rules", "child": "scout"}
    writer.add(PolicyDecided, "main", 68, verdict="allow", **adapter_fields)
    writer.add(PolicyDecided, "main", 68, verdict="narrow", reason="no network", **adapter_fields)
    writer.add(PolicyDecided, "main", 68, verdict="refuse", reason="\x1b[2Jno\nhelpers", **adapter_fields)
    writer.add(Compacted, "main", 69, before_messages=90, after_messages=8, before_tokens=90_000, after_tokens=4_000)
    writer.add(Notice, "main", 70, text="the journal is not durable")
    return writer


def test_each_line_equals_the_approved_one() -> None:
    """A line has the run, the event and the time since the start; minor events have no line."""
    pages = [log_of(writer.events) for writer in (cancelled_story(), rare_events(), hostile_story())]

    assert_golden("cli/progress.txt", "\n".join(pages))


def test_lines_are_not_wrapped() -> None:
    """Programs read logs too: one event is one line in a console of any width."""
    assert log_of(cancelled_story().events, width=20) == log_of(cancelled_story().events, width=200)
