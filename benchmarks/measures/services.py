"""The services over a Unix socket: small requests, spawns and turns compared with calls without HTTP, streams, images.

Small requests and readers come from their own process (`benchmarks.visitors`): CPU time is the server's alone. The rest
uses `ramet.connect` in the server's process, on one processor: its time is the time of both ends.
"""

from __future__ import annotations

import asyncio
import io
import os
import random
import tarfile
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import aclosing
from statistics import median
from time import perf_counter
from typing import Any

from msgspec import Raw, Struct

from benchmarks.cost import Cost, Figures, rss_mb
from benchmarks.visitors import visitors
from ramet.core.outcome import ErrorInfo
from ramet.services.client.connect import connect
from ramet.services.contract import AgentSpec, CreatedTeam, CreateTeam, RunningAgent, SpawnAgent, SpawnedAgent
from ramet.services.server.server import Server

CONNECTIONS = 32


class Nothing(Struct, forbid_unknown_fields=True):
    """An empty spawn info."""


class Teller:
    """An agent that says as many words as the message asks for, or waits until it ends."""

    def __init__(self, opening: AgentSpec, go: asyncio.Event) -> None:
        self._go = go
        self.run, self.isolation = f"run-{opening.id}", "none"
        self.end: asyncio.Future[ErrorInfo | None] = asyncio.get_running_loop().create_future()

    async def turn(self, body: bytes, format: str) -> AsyncIterator[bytes]:
        """Say `body` words without a pause, as many agents do concurrently; wait for 0."""
        await self._go.wait()
        for _ in range(int(body)):
            yield b'{"token": "word"}'
        if body == b"0":
            await asyncio.shield(self.end)

    async def interrupt(self) -> None:
        """Interrupt nothing."""

    async def control(self, operation: Any) -> Any:
        """Refuse nothing: there are no operations."""

    async def history(self) -> Sequence[Mapping[str, Any]]:
        """Return an empty history."""
        return []

    async def mail(self, text: str) -> None:
        """Ignore the mail."""

    def usage(self) -> Mapping[str, float]:
        """Return no costs."""
        return {}

    async def close(self, reason: str) -> None:
        """End the agent."""
        if not self.end.done():
            self.end.set_result(None)


class TellerType:
    """An agent type that costs almost nothing, so that the measurement shows the costs around it."""

    name = "teller"
    spawn_info: type = Nothing
    transport_formats: Sequence[str] = ("words",)
    operations: Mapping[str, type] = {}

    def __init__(self) -> None:
        self.go = asyncio.Event()  #: until it is set, none says a word
        self.go.set()

    async def check(self, spec: AgentSpec) -> None:
        """Accept every specification."""

    async def open(self, spec: AgentSpec) -> RunningAgent:
        """Open an agent at once."""
        return Teller(spec, self.go)


