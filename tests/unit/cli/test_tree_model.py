"""What is known of a tree, folded from its events."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from ramet.cli.render.tree_model import TreeModel
from ramet.core.events import Event, RunSpawned, StateChanged, TurnStarted
from ramet.core.outcome import Status, Usage
from tests.unit.cli.story import Story, at, cut_short, under_way


def fold(events: list[Event]) -> TreeModel:
    """The picture after these events."""
    picture = TreeModel()
    for event in events:
        picture.apply(event)
    return picture


def test_it_knows_who_does_what() -> None:
    """Tools in use, states, and how many are waited for."""
    picture = fold(under_way().events)

    assert {row.path: row.activity() for row in picture.walk() if not row.is_over} == {
        "main": "waits for 1 agent",
        "main/sources": "Read src/payments/client.py",
    }


def test_figures_of_the_living_are_the_sum_of_what_was_answered() -> None:
    """Totals count every run once."""
    total = fold(under_way().events).totals(at(3.2))

    assert (total.agents, total.living, total.usage.tokens, total.seconds) == (3, 2, 4600, 3.2)


def test_the_end_has_the_last_word_on_usage() -> None:
    """What a run's result says replaces what was counted along the way."""
    picture = fold(cut_short().events)

    assert picture.totals(at(9)).usage == Usage(model_calls=3, tool_calls=4, agents=2, input_tokens=4600)


def test_findings_are_kept_of_whoever_ended() -> None:
    """Answers of finished children and partial texts of stopped ones, in the order of birth."""
    assert [(row.path, row.result.text) for row in fold(cut_short().events).findings() if row.result] == [
        ("main/logs", "# Findings\n\n**logs/app.log:12**: timeout after 2 s"),
        ("main/sources", "client.py sets no retry"),
    ]


def test_mail_brings_a_finished_run_back() -> None:
    """A run that goes on after its end is at work again."""
    story = Story()
    story.born("main", 0)
    story.born("main/a", 0)
    story.ended("main/a", 1, Status.COMPLETED, "done", Usage())
    story.add(StateChanged, "main/a", 2, state="running")

    row = fold(story.events).rows["run-main/a"]

    assert (row.is_over, row.activity()) == (False, "thinks")


@given(st.randoms(use_true_random=False))
def test_children_may_be_heard_of_before_their_parents(dice: random.Random) -> None:
    """However runs interleave, everyone hangs where they belong."""
    mixed = list(cut_short().events)
    dice.shuffle(mixed)
    own = {path: iter([e for e in cut_short().events if e.path == path]) for path in {e.path for e in mixed}}

    picture = fold([next(own[event.path]) for event in mixed])

    assert next(row.path for row in picture.walk()) == "main"
    assert {row.path for row in picture.walk()} == {"main", "main/logs", "main/sources"}
    assert all(row.is_over for row in picture.rows.values())


def test_a_function_works_and_does_not_think() -> None:
    """Only what has a model thinks."""
    story = Story()
    story.add(RunSpawned, "main", 0, name="add", prompt="")
    story.add(TurnStarted, "main", 0, turn=1)

    assert fold(story.events).rows["run-main"].activity() == "works"
