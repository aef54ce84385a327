"""A team belongs to one kernel, even if kernels start, fail or meet unreadable rows at the same time."""

from __future__ import annotations

import asyncio
import pathlib
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import psycopg
import pytest

from ramet.core.errors import Damaged, NotYours
from ramet.services.cluster.directory import Directory
from ramet.services.contract import CreatedTeam, SpawnedAgent
from ramet.services.server.initial_teams import reserve
from ramet.services.teams.tables import AGENT, TEAM
from ramet.store.contract import Document
from ramet.store.postgres import PostgresStore
from tests.support.postgres import Server, fresh_schema, postgres
from tests.support.postgres_stores import end_session
from tests.support.sites import OPERATOR, Site

__all__ = ["postgres"]  # a fixture is used by its name


@pytest.fixture
def schema(postgres: Server) -> Iterator[str]:
    """A fresh schema, which is dropped after the test."""
    schema = fresh_schema()
    yield schema
    with psycopg.connect(postgres.dsn, autocommit=True) as connection:
        connection.execute(f'DROP SCHEMA IF EXISTS "{schema}" CASCADE')


class BlockingStore(PostgresStore):
    """A store that holds a kernel after it has read the teams, until `go_on` is set."""

    def __init__(self, dsn: str, *, schema: str, kernel: str) -> None:
        super().__init__(dsn, schema=schema, kernel=kernel)
        self.has_read, self.go_on = asyncio.Event(), asyncio.Event()

    async def list(self, kind: str, *, prefix: str = "") -> list[Document]:
        documents = await super().list(kind, prefix=prefix)
        if kind == TEAM:
            self.has_read.set()
            await self.go_on.wait()
        return documents


@asynccontextmanager
async def lose_kernel(site: Site) -> AsyncIterator[Site]:
    """A kernel that leaves all that it has when the context ends."""
    await site.runtime.start()
    await site.spawner.open()
    try:
        yield site
    finally:
        await site.spawner.drain()
        await site.runtime.stop()


async def make_agent(site: Site, name: str = "") -> tuple[CreatedTeam, SpawnedAgent]:
    team = await site.team(name)
    return team, await site.agent(team)


async def test_a_kernel_that_returns_during_a_takeover_keeps_its_team(
    postgres: Server, schema: str, tmp_path: pathlib.Path
) -> None:
    """The other kernel had read the team as orphaned before; the agents are neither opened twice nor failed."""
    async with lose_kernel(Site(tmp_path / "one", PostgresStore(postgres.dsn, schema=schema, kernel="one"))) as first:
        team, agent = await make_agent(first)
    store = BlockingStore(postgres.dsn, schema=schema, kernel="two")
    other = Site(tmp_path / "two", store)
    await other.runtime.start()
    opening = asyncio.create_task(other.spawner.open())
    await store.has_read.wait()
    async with Site(tmp_path / "one", PostgresStore(postgres.dsn, schema=schema, kernel="one")) as next_site:
        assert next_site.spawner.agents.has(agent.agent.id)
        store.go_on.set()
        await opening

        assert not other.echo.opened
        assert not other.spawner.teams
        with pytest.raises(NotYours):
            await other.spawner.get_agent(agent.agent.id, agent.nonce)
        assert (await next_site.spawner.get_agent(agent.agent.id, agent.nonce)).state == "idle"
        owner = await store.owner_of(agent.agent.run)
        assert owner is not None
        assert owner.name == "one"
        await next_site.spawner.owners.rotate(agent.agent.id, agent.nonce)
        await next_site.spawner.delete_team(team.team.id, team.key)
        await other.spawner.drain()
    await other.runtime.stop()


