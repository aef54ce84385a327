"""The services over a Unix socket: small requests, spawns and turns beside the same without HTTP, streams, images.

Server and clients share this process and one processor: what a request costs is both ends of it.
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
from ramet.core.outcome import ErrorInfo
from ramet.services.client.connecting import connect
from ramet.services.contract import CreatedTeam, CreateTeam, Opening, Served, SpawnAgent, SpawnedAgent
from ramet.services.server import Server

CONNECTIONS = 32
AT_ONCE = 64  #: words that come without a pause, as from many agents at once


class Nothing(Struct, forbid_unknown_fields=True):
    """No more is said at the spawn."""


class Teller:
    """An agent that says as many words as the message asks for, or waits for good."""

    def __init__(self, opening: Opening) -> None:
        self.run, self.isolation = f"run-{opening.id}", "none"
        self.ended: asyncio.Future[ErrorInfo | None] = asyncio.get_running_loop().create_future()

    async def turn(self, body: bytes, format: str) -> AsyncIterator[bytes]:
        """`body` is a number; 0 waits."""
        for number in range(int(body)):
            yield b'{"token": "word"}'
            if number % AT_ONCE == 0:
                await asyncio.sleep(0)
        if body == b"0":
            await asyncio.shield(self.ended)

    async def interrupt(self) -> None:
        """Nothing to interrupt."""

    async def control(self, operation: Any) -> Any:
        """There are no operations."""

    async def history(self) -> Sequence[Mapping[str, Any]]:
        """It forgets."""
        return []

    async def mail(self, text: str) -> None:
        """It does not listen."""

    def spent(self) -> Mapping[str, float]:
        """Nothing."""
        return {}

    async def close(self, reason: str) -> None:
        """It is over."""
        if not self.ended.done():
            self.ended.set_result(None)


class TellerType:
    """Next to nothing, so that what is measured is what is around it."""

    name = "teller"
    spawn_info: type = Nothing
    transport_formats: Sequence[str] = ("words",)
    operations: Mapping[str, type] = {}

    async def check(self, opening: Opening) -> None:
        """Anything goes."""

    async def open(self, opening: Opening) -> Served:
        """At once."""
        return Teller(opening)


async def measure(count: int = 2_000, readers: int = 100, turns: int = 1_000) -> Figures:
    """Microseconds, milliseconds, tokens per second, megabytes."""
    with tempfile.TemporaryDirectory(prefix="ramet-b-") as folder:
        async with Server(folder, types={"teller": TellerType()}) as server:
            team = await server.spawner.create_team(CreateTeam(resources={"agents": 1e6}), server.operator)
            figures = await _small(server, count)
            figures |= await _spawns(server, team, max(3, count // 20))
            agent = await _spawn(server, team, "talked-with")
            figures |= await _turns(server, agent, max(3, count // 20))
            figures |= await _stream(server, agent, readers, max(10, count))
            figures |= await _images(server)
            figures |= await _open_turns(server, team, turns)
    return figures


async def _small(server: Server, count: int) -> Figures:
    """`GET /healthz` on connections that stay."""
    each = max(1, count // CONNECTIONS)

    async def ask() -> None:
        reader, writer = await asyncio.open_unix_connection(server.where)
        for _ in range(each):
            writer.write(b"GET /healthz HTTP/1.1\r\nhost: ramet\r\n\r\n")
            head = await reader.readuntil(b"\r\n\r\n")
            length = next(line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length"))
            await reader.readexactly(int(length.partition(b":")[2]))
        writer.close()
        await writer.wait_closed()

    with Cost() as cost:
        await asyncio.gather(*(ask() for _ in range(CONNECTIONS)))
    return {"request_us": cost.cpu_s / (each * CONNECTIONS) * 1e6}


async def _spawns(server: Server, team: CreatedTeam, count: int) -> Figures:
    direct, over = [], []
    async with connect(server.where) as client:
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
    """A turn of one word, beside the same word from the agent itself."""
    bare, direct, over = Teller.__new__(Teller), [], []
    async with connect(server.where, agent.nonce) as client:
        for _ in range(count):
            began = perf_counter()
            async for _ in bare.turn(b"1", "words"):
                pass
            between = perf_counter()
            async with aclosing(client.turn(agent.agent.id, b"1")) as chunks:
                async for _ in chunks:
                    pass
            direct.append(between - began)
            over.append(perf_counter() - between)
    return {"turn_over_ms": (median(over) - median(direct)) * 1e3}


async def _stream(server: Server, agent: SpawnedAgent, readers: int, tokens: int) -> Figures:
    """One turn's tokens, to one reader and to many, who read the bytes and look at nothing."""

    async def read(turn: str) -> None:
        reader, writer = await asyncio.open_unix_connection(server.where)
        path = f"/v1/agents/{agent.agent.id}/turns/{turn}"
        writer.write(f"GET {path} HTTP/1.1\r\nhost: ramet\r\nx-api-key: {agent.nonce}\r\n\r\n".encode())
        tail = b""
        while b"event: done" not in tail:
            piece = await reader.read(1 << 16)
            assert piece, "the stream ends with done"
            tail = tail[-32:] + piece
        writer.close()

    figures: Figures = {}
    for many, key in ((1, "tokens_1_us"), (readers, "tokens_many_us")):
        with Cost() as cost:
            turn = server.agents.turn(agent.agent.id, agent.nonce, str(tokens).encode())
            await asyncio.gather(*(read(turn.id) for _ in range(many)))
        figures[key] = cost.cpu_s / (tokens * many) * 1e6
    return figures


async def _images(server: Server) -> Figures:
    """A bundle of 1 MB in 100 files, uploaded and made an image of, and the same again."""
    packed, dice = io.BytesIO(), random.Random(1)  # noqa: S311, RUF100 - dice, no secrets
    with tarfile.open(fileobj=packed, mode="w:gz") as tar:
        for number in range(100):
            info = tarfile.TarInfo(f"kit/part_{number}.py")
            info.size = 10_000
            tar.addfile(info, io.BytesIO(b"# " + dice.randbytes(4_999).hex().encode()))
    figures: Figures = {}
    async with connect(server.where) as client:
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
    """Turns that are open, each with its agent and a client that reads it."""
    agents = [await _spawn(server, team, f"open-{number}") for number in range(count)]
    before, sockets = rss_mb(), []
    for agent in agents:
        turn = server.agents.turn(agent.agent.id, agent.nonce, b"0")
        reader, writer = await asyncio.open_unix_connection(server.where)
        path = f"/v1/agents/{agent.agent.id}/turns/{turn.id}"
        writer.write(f"GET {path} HTTP/1.1\r\nhost: ramet\r\nx-api-key: {agent.nonce}\r\n\r\n".encode())
        await reader.readuntil(b"\r\n\r\n")
        sockets.append(writer)
    grown = rss_mb() - before
    for writer in sockets:
        writer.close()
    return {"open_mb": grown, "open_fds": float(len(os.listdir("/proc/self/fd")))}  # noqa: PTH208
