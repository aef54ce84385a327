"""The state of a tree, computed from its events."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from ramet.cli.operate.ps import _facts
from ramet.cli.render.tree_model import TreeModel
from ramet.core.events import (
    Event,
    MessageRecorded,
    ModelAsked,
    ModelRetried,
    PlanStep,
    PlanUpdated,
    QuotaReached,
    RunEnded,
    RunResumed,
    RunSilent,
    RunSpawned,
    StateChanged,
    SubAgentReported,
    TurnEnded,
    TurnStarted,
)
from ramet.core.outcome import Result, Status, Usage
from ramet.core.replay.replay import TreeReplay
from ramet.core.replay.reported_agents import MAX_REPORTED
from ramet.host.control.run_queries import rows_of
from tests.unit.cli.story import TreeEventWriter, active_story, at, cancelled_story


def fold(events: list[Event]) -> TreeModel:
    """Return the model after these events."""
    picture = TreeModel()
    for event in events:
        picture.apply(event)
    return picture


def test_the_model_knows_what_each_run_does() -> None:
    """Tools in use and the number of awaited runs are known."""
    picture = fold(active_story().events)

    assert {row.path: row.activity() for row in picture.walk() if not row.is_over} == {
        "main": "waits for 1 agent",
        "main/sources": "Read src/payments/client.py",
    }


def test_totals_sum_the_answers_of_active_runs() -> None:
    """Each run counts once."""
    total = fold(active_story().events).totals(at(3.2))

    assert (total.agents, total.living, total.usage.tokens, total.seconds) == (3, 2, 4600, 3.2)


def test_the_result_replaces_the_counted_usage() -> None:
    """The usage in a run's result goes before the counts along the way."""
    picture = fold(cancelled_story().events)

    assert picture.totals(at(9)).usage == Usage(model_calls=3, tool_calls=4, agents=2, input_tokens=4600)


def test_findings_of_ended_runs_are_kept() -> None:
    """Answers of finished children and partial texts of stopped ones come in the order of spawning."""
    assert [(row.path, row.result.text) for row in fold(cancelled_story().events).findings() if row.result] == [
        ("main/logs", "# Findings\n\n**logs/app.log:12**: timeout after 2 s"),
        ("main/sources", "client.py sets no retry"),
    ]


def test_mail_makes_a_finished_run_active_again() -> None:
    """The run continues after its end."""
    writer = TreeEventWriter()
    writer.add_spawn("main", 0)
    writer.add_spawn("main/a", 0)
    writer.add_end("main/a", 1, Status.COMPLETED, "done", Usage())
    writer.add(StateChanged, "main/a", 2, state="running")

    row = fold(writer.events).rows["run-main/a"]

    assert (row.is_over, row.activity()) == (False, "thinks")


@given(st.randoms(use_true_random=False))
def test_children_may_appear_before_their_parents(dice: random.Random) -> None:
    """Each run has its place in the tree, in any order of events."""
    mixed = list(cancelled_story().events)
    dice.shuffle(mixed)
    events_by_path = {
        path: iter([e for e in cancelled_story().events if e.path == path]) for path in {e.path for e in mixed}
    }

    picture = fold([next(events_by_path[event.path]) for event in mixed])

    assert next(row.path for row in picture.walk()) == "main"
    assert {row.path for row in picture.walk()} == {"main", "main/logs", "main/sources"}
    assert all(row.is_over for row in picture.rows.values())


def test_a_function_works_and_does_not_think() -> None:
    """A run without a model is never shown as thinking."""
    writer = TreeEventWriter()
    writer.add(RunSpawned, "main", 0, name="add", prompt="")
    writer.add(TurnStarted, "main", 0, turn=1)

    assert fold(writer.events).rows["run-main"].activity() == "works"


def test_a_run_in_a_quota_window_shows_until_when_it_waits() -> None:
    """`ps` and `show` name the end in the state; the tree names it as what the run does."""
    writer = TreeEventWriter()
    writer.add_spawn("main", 0)
    writer.add(QuotaReached, "main", 1, model="openai:gpt", until=at(3600), wait_s=3599.0)
    writer.add(StateChanged, "main", 1, state="waiting")
    model = fold(writer.events)
    [row] = rows_of(TreeReplay().apply_all(writer.events), is_active=True)

    assert model.rows["run-main"].activity() == "waits for a quota until 13:00:00 UTC"
    assert ("state", "waiting (quota until 2026-11-20 13:00:00 UTC)") in list(_facts(row, at(2)))
    [row] = rows_of(TreeReplay().apply_all(writer.events), is_active=False)
    assert ("state", "interrupted") in list(_facts(row, at(2)))


