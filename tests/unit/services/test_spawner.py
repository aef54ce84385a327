"""The AgentSpawnerService on real stores and a real runtime: whatever happens, capacity and records are exact."""

from __future__ import annotations

import asyncio
import pathlib
from collections.abc import AsyncIterator

import pytest
from msgspec import Raw

from ramet.core.errors import InvalidValue, ModelFailed, NotYours, OverCapacity, Unknown
from ramet.host.runtime import AgentRuntime
from ramet.services.contract import PLAIN, CreatedTeam, CreateTeam, Image, SpawnAgent, SpawnedAgent
from ramet.services.spawner import AgentSpawnerService
from tests.support.echo_agents import EchoType
from tests.support.waiting import eventually

OPERATOR = "op_of-this-test"


class Images:
    """There is one, besides the plain one."""

    async def image(self, id: str) -> Image:
        if id not in ("", "sha256:1"):
            raise Unknown("image", id, ("sha256:1",))
        return PLAIN._replace(id=id)


class Site:
    """A server's spawner, and what its tests ask of it."""

    def __init__(self, folder: pathlib.Path) -> None:
        self.folder, self.echo = folder, EchoType()
        self.runtime = AgentRuntime()
        self.spawner = self.service()

    def service(self) -> AgentSpawnerService:
        return AgentSpawnerService(self.runtime, {"echo": self.echo}, Images(), self.folder / "agents", OPERATOR)

    async def team(self, name: str = "", **resources: float) -> CreatedTeam:
        return await self.spawner.create_team(CreateTeam(name=name, resources={"agents": 3, **resources}), OPERATOR)

    async def agent(self, team: CreatedTeam, name: str = "a", **fields: object) -> SpawnedAgent:
        asked = SpawnAgent(team=team.team.id, name=name, agent_type="echo", **fields)  # type: ignore[arg-type]
        return await self.spawner.spawn_agent(asked, team.key)

    async def free(self, team: CreatedTeam, resource: str = "agents") -> float:
        return (await self.spawner.get_team(team.team.id, team.key)).free[resource]

    async def records(self) -> list[str]:
        return [each.key for each in await (await self.runtime.open_store()).list("served")]

    def folders(self) -> list[str]:
        return [each.name for each in (self.folder / "agents").glob("*")]


@pytest.fixture
async def site(tmp_path: pathlib.Path) -> AsyncIterator[Site]:
    site = Site(tmp_path)
    async with site.runtime, site.spawner:
        yield site


async def test_an_agent_is_spawned_found_and_killed(site: Site) -> None:
    """AC-S3-3: a team of n takes n; killing frees, and nothing of the agent is left."""
    team = await site.team("crew")
    spawned = [await site.agent(team, name) for name in "abc"]
    assert [each.agent.path for each in spawned] == ["crew/a", "crew/b", "crew/c"]
    assert spawned[0].agent.state == "idle"
    with pytest.raises(OverCapacity) as full:
        await site.agent(team, "d")
    assert (full.value.resource, full.value.asked, full.value.room) == ("agents", 1, {"agents": 0})
    await site.spawner.kill_agent(spawned[0].agent.id, spawned[0].nonce)
    assert await site.free(team) == 1
    assert sorted(await site.records()) == sorted(site.folders()) == sorted(each.agent.id for each in spawned[1:])


async def test_of_a_hundred_spawns_into_ten_slots_exactly_ten_succeed(site: Site) -> None:
    """AC-S3-3."""
    team = await site.team(agents=10)
    outcomes = await asyncio.gather(*(site.agent(team, f"a{n}") for n in range(100)), return_exceptions=True)
    assert sum(isinstance(each, SpawnedAgent) for each in outcomes) == 10
    assert sum(isinstance(each, OverCapacity) for each in outcomes) == 90
    assert len(await site.records()) == len(site.folders()) == 10


@pytest.mark.parametrize("trouble", ["check", "open"])
async def test_an_agent_that_cannot_be_opened_leaves_nothing(site: Site, trouble: str) -> None:
    """AC-S3-8: no capacity, record, folder or name."""
    team = await site.team()
    with pytest.raises((InvalidValue, ModelFailed)):
        await site.agent(team, spawn_info=Raw(f'{{"trouble": "{trouble}"}}'.encode()))
    assert (await site.free(team), await site.records(), site.folders()) == (3, [], [])
    await site.agent(team)


async def test_an_agent_that_dies_is_failed_and_frees_what_it_held(site: Site) -> None:
    """AC-S3-10: it stays listed, with its error, until it is killed."""
    team = await site.team()
    spawned = await site.agent(team)
    with pytest.raises(ModelFailed):
        async for _ in site.echo.opened[0].turn(b"die", "words"):
            pass
    living = site.spawner.roster.admit(spawned.agent.id, spawned.nonce, "info")
    await eventually(lambda: living.failing is not None and living.failing.done())
    info = await site.spawner.get_agent(spawned.agent.id, spawned.nonce)
    assert info.state == "failed"
    assert info.error is not None
    assert info.error.type == "Crashed"
    assert await site.free(team) == 3
    await site.spawner.kill_agent(spawned.agent.id, spawned.nonce)
    with pytest.raises(NotYours):
        await site.spawner.get_agent(spawned.agent.id, spawned.nonce)
