"""Several kernels on one PostgreSQL, as clients meet them: any of them answers for any agent, and one may be lost."""

from __future__ import annotations

import asyncio
import json
import pathlib
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import aclosing

import httpx2
import pytest

from ramet.core.errors import NotYours, OverCapacity, RametError
from ramet.services.client.client import Client
from ramet.services.contract import Chunk, CreatedTeam, SpawnedAgent
from tests.support import postgres
from tests.support.kernels import TOKEN, Kernels, kernels
from tests.support.waiting import eventually

pytestmark = pytest.mark.parametrize("stores", ["postgres"])  # It is there for those who say so.


@pytest.fixture
async def all_kernels(tmp_path: pathlib.Path, stores: str) -> AsyncIterator[Kernels]:
    """None at first."""
    async with kernels(postgres.running(), tmp_path) as found:
        yield found


async def test_any_kernel_answers_for_any_agent(all_kernels: Kernels) -> None:
    """Told by id, by its key, in lists; what is not there is not there, whoever is asked."""
    one, two = [await all_kernels.start(name) for name in ("one", "two")]
    team = await one.client.create_team({"agents": 4}, name="crew")
    other = await two.client.create_team({"agents": 4}, name="others")
    bob = await two.client.spawn_agent("crew", "bob", "echo", key=team.key)
    assert b"hearing" in await two.client.say(bob.agent.id, b"hearing you", key=bob.nonce)
    assert [each.id for each in await two.client.list_teams()] == [team.team.id, other.team.id]
    assert [each.id for each in await one.client.list_agents()] == [bob.agent.id]
    assert (await two.client.get_team("crew")).agents == 1
