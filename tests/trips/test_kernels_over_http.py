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


def count(most: int, wait: int, folder: pathlib.Path) -> bytes:
    """A message to a slow agent."""
    text = f"count {most} {wait} {folder}"
    return json.dumps({"messages": [{"role": "user", "content": text}]}).encode()


class Reader:
    """Reads one turn to its end, wherever it is gone on with."""

    def __init__(self, client: Client, agent: SpawnedAgent, body: bytes) -> None:
        self.chunks: list[Chunk] = []
        self.done = asyncio.create_task(self._read(client, agent, body))

    @property
    def text(self) -> str:
        """What was said, in the format of OpenAI."""
        said = [json.loads(each.body) for each in self.chunks if each.kind == "chunk"]
        return "".join(choice["delta"].get("content") or "" for each in said for choice in each["choices"])

    async def _read(self, client: Client, agent: SpawnedAgent, body: bytes) -> None:
        async with aclosing(client.turn(agent.agent.id, body, format="openai", key=agent.nonce)) as chunks:
            async for chunk in chunks:
                self.chunks.append(chunk)


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


async def test_a_turn_outlasts_its_kernel(all_kernels: Kernels, tmp_path: pathlib.Path) -> None:
    """Killed in the middle of a reply: its reader finds the rest through another one, each chunk once."""
    one, two, three = await asyncio.gather(*(all_kernels.start(name) for name in ("one", "two", "three")))
    await one.client.create_team({"agents": 4}, name="crew")
    bob = await three.client.spawn_agent("crew", "bob", "slow")
    reader = Reader(two.client, bob, count(9, 5, tmp_path))
    await eventually(lambda: reader.text.endswith("4 "))
    await one.kill()
    (tmp_path / "go").touch()
    await reader.done
    assert reader.text == "1 2 3 4 5 6 7 8 9 "
    assert [each.number for each in reader.chunks] == list(range(1, len(reader.chunks) + 1))
    assert len({each.turn for each in reader.chunks}) == 1
    assert reader.chunks[-1].kind == "done"
