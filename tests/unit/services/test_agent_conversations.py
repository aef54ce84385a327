"""Conversations with agents that a real spawner started: keys, kills and restarts as clients meet them."""

from __future__ import annotations

import asyncio
import json
import pathlib
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing

import pytest
from msgspec import Raw

from ramet.core.errors import Gone, NotYours, Unknown
from ramet.host.runtime import AgentRuntime
from ramet.services.contract import (
    PLAIN,
    Chunk,
    CreatedTeam,
    CreateTeam,
    Delegate,
    Image,
    LoadableBundle,
    SpawnAgent,
    SpawnedAgent,
)
from ramet.services.teams.service import AgentSpawnerService
from ramet.services.turns.service import AgentService
from ramet.services.turns.turn import Turn
from tests.support.echo_agents import EchoType
from tests.support.turns import chunks_of, read_turn
from tests.support.waiting import eventually

OPERATOR = "op_of-this-test"


class Images:
    """Packaging that has the plain image only."""

    async def image(self, id: str, team: str) -> Image:
        return PLAIN

    async def bundle(self, id: str, team: str) -> object:
        raise Unknown("bundle", id)

    async def loadable(self, id: str, beside: Sequence[str], team: str) -> LoadableBundle:
        raise Unknown("bundle", id)


class Site:
    """A server, without HTTP."""

    def __init__(self, folder: pathlib.Path, runtime: AgentRuntime) -> None:
        types = {"echo": EchoType()}
        self.spawner = AgentSpawnerService(runtime, types, Images(), folder / "agents", OPERATOR)
        self.agents = AgentService(self.spawner.agents.authorize, types)

    async def team(self) -> CreatedTeam:
        return await self.spawner.create_team(CreateTeam(resources={"agents": 3}), OPERATOR)

    async def agent(self, team: CreatedTeam, name: str = "a") -> SpawnedAgent:
        request = SpawnAgent(team=team.team.id, name=name, agent_type="echo", spawn_info=Raw(b"{}"))
        return await self.spawner.spawn_agent(request, team.key)

    def turn(self, spawned_agent: SpawnedAgent, body: bytes) -> Turn:
        return self.agents.turn(spawned_agent.agent.id, spawned_agent.nonce, body)


@pytest.fixture
async def runtime() -> AsyncIterator[AgentRuntime]:
    async with AgentRuntime() as runtime:
        yield runtime


@pytest.fixture
async def site(runtime: AgentRuntime, tmp_path: pathlib.Path) -> AsyncIterator[Site]:
    site = Site(tmp_path, runtime)
    async with site.spawner:
        yield site
        await site.agents.close()


async def read(turn: Turn) -> list[Chunk]:
    return [chunk async for chunk in chunks_of(turn)]


async def test_only_the_owner_of_an_agent_can_talk_with_it(site: Site) -> None:
    """AC-S3-4: The team's key and another agent's key are refused; the agent table counts the turns."""
    team = await site.team()
    one, other = await site.agent(team), await site.agent(team, "b")

    for key in (team.key, other.nonce, one.nonce + "x", ""):
        with pytest.raises(NotYours):
            site.agents.turn(one.agent.id, key, b"hello")
    assert [chunk.body for chunk in await read(site.turn(one, b"hello"))] == [b"hello", b""]
    assert site.agents.info(one.agent.id, one.nonce).turns == 1
    assert site.agents.info(other.agent.id, other.nonce).turns == 0


