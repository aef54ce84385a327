"""A team's resources: what may be reserved, and what an agent must say to be admitted."""

from __future__ import annotations

import math

import pytest

from ramet.core.errors import InvalidValue, OverCapacity
from ramet.core.team import Team, resources


def test_a_refusal_names_what_is_short_and_all_that_is_free() -> None:
    """The first resource that does not fit, how much was asked of it, and what everything has left."""
    team = Team(name="crew", total={"agents": 2, "cpu": 1.5}).admit("a", {"agents": 1, "cpu": 1.0})

    with pytest.raises(OverCapacity) as refusal:
        team.admit("b", {"agents": 1, "cpu": 1.0})

    assert (refusal.value.team, refusal.value.resource, refusal.value.asked) == ("crew", "cpu", 1.0)
    assert refusal.value.room == {"agents": 1, "cpu": 0.5}
    assert refusal.value.free == 0.5


def test_what_an_agent_used_up_stays_spent_and_all_else_returns() -> None:
    """Of 100 tokens of which 30 were used, 70 return; processors return whole, whatever is said to be used of them."""
    team = Team(name="crew", total={"agents": 1, "cpu": 2.0, "tokens": 100})
    team = team.admit("a", {"agents": 1, "cpu": 2.0, "tokens": 100}).release("a", {"tokens": 30, "cpu": 1.0})
    assert team.free == {"agents": 1, "cpu": 2.0, "tokens": 70}
    assert team.spent == {"tokens": 30}


def test_more_used_than_was_held_is_told_as_it_was() -> None:
    """Nothing is free then, rather than less than nothing."""
    team = Team(name="crew", total={"agents": 1, "usd": 1.0})
    team = team.admit("a", {"agents": 1, "usd": 1.0}).release("a", {"usd": 1.25})
    assert (team.free["usd"], team.spent["usd"]) == (0, 1.25)


def test_tenths_add_up() -> None:
    """Ten tenths of a dollar fit into one, and leave nothing."""
    team = Team(name="crew", total={"agents": 10, "usd": 1.0})
    for number in range(10):
        team = team.admit(str(number), {"agents": 1, "usd": 0.1})
    assert team.free == {"agents": 0, "usd": 0}


def test_an_agent_must_limit_what_its_team_counts_of_what_can_be_used_up() -> None:
    """The error says which limit is to be stated."""
    with pytest.raises(InvalidValue, match=r"limits\.tokens") as refusal:
        Team(name="crew", total={"agents": 1, "tokens": 10}).admit("a", {"agents": 1})
    assert refusal.value.field == "limits.tokens"


def test_what_can_never_fit_is_told_apart_from_what_does_not_fit_now() -> None:
    """What is held comes back, what is spent does not."""
    team = Team(name="crew", total={"agents": 1, "tokens": 10}).admit("a", {"agents": 1, "tokens": 10})
    team.check({"agents": 1, "tokens": 10})
    with pytest.raises(OverCapacity):
        team.release("a", {"tokens": 1}).check({"agents": 1, "tokens": 10})


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({}, "resources"),
        ({"cpu": 1}, "resources"),
        ({"agents": 1.5}, "resources.agents"),
        ({"agents": -1}, "resources.agents"),
        ({"agents": True}, "resources.agents"),
        ({"agents": math.nan}, "resources.agents"),
        ({"agents": math.inf}, "resources.agents"),
        ({"agents": 1, "usd": "3"}, "resources.usd"),
        ({"agents": 1, "tokens": 2.0**60}, "resources.tokens"),
        ({"agents": 1, "memory_mb": 0.5}, "resources.memory_mb"),
        ({"agents": 1, "a/b": 1}, "resources"),
        ([("agents", 1)], "resources"),
    ],
    ids=str,
)
def test_what_is_no_amount_of_a_resource_is_refused_by_name(given: dict[str, float], field: str) -> None:
    """Negative, endless, in parts where there are none, or no number."""
    with pytest.raises(InvalidValue) as refusal:
        resources("resources", given)
    assert refusal.value.field == field


def test_any_name_is_counted() -> None:
    """A team may have what this program knows nothing of."""
    assert resources("resources", {"agents": 3.0, "gpu": 2, "usd": 0.5}) == {"agents": 3, "gpu": 2, "usd": 0.5}
