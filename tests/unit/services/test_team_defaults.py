"""Resources that an agent must state: all missing ones are named at once, and the team may give defaults."""

from __future__ import annotations

import pathlib
from typing import Any

import pytest

from ramet.core.errors import InvalidValue
from ramet.services.contract import CreatedTeam, CreateTeam
from ramet.store.sqlite.store import SqliteStore
from tests.support.sites import OPERATOR, Site

RESOURCES: dict[str, float] = {"agents": 3, "tokens": 1000, "usd": 2, "cpu": 4}


async def make_team(site: Site, **fields: Any) -> CreatedTeam:
    return await site.spawner.create_team(CreateTeam(name="crew", resources=RESOURCES, **fields), OPERATOR)


async def test_missing_resources_are_named_together(tmp_path: pathlib.Path) -> None:
    """The caller can correct the request in one step."""
    async with Site(tmp_path) as site:
        team = await make_team(site)
        with pytest.raises(InvalidValue) as refusal:
            await site.agent(team, "a")

        assert refusal.value.field == "limits.tokens, limits.usd, policy"
        assert str(refusal.value).startswith(
            "limits.tokens, limits.usd, policy are missing; expected a value of each: team 'crew' "
        )
        assert await site.free(team) == 3


async def test_an_agent_gets_its_teams_defaults(tmp_path: pathlib.Path) -> None:
    """A limit that the agent states goes first; defaults are reserved like other limits and shown with the team."""
    async with Site(tmp_path, SqliteStore(tmp_path / "journal.db")) as site:
        team = await site.spawner.create_team(
            CreateTeam(resources={"agents": 3, "tokens": 1000, "usd": 2}, defaults={"tokens": 300, "usd": 0.5}),
            OPERATOR,
        )
        await site.agent(team, "a")
        await site.agent(team, "b", limits={"tokens": 100.0})

        assert (await site.spawner.get_team(team.team.id, team.key)).held == {"agents": 2, "tokens": 400, "usd": 1.0}
        assert team.team.defaults == {"tokens": 300, "usd": 0.5}
        assert [each.opening.limits.tokens for each in site.echo.opened] == [300, 100]

    async with Site(tmp_path, SqliteStore(tmp_path / "journal.db")) as next_site:
        assert (await next_site.spawner.get_team(team.team.id, team.key)).defaults == {"tokens": 300, "usd": 0.5}


@pytest.mark.parametrize(
    ("defaults", "says"),
    [
        ({"gpu": 1}, r"defaults\.gpu: 'gpu' is not accepted; expected one of the fields tokens, usd$"),
        ({"cpu": 1}, r"defaults\.cpu: 'cpu' is not accepted; expected one of the fields tokens, usd$"),
        ({"tokens": 1.5}, r"defaults\.tokens: 1.5 is not accepted; expected a whole number"),
        (
            {"tokens": 1001},
            r"defaults\.tokens: 1001 is not accepted; expected at most 1000, the amount that the team has$",
        ),
    ],
)
async def test_a_default_must_be_a_counted_resource_within_the_teams_total(
    tmp_path: pathlib.Path, defaults: dict[str, float], says: str
) -> None:
    async with Site(tmp_path) as site:
        with pytest.raises(InvalidValue, match=says):
            await make_team(site, defaults=defaults)
        assert not site.spawner.teams