async def test_a_delegated_key_opens_its_rights_until_ownership_changes(site: Site) -> None:
    """AC-S3-4: A delegated key has its rights only; a new owner makes the old owner's key and delegated keys void."""
    spawned_agent = await site.agent(await site.team())
    delegation = await site.spawner.owners.delegate(
        spawned_agent.agent.id, spawned_agent.nonce, Delegate(rights=["turn"])
    )
    turn = site.agents.turn(spawned_agent.agent.id, delegation.key, b"hello")
    await turn.wait_ended()
    with pytest.raises(NotYours):
        await site.agents.history(spawned_agent.agent.id, delegation.key)

    owner = await site.spawner.owners.delegate(spawned_agent.agent.id, spawned_agent.nonce, Delegate(owner=True))

    for key in (spawned_agent.nonce, delegation.key):
        with pytest.raises(NotYours):
            read_turn(site.agents, spawned_agent.agent.id, key, turn.id)
    chunks = [chunk async for chunk in read_turn(site.agents, spawned_agent.agent.id, owner.key, turn.id)]
    assert [chunk.body for chunk in chunks] == [b"hello", b""]


async def test_killing_an_agent_ends_its_turns_for_every_reader(site: Site) -> None:
    """The active turn keeps its text, every turn ends with status 410, and the key opens nothing any more."""
    spawned_agent = await site.agent(await site.team())
    turns = [site.turn(spawned_agent, body) for body in (b"a wait", b"b")]
    readings = [asyncio.create_task(read(turn)) for turn in turns]
    await eventually(lambda: turns[0].readable_number == 1)

    await site.spawner.kill_agent(spawned_agent.agent.id, spawned_agent.nonce)

    first, second = await asyncio.gather(*readings)
    assert first[0].body == b"a"
    assert [json.loads(chunks[-1].body)["status"] for chunks in (first, second)] == [410, 410]
    with pytest.raises(NotYours):
        site.turn(spawned_agent, b"hello")


async def test_deleting_a_team_ends_the_turns_of_its_agents(site: Site) -> None:
    """Each reader of each agent gets an error as its last chunk."""
    team = await site.team()
    turns = [site.turn(await site.agent(team, name), b"a wait") for name in "abc"]
    readings = [asyncio.create_task(read(turn)) for turn in turns]
    await eventually(lambda: all(turn.readable_number == 1 for turn in turns))

    await site.spawner.delete_team(team.team.id, team.key)

    assert [chunks[-1].kind for chunks in await asyncio.gather(*readings)] == ["error"] * 3


async def test_an_agent_that_died_is_failed_and_its_last_turn_stays_readable(site: Site) -> None:
    """AC-S3-10: The agent takes no further turn, and the refusal gives the reason."""
    spawned_agent = await site.agent(await site.team())
    chunks = await read(site.turn(spawned_agent, b"a die"))
    await eventually(lambda: site.agents.info(spawned_agent.agent.id, spawned_agent.nonce).state == "failed")

    assert [chunk.kind for chunk in chunks] == ["chunk", "error"]
    async with aclosing(
        read_turn(site.agents, spawned_agent.agent.id, spawned_agent.nonce, chunks[0].turn)
    ) as chunks_again:
        assert [chunk async for chunk in chunks_again] == chunks
    with pytest.raises(Gone, match="it was told to"):
        site.turn(spawned_agent, b"hello")
    assert site.agents.info(spawned_agent.agent.id, spawned_agent.nonce).turns == 1


async def test_after_a_restart_an_agent_resumes_and_turn_ids_are_not_reused(
    runtime: AgentRuntime, tmp_path: pathlib.Path
) -> None:
    """AC-S3-13: The agent has its id, nonce and count of turns; the id of an old turn is unknown."""
    before, after = Site(tmp_path, runtime), Site(tmp_path, runtime)
    async with before.spawner:
        spawned_agent = await before.agent(await before.team())
        old = before.turn(spawned_agent, b"hello")
        await old.wait_ended()
        await before.agents.close()

        # A killed server closes nothing: the other one finds on record what this one left there.
        async with after.spawner:
            new = after.turn(spawned_agent, b"again")
            assert [chunk.body for chunk in await read(new)] == [b"again", b""]
            assert new.id != old.id
            with pytest.raises(LookupError, match="unknown turn"):
                read_turn(after.agents, spawned_agent.agent.id, spawned_agent.nonce, old.id)
            assert after.agents.info(spawned_agent.agent.id, spawned_agent.nonce).turns == 2
            await after.agents.close()
