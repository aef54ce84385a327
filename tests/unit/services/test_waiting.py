"""Agents that wait for values which are not persisted: the capacity that they hold, and their end."""

from __future__ import annotations

import asyncio
import pathlib
from collections.abc import AsyncIterator

import pytest

from ramet.core.errors import InvalidValue, NotYours
from ramet.services.contract import CreatedTeam, Delegate, SpawnedAgent, SupplyValues
from ramet.services.errors import ValuesMissing
from tests.support.sites import OPERATOR, Site
from tests.support.waiting import eventually

VALUES = SupplyValues(env={"LEVEL": "high"})


class WaitingServer:
    """A server that started after a kill, with one agent that waits for the value of LEVEL."""

    def __init__(self, site: Site, team: CreatedTeam, agent: SpawnedAgent) -> None:
        self.site, self.team, self.id, self.nonce = site, team, agent.agent.id, agent.nonce


@pytest.fixture
async def waiting_server(tmp_path: pathlib.Path) -> AsyncIterator[WaitingServer]:
    """The agent's type waits in `open` until the test continues, and failed agents are kept for no time."""
    async with Site(tmp_path / "first") as site:
        team = await site.team("crew", tokens=10)
        site.slow.go_on.set()
        agent = await site.agent(team, type="slow", env=VALUES.env, limits={"tokens": 4}, keep_failed_s=0.0)
        async with await site.as_killed(tmp_path / "later") as next_site:
            yield WaitingServer(next_site, team, agent)


async def test_a_waiting_agent_holds_its_capacity(waiting_server: WaitingServer) -> None:
    """Time does not end it; a kill frees its capacity, and all of its tokens count as used."""
    spawner = waiting_server.site.spawner
    await waiting_server.site.clock.advance(10_000)
    info = await spawner.get_agent(waiting_server.id, waiting_server.nonce)
    assert (info.state, info.kept_until) == ("waiting", "")
    assert await waiting_server.site.free(waiting_server.team) == 2

    await spawner.kill_agent(waiting_server.id, waiting_server.nonce)

    assert await waiting_server.site.free(waiting_server.team) == 3
    assert await waiting_server.site.free(waiting_server.team, "tokens") == 6
    assert await waiting_server.site.left() == ([], [])


async def test_a_request_to_a_waiting_agent_names_the_missing_values(waiting_server: WaitingServer) -> None:
    """History, control, mail and turns raise ValuesMissing."""
    living = waiting_server.site.spawner.agents.authorize(waiting_server.id, waiting_server.nonce, "turn").entry
    for ask in (living.running_agent.history(), living.running_agent.control(None), living.running_agent.mail("hello")):
        with pytest.raises(ValuesMissing, match="LEVEL"):
            await ask
    with pytest.raises(ValuesMissing, match="LEVEL"):
        living.running_agent.turn(b"", "words")


async def test_an_agent_killed_while_its_values_arrive_leaves_nothing(waiting_server: WaitingServer) -> None:
    """The request is refused, and the opened agent is closed."""
    spawner, slow = waiting_server.site.spawner, waiting_server.site.slow
    coming = asyncio.create_task(spawner.supply_values(waiting_server.id, waiting_server.nonce, VALUES))
    await eventually(lambda: slow.at_it == 1)
    killing = asyncio.create_task(spawner.kill_agent(waiting_server.id, waiting_server.nonce))
    await asyncio.sleep(0)
    slow.go_on.set()

    with pytest.raises(NotYours):
        await coming
    await killing
    assert await waiting_server.site.left() == ([], [])
    assert await waiting_server.site.free(waiting_server.team) == 3
    assert list(spawner.agents) == []


async def test_the_second_of_two_concurrent_requests_with_values_is_refused(waiting_server: WaitingServer) -> None:
    """The agent is opened once."""
    waiting_server.site.slow.go_on.set()
    calls = [
        waiting_server.site.spawner.supply_values(waiting_server.id, key, VALUES)
        for key in (waiting_server.nonce, OPERATOR)
    ]
    first, second = await asyncio.gather(*calls, return_exceptions=True)

    assert not isinstance(first, BaseException)
    assert first.state == "idle"
    assert isinstance(second, InvalidValue)
    assert waiting_server.site.slow.at_it == 1
    assert waiting_server.site.slow.opened[0].opening.env == {"LEVEL": "high"}


async def test_values_from_a_former_owner_are_refused(waiting_server: WaitingServer) -> None:
    """A request that waits while a transfer is being recorded is refused like a later one."""
    waiting_server.site.slow.go_on.set()
    handing_over = waiting_server.site.spawner.owners.delegate(
        waiting_server.id, waiting_server.nonce, Delegate(owner=True)
    )
    supplying = waiting_server.site.spawner.supply_values(waiting_server.id, waiting_server.nonce, VALUES)
    owner, refusal = await asyncio.gather(handing_over, supplying, return_exceptions=True)

    assert not isinstance(owner, BaseException)
    assert isinstance(refusal, NotYours)
    assert (await waiting_server.site.spawner.get_agent(waiting_server.id, owner.key)).state == "waiting"


async def test_a_waiting_agent_opens_with_the_rotated_key(waiting_server: WaitingServer) -> None:
    """The old nonce is refused."""
    waiting_server.site.slow.go_on.set()
    nonce = await waiting_server.site.spawner.owners.rotate(waiting_server.id, waiting_server.nonce)
    with pytest.raises(NotYours):
        await waiting_server.site.spawner.supply_values(waiting_server.id, waiting_server.nonce, VALUES)

    await waiting_server.site.spawner.supply_values(waiting_server.id, nonce, VALUES)

    assert (await waiting_server.site.spawner.get_agent(waiting_server.id, nonce)).state == "idle"