def test_a_silent_run_is_shown_until_its_next_event() -> None:
    """The tree says for how long; `ps` and `show` say how long ago its newest event came."""
    writer = TreeEventWriter()
    writer.add_spawn("main", 0)
    writer.add(TurnStarted, "main", 1, turn=1)
    writer.add(ModelAsked, "main", 2, step_id="s:1", model="m")
    writer.add(RunSilent, "main", 602, silent_s=600.0, waits_for="model")
    [row] = rows_of(TreeReplay().apply_all(writer.events[:-1]), is_active=True)

    assert fold(writer.events).rows["run-main"].activity() == "thinks, silent for 10m00s"
    assert ("state", "running (model)") in list(_facts(row, at(602)))
    assert ("last event", "10m00s ago, at 2026-11-20 12:00:02 UTC") in list(_facts(row, at(602)))

    writer.add(ModelRetried, "main", 603, step_id="s:1", model="m", reason="HTTP 500", attempt=1)
    assert fold(writer.events).rows["run-main"].activity() == "asks again"


def test_agents_that_a_program_runs_by_itself_are_rows_below_it() -> None:
    """Such agents are no runs of the tree, and are not counted as such. One that is left open ends with the program.

    The rows of `ps` and of HTTP have the same.
    """
    writer = TreeEventWriter()
    writer.add_spawn("main", 0)
    writer.add(TurnStarted, "main", 1, turn=1)
    writer.add(PlanUpdated, "main", 2, steps=(PlanStep(text="look", status="in_progress"),))
    for id, state in (("a", "running"), ("b", "running"), ("a", "completed")):
        writer.add(SubAgentReported, "main", 3, sub_agent=id, title=f"part {id}", state=state)
    picture = fold(writer.events)

    assert [(row.name, row.depth, row.is_over) for row in picture.walk()][1:] == [
        ("part a", 1, True),
        ("part b", 1, False),
    ]
    assert picture.rows["run-main"].activity() == "look"
    assert picture.totals(at(3)).agents == 1
    for is_active, state in ((True, "running"), (False, "interrupted")):
        [row] = rows_of(TreeReplay().apply_all(writer.events), is_active=is_active)
        assert ("its own", ["part a (a): completed, 0.0s", f"part b (b): {state}, 1.0s"]) in list(_facts(row, at(4)))

    writer.add(RunEnded, "main", 4, result=Result(status=Status.COMPLETED, value="done"))
    ended = [row.result.status for row in fold(writer.events).walk() if row.result is not None]
    assert ended == [Status.COMPLETED, Status.COMPLETED, Status.CANCELLED]
    [row] = rows_of(TreeReplay().apply_all(writer.events), is_active=True)
    assert [each.state for each in row.reported_agents] == ["completed", "cancelled"]


@pytest.mark.parametrize("end", [(TurnEnded, {"turn": 1, "status": "completed"}), (RunResumed, {"turn": 1})])
def test_agents_that_a_program_runs_by_itself_end_with_its_process(end: tuple[type[Event], dict[str, Any]]) -> None:
    """A turn is a process of the program, and so is each kernel. Of any number that it reports, the first 200 count."""
    writer = TreeEventWriter()
    writer.add_spawn("main", 0)
    writer.add(TurnStarted, "main", 1, turn=1)
    for number in range(MAX_REPORTED + 5):
        writer.add(SubAgentReported, "main", 2, sub_agent=f"a{number}", state="running")
    writer.add(end[0], "main", 3, **end[1])
    [row] = rows_of(TreeReplay().apply_all(writer.events), is_active=True)

    assert [each.state for each in row.reported_agents] == ["cancelled"] * MAX_REPORTED
    assert {each.ended for each in row.reported_agents} == {at(3)}
    rows = [each for each in fold(writer.events).walk() if each.is_reported]
    assert [each.is_over for each in rows] == [True] * MAX_REPORTED


def test_the_fill_of_a_context_window_is_shown() -> None:
    """As a share, if the size of the window is known."""
    writer = TreeEventWriter()
    writer.add(RunSpawned, "main", 0, name="main", window=200_000)
    usage = Usage(model_calls=1, input_tokens=50_000)
    writer.add(MessageRecorded, "main", 1, message={"type": "ai"}, step_id="s:1", usage=usage)
    [row] = rows_of(TreeReplay().apply_all(writer.events), is_active=True)

    assert ("context", "50k of 200k (25%) tokens") in list(_facts(row, at(2)))
    assert ("context", "50k tokens") in list(_facts(replace(row, context_window=0), at(2)))