async def measure(count: int = 2_000, readers: int = 100, turns: int = 1_000) -> Figures:
    """Return microseconds, milliseconds and megabytes. `turns` is also the number of the last readers."""
    teller = TellerType()
    with tempfile.TemporaryDirectory(prefix="ramet-b-") as folder:
        async with Server(folder, types={"teller": teller}) as server:
            team = await server.spawner.create_team(CreateTeam(resources={"agents": 1e6}), server.operator)
            figures = await _small(server, 10 * count)
            figures |= await _spawns(server, team, max(3, count // 20))
            agent = await _spawn(server, team, "talked-with")
            figures |= await _turns(server, agent, max(3, count // 20))
            for key, many, words in (("1", 1, 25 * count), ("many", readers, count), ("most", turns, count // 4)):
                found = await _stream(server, teller, agent, many, words)
                figures |= {f"tokens_{key}_us": found["each_us"], f"first_{key}_ms": found["first_ms"]}
            figures |= await _images(server)
            figures |= await _open_turns(server, team, turns)
    return figures


async def _small(server: Server, count: int) -> Figures:
    """Measure `GET /healthz` on connections that stay open."""
    async with visitors("requests", server.listen_address, str(count), str(CONNECTIONS)) as all_of_them:
        with Cost() as cost:
            seen = await all_of_them.go()
    return {"request_us": cost.cpu_s / seen["count"] * 1e6, "request_p99_ms": seen["p99_ms"]}


async def _spawns(server: Server, team: CreatedTeam, count: int) -> Figures:
    direct, over = [], []
    async with connect(server.listen_address) as client:
        for number in range(count):
            began = perf_counter()
            await _spawn(server, team, f"direct-{number}")
            between = perf_counter()
            await client.spawn_agent(team.team.id, f"over-{number}", "teller", {}, key=team.key)
            direct.append(between - began)
            over.append(perf_counter() - between)
    return {"spawn_ms": median(over) * 1e3, "spawn_over_ms": (median(over) - median(direct)) * 1e3}


async def _spawn(server: Server, team: CreatedTeam, name: str) -> SpawnedAgent:
    asked = SpawnAgent(team=team.team.id, name=name, agent_type="teller", spawn_info=Raw(b"{}"))
    return await server.spawner.spawn_agent(asked, team.key)


async def _turns(server: Server, agent: SpawnedAgent, count: int) -> Figures:
    """Measure a turn of one word, which itself costs nothing: by ramet's client, and on a plain connection."""
    by_client, plain = [], []
    async with connect(server.listen_address, agent.nonce) as client:
        for _ in range(count):
            began = perf_counter()
            async with aclosing(client.turn(agent.agent.id, b"1")) as chunks:
                async for _ in chunks:
                    pass
            by_client.append(perf_counter() - began)
    reader, writer = await asyncio.open_unix_connection(server.listen_address)
    head = f"POST /v1/agents/{agent.agent.id}/turns HTTP/1.1\r\nhost: ramet\r\nx-api-key: {agent.nonce}\r\n"
    for _ in range(count):
        began = perf_counter()
        writer.write(head.encode() + b"content-length: 1\r\n\r\n1")
        await reader.readuntil(b"\r\n0\r\n\r\n")
        plain.append(perf_counter() - began)
    writer.close()
    return {"turn_over_ms": median(by_client) * 1e3, "turn_plain_ms": median(plain) * 1e3}


async def _stream(server: Server, teller: TellerType, agent: SpawnedAgent, readers: int, words: int) -> Figures:
    """Measure the cost of a word of one turn for each reader, and the time until the last reader has the first word."""
    teller.go.clear()
    turn = server.agents.turn(agent.agent.id, agent.nonce, str(words).encode())
    path = f"/v1/agents/{agent.agent.id}/turns/{turn.id}"
    async with visitors("readers", server.listen_address, path, agent.nonce, str(readers)) as all_of_them:
        with Cost() as cost:
            began = perf_counter()
            teller.go.set()
            seen = await all_of_them.go()
    return {"each_us": cost.cpu_s / (words * readers) * 1e6, "first_ms": (seen["first"] - began) * 1e3}


async def _images(server: Server) -> Figures:
    """Measure a bundle of 1 MB in 100 files that is uploaded and made an image, twice."""
    packed, dice = io.BytesIO(), random.Random(1)  # noqa: S311, RUF100 - dice, no secrets
    with tarfile.open(fileobj=packed, mode="w:gz") as tar:
        for number in range(100):
            info = tarfile.TarInfo(f"kit/part_{number}.py")
            info.size = 10_000
            tar.addfile(info, io.BytesIO(b"# " + dice.randbytes(4_999).hex().encode()))
    figures: Figures = {}
    async with connect(server.listen_address) as client:
        for key in ("image_ms", "image_again_ms"):
            began = perf_counter()
            bundle = await client.upload_bundle(packed.getvalue())
            job = await client.create_image([bundle.id])
            while job.state in ("queued", "running"):
                await asyncio.sleep(0.001)
                job = await client.job(job.id)
            assert job.state == "done", job.error
            figures[key] = (perf_counter() - began) * 1e3
    return figures


async def _open_turns(server: Server, team: CreatedTeam, count: int) -> Figures:
    """Measure open turns, each with its agent and a client that reads it."""
    agents = [await _spawn(server, team, f"open-{number}") for number in range(count)]
    before, sockets = rss_mb(), []
    for agent in agents:
        turn = server.agents.turn(agent.agent.id, agent.nonce, b"0")
        reader, writer = await asyncio.open_unix_connection(server.listen_address)
        path = f"/v1/agents/{agent.agent.id}/turns/{turn.id}"
        writer.write(f"GET {path} HTTP/1.1\r\nhost: ramet\r\nx-api-key: {agent.nonce}\r\n\r\n".encode())
        await reader.readuntil(b"\r\n\r\n")
        sockets.append(writer)
    grown = rss_mb() - before
    for writer in sockets:
        writer.close()
    return {"open_mb": grown, "open_fds": float(len(os.listdir("/proc/self/fd")))}  # noqa: PTH208
