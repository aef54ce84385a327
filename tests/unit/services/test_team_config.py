"""The backend checks the configuration of a team, and gets it before the first sandbox."""

from __future__ import annotations

import pathlib
from collections.abc import Mapping
from typing import Any

import pytest
from msgspec import Raw

from ramet.core.errors import InvalidValue
from ramet.isolation.contract import ConfigurableBackend
from ramet.isolation.local import LocalBackend
from ramet.services.contract import CreateTeam
from ramet.store.contract import Store
from ramet.store.sqlite.store import SqliteStore
from tests.support.sites import OPERATOR, Site


class ZonedBackend(LocalBackend):
    """A backend that places the sandboxes of a team in a zone."""

    def __init__(self, runs: pathlib.Path) -> None:
        super().__init__(runs)
        self.zones: dict[str, str] = {}

    def check_team(self, config: Any) -> None:
        if not isinstance(config, Mapping) or set(config) != {"zone"}:
            raise InvalidValue("config", config, "an object with a zone")

    async def configure_team(self, team: str, config: Any) -> None:
        self.zones[team] = config["zone"]


def request(config: bytes) -> CreateTeam:
    return CreateTeam(name="crew", resources={"agents": 1}, config=Raw(config))


async def test_the_configuration_of_a_team_reaches_the_backend_and_is_shown(tmp_path: pathlib.Path) -> None:
    backend = ZonedBackend(tmp_path / "runs")
    assert isinstance(backend, ConfigurableBackend)
    async with Site(tmp_path, backend=backend) as site:
        team = await site.spawner.create_team(request(b'{"zone": "b"}'), OPERATOR)

        assert backend.zones == {team.team.id: "b"}
        assert team.team.config == {"zone": "b"}
        assert (await site.spawner.get_team("crew", team.key)).config == {"zone": "b"}


async def test_a_restarted_server_gives_the_backend_its_teams_configuration(
    tmp_path: pathlib.Path,
) -> None:
    def store() -> Store:
        return SqliteStore(tmp_path / "journal.db")

    async with Site(tmp_path, store(), backend=ZonedBackend(tmp_path / "runs")) as site:
        team = await site.spawner.create_team(request(b'{"zone": "b"}'), OPERATOR)

    backend = ZonedBackend(tmp_path / "runs")
    async with Site(tmp_path, store(), backend=backend):
        assert backend.zones == {team.team.id: "b"}


async def test_a_configuration_that_the_backend_refuses_makes_no_team(tmp_path: pathlib.Path) -> None:
    async with Site(tmp_path, backend=ZonedBackend(tmp_path / "runs")) as site:
        with pytest.raises(InvalidValue, match=r"^config: .* is not accepted; expected an object with a zone"):
            await site.spawner.create_team(request(b'{"zoen": "b"}'), OPERATOR)

        assert not site.spawner.teams


@pytest.mark.parametrize("is_default", [True, False], ids=["default", "local"])
async def test_a_backend_without_team_configuration_refuses_one(tmp_path: pathlib.Path, is_default: bool) -> None:
    """A kept configuration would have no effect."""
    backend = None if is_default else LocalBackend(tmp_path / "runs")
    async with Site(tmp_path, backend=backend) as site:
        with pytest.raises(InvalidValue, match=r"^config: .* is not accepted; expected null: .* no configuration of"):
            await site.spawner.create_team(request(b'{"zone": "b"}'), OPERATOR)
        assert not site.spawner.teams
        await site.spawner.create_team(request(b"null"), OPERATOR)
