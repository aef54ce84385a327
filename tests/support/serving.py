"""A server in a folder with a short name, and simple clients of it: bytes over a socket, or httpx2 over the socket."""

from __future__ import annotations

import asyncio
import pathlib
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import httpx2

from ramet.services.server.server import Server
from tests.support.echo_agents import EchoType


@contextmanager
def short_folder() -> Iterator[pathlib.Path]:
    """Yield a folder with a short path: the address of a socket has at most 107 bytes."""
    with tempfile.TemporaryDirectory(prefix="r") as path:
        yield pathlib.Path(path)


class EchoServer:
    """A server with echo agents, and an HTTP client of it."""

    def __init__(self, server: Server, echo: EchoType, http: httpx2.AsyncClient) -> None:
        self.server, self.echo, self.http = server, echo, http

    async def ask(self, method: str, path: str, key: str = "", **options: Any) -> httpx2.Response:
        """Send one request with a key."""
        headers = {"authorization": f"Bearer {key}"} if key else {}
        return await self.http.request(method, path, headers={**headers, **options.pop("headers", {})}, **options)

    async def team(self, **resources: float) -> tuple[str, str]:
        """Make a new team; return its id and key."""
        asked = {"resources": {"agents": 4, **resources}}
        made = (await self.ask("POST", "/v1/teams", self.server.operator, json=asked)).raise_for_status().json()
        return made["team"]["id"], made["key"]

    async def agent(self, **spawn: Any) -> tuple[str, str]:
        """Spawn a new agent in a new team; return its id and nonce."""
        team, key = await self.team()
        asked = {"team": team, "name": "bob", "agent_type": "echo", **spawn}
        made = (await self.ask("POST", "/v1/agents", key, json=asked)).raise_for_status().json()
        return made["agent"]["id"], made["nonce"]

    async def connection(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Open a bare connection, for requests that no client would send."""
        if self.server.listen_address.startswith("http://"):
            host, _, port = self.server.listen_address.removeprefix("http://").rpartition(":")
            return await asyncio.open_connection(host, int(port))
        return await asyncio.open_unix_connection(self.server.listen_address)


@asynccontextmanager
async def serving(folder: pathlib.Path, **options: Any) -> AsyncIterator[EchoServer]:
    """Run a server in this event loop."""
    echo = options.pop("echo", None) or EchoType()
    options.setdefault("types", {"echo": echo})
    async with Server(folder, **options) as server:
        address = server.listen_address
        transport = httpx2.AsyncHTTPTransport(uds=None if address.startswith("http://") else address)
        base = address if address.startswith("http://") else "http://ramet"
        async with httpx2.AsyncClient(transport=transport, base_url=base, timeout=180) as http:
            yield EchoServer(server, echo, http)
