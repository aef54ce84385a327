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


class Left:
    """A server that started after a kill, with one agent that waits for the value of LEVEL."""

    def __init__(self, site: Site, team: CreatedTeam, agent: SpawnedAgent) -> None:
        self.site, self.team, self.id, self.nonce = site, team, agent.agent.id, agent.nonce


@pytest.fixture
async def left(tmp_path: pathlib.Path) -> AsyncIterator[Left]:
    """The agent's type waits in `open` until the test continues, and failed agents are kept for no time."""
    async with Site(tmp_path / "first") as site:
        team = await site.team("crew", tokens=10)
        site.slow.go_on.set()
        agent = await site.agent(team, type="slow", env=VALUES.env, limits={"tokens": 4}, keep_failed_s=0.0)
        async with await site.as_killed(tmp_path / "later") as later:
            yield Left(later, team, agent)


async def test_a_waiting_agent_holds_its_capacity(left: Left) -> None:
    """Time does not end it; a kill frees its capacity, and all of its tokens count as used."""
    spawner = left.site.spawner
    await left.site.clock.advance(10_000)
    info = await spawner.get_agent(left.id, left.nonce)
    assert (info.state, info.kept_until) == ("waiting", "")
    assert await left.site.free(left.team) == 2

    await spawner.kill_agent(left.id, left.nonce)

    assert await left.site.free(left.team) == 3
    assert await left.site.free(left.team, "tokens") == 6
    assert await left.site.left() == ([], [])


async def test_a_request_to_a_waiting_agent_names_the_missing_values(left: Left) -> None:
    """History, control, mail and turns raise ValuesMissing."""
    living = left.site.spawner.agents.authorized_entry(left.id, left.nonce, "turn")
    for ask in (living.served.history(), living.served.control(None), living.served.mail("hello")):
        with pytest.raises(ValuesMissing, match="LEVEL"):
            await ask
    with pytest.raises(ValuesMissing, match="LEVEL"):
        living.served.turn(b"", "words")


async def test_an_agent_killed_while_its_values_arrive_leaves_nothing(left: Left) -> None:
    """The request is refused, and the opened agent is closed."""
    spawner, slow = left.site.spawner, left.site.slow
    coming = asyncio.create_task(spawner.supply_values(left.id, left.nonce, VALUES))
    await eventually(lambda: slow.at_it == 1)
    killing = asyncio.create_task(spawner.kill_agent(left.id, left.nonce))
    await asyncio.sleep(0)
    slow.go_on.set()

    with pytest.raises(NotYours):
        await coming
    await killing
    assert await left.site.left() == ([], [])
    assert await left.site.free(left.team) == 3
    assert list(spawner.agents) == []


async def test_the_second_of_two_concurrent_requests_with_values_is_refused(left: Left) -> None:
    """The agent is opened once."""
    left.site.slow.go_on.set()
    asked = [left.site.spawner.supply_values(left.id, key, VALUES) for key in (left.nonce, OPERATOR)]
    first, second = await asyncio.gather(*asked, return_exceptions=True)

    assert not isinstance(first, BaseException)
    assert first.state == "idle"
    assert isinstance(second, InvalidValue)
    assert left.site.slow.at_it == 1
    assert left.site.slow.opened[0].opening.env == {"LEVEL": "high"}


async def test_values_from_a_former_owner_are_refused(left: Left) -> None:
    """A request that waits while a transfer is being recorded is refused like a later one."""
    left.site.slow.go_on.set()
    handing_over = left.site.spawner.delegate(left.id, left.nonce, Delegate(owner=True))
    supplying = left.site.spawner.supply_values(left.id, left.nonce, VALUES)
    owner, refused = await asyncio.gather(handing_over, supplying, return_exceptions=True)

    assert not isinstance(owner, BaseException)
    assert isinstance(refused, NotYours)
    assert (await left.site.spawner.get_agent(left.id, owner.key)).state == "waiting"


async def test_a_waiting_agent_opens_with_the_rotated_key(left: Left) -> None:
    """The old nonce is refused."""
    left.site.slow.go_on.set()
    nonce = await left.site.spawner.rotate(left.id, left.nonce)
    with pytest.raises(NotYours):
        await left.site.spawner.supply_values(left.id, left.nonce, VALUES)

    await left.site.spawner.supply_values(left.id, nonce, VALUES)

    assert (await left.site.spawner.get_agent(left.id, nonce)).state == "idle"
