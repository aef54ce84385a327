"""Costs of idle conversations, clients, and readers of a stream, for a server.

Clients are in their own process. A conversation is an agent of the type `llm` after one turn, in the journal and in all
views of the server.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
from contextlib import aclosing

from msgspec import Raw

from benchmarks.cost import Cost, Figures, rss_mb
from benchmarks.measures.services import TellerType
from benchmarks.visitors import visitors
from ramet.services.agent_types.llm.type import LlmType
from ramet.services.contract import CreatedTeam, CreateTeam, SpawnAgent, SpawnedAgent
from ramet.services.server.server import Server

FIRST = 10  #: what the first ones import and cache is not theirs
AT_ONCE = 20  #: conversations: the model takes its time
PIPES = 2  #: to the process of the clients


async def measure(conversations: int = 100, clients: int = 300) -> Figures:
    """Return kilobytes and descriptors for each."""
    teller = TellerType()
    with tempfile.TemporaryDirectory(prefix="ramet-b-") as folder:
        async with Server(folder, types={"teller": teller, "llm": LlmType(default="offline")}) as server:
            team = await server.spawner.create_team(CreateTeam(resources={"agents": 1e6}), server.operator)
            figures = await _conversations(server, team, conversations)
            figures |= await _clients(server, clients)
            figures |= await _readers(server, teller, team, clients)
            teller.go.set()
    return figures


async def _conversations(server: Server, team: CreatedTeam, count: int) -> Figures:
    for number in range(FIRST):
        await _converse(server, team, f"first-{number}")
    before, fds = rss_mb(), _descriptors()
    with Cost() as cost:
        for first in range(0, count, AT_ONCE):
            names = (f"agent-{number}" for number in range(first, min(first + AT_ONCE, count)))
            await asyncio.gather(*(_converse(server, team, name) for name in names))
    return {
        "conversation_kb": (rss_mb() - before) / count * 1024,
        "conversation_fds": (_descriptors() - fds) / count,
        "conversation_ms": cost.cpu_s / count * 1e3,
    }


async def _converse(server: Server, team: CreatedTeam, name: str) -> None:
    agent = await _spawn(server, team, name, "llm")
    turn = server.agents.turn(agent.agent.id, agent.nonce, b"Say something.")
    async with aclosing(server.agents.batches(agent.agent.id, agent.nonce, turn)) as batches:
        async for _ in batches:
            pass


async def _clients(server: Server, count: int) -> Figures:
    """Measure connections that have made no request yet."""
    for clients in (FIRST, count):
        fds = await _settled_descriptors()
        before = rss_mb()
        async with visitors("requests", server.listen_address, str(clients), str(clients)) as all_of_them:
            while _descriptors() < fds + clients + PIPES:  # noqa: ASYNC110 - it is the loop itself that takes them in
                await asyncio.sleep(0.01)
            figures = {
                "client_kb": (rss_mb() - before) / clients * 1024,
                "client_fds": (_descriptors() - fds - PIPES) / clients,
            }
            await all_of_them.go()
    return figures


async def _readers(server: Server, teller: TellerType, team: CreatedTeam, count: int) -> Figures:
    """Measure readers of one turn of an agent that has not answered yet."""
    agent = await _spawn(server, team, "talker", "teller")
    for readers in (FIRST, count):
        teller.go.clear()
        turn = server.agents.turn(agent.agent.id, agent.nonce, b"1")
        path = f"/v1/agents/{agent.agent.id}/turns/{turn.id}"
        before, fds = rss_mb(), _descriptors()
        async with visitors("readers", server.listen_address, path, agent.nonce, str(readers)) as all_of_them:
            figures = {
                "reader_kb": (rss_mb() - before) / readers * 1024,
                "reader_fds": (_descriptors() - fds - PIPES) / readers,
            }
            teller.go.set()
            await all_of_them.go()
    return figures


async def _settled_descriptors() -> int:
    """Return the number of open descriptors once it stands still: those of earlier clients are being closed."""
    count, now = -1, _descriptors()
    while count != now:
        await asyncio.sleep(0.1)
        count, now = now, _descriptors()
    return now


def _descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))  # noqa: PTH208


async def _spawn(server: Server, team: CreatedTeam, name: str, kind: str) -> SpawnedAgent:
    asked = SpawnAgent(team=team.team.id, name=name, agent_type=kind, spawn_info=Raw(b"{}"))
    return await server.spawner.spawn_agent(asked, team.key)
