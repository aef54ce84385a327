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
async def waiting(tmp_path: pathlib.Path) -> AsyncIterator[WaitingServer]:
    """The agent's type waits in `open` until the test continues, and failed agents are kept for no time."""
    async with Site(tmp_path / "first") as site:
        team = await site.team("crew", tokens=10)
        site.slow.go_on.set()
        agent = await site.agent(team, type="slow", env=VALUES.env, limits={"tokens": 4}, keep_failed_s=0.0)
        async with await site.as_killed(tmp_path / "later") as later:
            yield WaitingServer(later, team, agent)


async def test_a_waiting_agent_holds_its_capacity(waiting: WaitingServer) -> None:
    """Time does not end it; a kill frees its capacity, and all of its tokens count as used."""
    spawner = waiting.site.spawner
    await waiting.site.clock.advance(10_000)
    info = await spawner.get_agent(waiting.id, waiting.nonce)
    assert (info.state, info.kept_until) == ("waiting", "")
    assert await waiting.site.free(waiting.team) == 2

    await spawner.kill_agent(waiting.id, waiting.nonce)

    assert await waiting.site.free(waiting.team) == 3
    assert await waiting.site.free(waiting.team, "tokens") == 6
    assert await waiting.site.left() == ([], [])


async def test_a_request_to_a_waiting_agent_names_the_missing_values(waiting: WaitingServer) -> None:
    """History, control, mail and turns raise ValuesMissing."""
    living = waiting.site.spawner.agents.authorized_entry(waiting.id, waiting.nonce, "turn")
    for ask in (living.served.history(), living.served.control(None), living.served.mail("hello")):
        with pytest.raises(ValuesMissing, match="LEVEL"):
            await ask
    with pytest.raises(ValuesMissing, match="LEVEL"):
        living.served.turn(b"", "words")


async def test_an_agent_killed_while_its_values_arrive_leaves_nothing(waiting: WaitingServer) -> None:
    """The request is refused, and the opened agent is closed."""
    spawner, slow = waiting.site.spawner, waiting.site.slow
    coming = asyncio.create_task(spawner.supply_values(waiting.id, waiting.nonce, VALUES))
    await eventually(lambda: slow.at_it == 1)
    killing = asyncio.create_task(spawner.kill_agent(waiting.id, waiting.nonce))
    await asyncio.sleep(0)
    slow.go_on.set()

    with pytest.raises(NotYours):
        await coming
    await killing
    assert await waiting.site.left() == ([], [])
    assert await waiting.site.free(waiting.team) == 3
    assert list(spawner.agents) == []


async def test_the_second_of_two_concurrent_requests_with_values_is_refused(waiting: WaitingServer) -> None:
    """The agent is opened once."""
    waiting.site.slow.go_on.set()
    calls = [waiting.site.spawner.supply_values(waiting.id, key, VALUES) for key in (waiting.nonce, OPERATOR)]
    first, second = await asyncio.gather(*calls, return_exceptions=True)

    assert not isinstance(first, BaseException)
    assert first.state == "idle"
    assert isinstance(second, InvalidValue)
    assert waiting.site.slow.at_it == 1
    assert waiting.site.slow.opened[0].opening.env == {"LEVEL": "high"}


async def test_values_from_a_former_owner_are_refused(waiting: WaitingServer) -> None:
    """A request that waits while a transfer is being recorded is refused like a later one."""
    waiting.site.slow.go_on.set()
    handing_over = waiting.site.spawner.delegate(waiting.id, waiting.nonce, Delegate(owner=True))
    supplying = waiting.site.spawner.supply_values(waiting.id, waiting.nonce, VALUES)
    owner, refusal = await asyncio.gather(handing_over, supplying, return_exceptions=True)

    assert not isinstance(owner, BaseException)
    assert isinstance(refusal, NotYours)
    assert (await waiting.site.spawner.get_agent(waiting.id, owner.key)).state == "waiting"


async def test_a_waiting_agent_opens_with_the_rotated_key(waiting: WaitingServer) -> None:
    """The old nonce is refused."""
    waiting.site.slow.go_on.set()
    nonce = await waiting.site.spawner.rotate(waiting.id, waiting.nonce)
    with pytest.raises(NotYours):
        await waiting.site.spawner.supply_values(waiting.id, waiting.nonce, VALUES)

    await waiting.site.spawner.supply_values(waiting.id, nonce, VALUES)

    assert (await waiting.site.spawner.get_agent(waiting.id, nonce)).state == "idle"
