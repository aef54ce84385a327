"""Tests of the resources of a team: what may be reserved, and what an agent must state to be admitted."""

from __future__ import annotations

import math

import pytest

from ramet.core.errors import InvalidValue, OverCapacity
from ramet.core.team import Team, resources


def test_a_refusal_names_the_short_resource_and_all_free_resources() -> None:
    """OverCapacity has the first resource that does not fit, the requested amount, and every free amount."""
    team = Team(name="crew", total={"agents": 2, "cpu": 1.5}).admit("a", {"agents": 1, "cpu": 1.0})

    with pytest.raises(OverCapacity) as refusal:
        team.admit("b", {"agents": 1, "cpu": 1.0})

    assert (refusal.value.team, refusal.value.resource, refusal.value.asked) == ("crew", "cpu", 1.0)
    assert refusal.value.room == {"agents": 1, "cpu": 0.5}
    assert refusal.value.free == 0.5


def test_used_tokens_stay_spent_and_other_resources_return() -> None:
    """An agent that used 30 of 100 tokens returns 70; processors return whole."""
    team = Team(name="crew", total={"agents": 1, "cpu": 2.0, "tokens": 100})
    team = team.admit("a", {"agents": 1, "cpu": 2.0, "tokens": 100}).release("a", {"tokens": 30, "cpu": 1.0})
    assert team.free == {"agents": 1, "cpu": 2.0, "tokens": 70}
    assert team.spent_amounts == {"tokens": 30}


def test_usage_above_the_reservation_is_counted_in_full() -> None:
    """The free amount is then zero, and not negative."""
    team = Team(name="crew", total={"agents": 1, "usd": 1.0})
    team = team.admit("a", {"agents": 1, "usd": 1.0}).release("a", {"usd": 1.25})
    assert (team.free["usd"], team.spent_amounts["usd"]) == (0, 1.25)


def test_ten_tenths_of_a_dollar_fit_into_one() -> None:
    """Ten reservations of 0.1 leave nothing free."""
    team = Team(name="crew", total={"agents": 10, "usd": 1.0})
    for number in range(10):
        team = team.admit(str(number), {"agents": 1, "usd": 0.1})
    assert team.free == {"agents": 0, "usd": 0}


def test_an_agent_must_limit_consumable_resources_of_its_team() -> None:
    """The error names the missing limit."""
    with pytest.raises(InvalidValue, match=r"limits\.tokens") as refusal:
        Team(name="crew", total={"agents": 1, "tokens": 10}).admit("a", {"agents": 1})
    assert refusal.value.field == "limits.tokens"


def test_check_refuses_only_what_can_never_fit() -> None:
    """A reserved amount returns later, and a spent amount does not."""
    team = Team(name="crew", total={"agents": 1, "tokens": 10}).admit("a", {"agents": 1, "tokens": 10})
    team.check({"agents": 1, "tokens": 10})
    with pytest.raises(OverCapacity):
        team.release("a", {"tokens": 1}).check({"agents": 1, "tokens": 10})


@pytest.mark.parametrize(
    ("arguments", "field"),
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
def test_an_invalid_amount_of_a_resource_is_refused_by_name(arguments: dict[str, float], field: str) -> None:
    """Negative, infinite, fractional or non-numeric amounts are refused."""
    with pytest.raises(InvalidValue) as refusal:
        resources("resources", arguments)
    assert refusal.value.field == field


def test_a_resource_may_have_any_name() -> None:
    """A team may count resources that ramet does not know."""
    assert resources("resources", {"agents": 3.0, "gpu": 2, "usd": 0.5}) == {"agents": 3, "gpu": 2, "usd": 0.5}