async def test_a_kernel_overtaken_while_it_opens_its_team_opens_nothing(
    postgres: Server, schema: str, tmp_path: pathlib.Path
) -> None:
    """The kernel read that the team was its own, lost its connection, and returned after the takeover."""
    async with lose_kernel(Site(tmp_path / "one", PostgresStore(postgres.dsn, schema=schema, kernel="one"))) as first:
        _, agent = await make_agent(first)
    store = BlockingStore(postgres.dsn, schema=schema, kernel="one")
    next_site = Site(tmp_path / "again", store)
    await next_site.runtime.start()
    opening = asyncio.create_task(next_site.spawner.open())
    await store.has_read.wait()
    two = PostgresStore(postgres.dsn, schema=schema, kernel="two")
    with end_session(store, postgres):
        other = Site(tmp_path / "two", two)
        await other.runtime.start()
        await other.spawner.open()
    store.go_on.set()
    await opening

    assert not next_site.echo.opened
    assert not next_site.spawner.teams
    assert (await other.spawner.get_agent(agent.agent.id, agent.nonce)).state == "idle"
    await other.spawner.owners.rotate(agent.agent.id, agent.nonce)
    for site in (next_site, other):
        await site.spawner.drain()
        await site.runtime.stop()


async def test_kernels_with_the_same_settings_make_each_team_once(
    postgres: Server, schema: str, tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The first kernel makes the teams, even of two at once; the others start and log differences."""
    teams = {name: {"agents": 2.0} for name in ("red", "blue", "green")}
    sites = [Site(tmp_path / name, PostgresStore(postgres.dsn, schema=schema, kernel=name)) for name in ("one", "two")]
    async with sites[0], sites[1]:
        await reserve({"red": teams["red"]}, sites[0].spawner, OPERATOR)
        await asyncio.gather(*(reserve(teams, each.spawner, OPERATOR) for each in sites))
        await reserve({"red": {"agents": 3}}, sites[1].spawner, OPERATOR)

        names = [each.name for site in sites for each in await site.spawner.list_teams(OPERATOR)]
        assert sorted(names) == sorted(teams)
        assert [each for each in caplog.messages if "settings" in each] == [
            "team red: not changed; it has agents 2, but the settings have agents 3"
        ]


async def test_an_unreadable_row_does_not_stop_other_takeovers(
    postgres: Server, schema: str, tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The row is reported once and stays as it is; its team is taken over after the row is repaired."""
    store = PostgresStore(postgres.dsn, schema=schema, kernel="two")
    async with Site(tmp_path / "two", store) as other:
        async with lose_kernel(
            Site(tmp_path / "one", PostgresStore(postgres.dsn, schema=schema, kernel="one"))
        ) as first:
            team, agent = await make_agent(first, "whole")
            broken_team, broken_agent = await make_agent(first, "broken")
            newer, _ = await make_agent(first, "newer")
            part, remaining = await make_agent(first, "part")
            mute = await first.agent(part, "mute")
        before = {each.key: each.data for kind in (TEAM, AGENT) for each in await store.list(kind)}
        spoilt = {
            (TEAM, broken_team.team.id): b"{",
            (TEAM, newer.team.id): before[newer.team.id].replace(b'"version":1', b'"version":99'),
            (AGENT, mute.agent.id): b"[]",
        }
        for document_key, data in spoilt.items():
            await store.put(*document_key, data)
        directory = Directory(store, "two")
        await directory.open()
        try:
            for _ in range(2):
                assert await directory.ownership_changed(other.spawner.teams)
                await other.spawner.take_over()
            assert await directory.orphans() == []
            with pytest.raises(Damaged, match=mute.agent.id):
                await directory.of_agent(mute.agent.id)
        finally:
            await directory.close()

        assert {*other.spawner.teams} == {team.team.id, part.team.id}
        assert (await other.spawner.get_agent(agent.agent.id, agent.nonce)).state == "idle"
        assert (await other.spawner.get_agent(remaining.agent.id, remaining.nonce)).state == "idle"
        assert await other.free(part) == 1
        for (kind, key), data in spoilt.items():
            document = await store.get(kind, key)
            assert document is not None
            assert document.data == data
        assert await store.get(AGENT, broken_agent.agent.id) is not None
        warnings = [each.getMessage() for each in caplog.records if "must be repaired by hand" in each.getMessage()]
        assert sorted(key for each in warnings for _, key in spoilt if key in each) == sorted(key for _, key in spoilt)

        third = Site(tmp_path / "three", PostgresStore(postgres.dsn, schema=schema, kernel="three"))
        async with lose_kernel(third):
            assert not third.spawner.teams
        await store.put(TEAM, broken_team.team.id, before[broken_team.team.id])
        await other.spawner.take_over()
        assert (await other.spawner.get_agent(broken_agent.agent.id, broken_agent.nonce)).state == "idle"
