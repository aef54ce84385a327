"""More connections than a server holds, each of which was answered once: the operator is answered all the same."""

from __future__ import annotations

import asyncio
import pathlib
import resource
import socket
from collections.abc import Iterator

import pytest

import ramet
from tests.support.serve_process import plugin, serve
from tests.support.serving import short_folder
from tests.support.waiting import eventually

pytestmark = pytest.mark.slow

REQUEST = b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n"


@pytest.fixture
def folder() -> Iterator[pathlib.Path]:
    with short_folder() as path:
        yield path


def opened(path: pathlib.Path, number: int) -> list[socket.socket]:
    """So many connections, each of which has had an answer. Waits for the server's accepting."""
    found = []
    for _ in range(number):
        each = socket.socket(socket.AF_UNIX)
        found.append(each)
        each.settimeout(60)
        each.connect(str(path))
        each.sendall(REQUEST)
        assert each.recv(4096).startswith(b"HTTP/1.1 200 OK")
    return found


def held(process: int) -> int:
    """How many descriptors it has."""
    return len(list(pathlib.Path(f"/proc/{process}/fd").iterdir()))


def is_cut(connection: socket.socket) -> bool:
    connection.setblocking(False)
    try:
        return connection.recv(1) == b""
    except ConnectionError:
        return True
    except BlockingIOError:
        return False


@pytest.mark.parametrize(
    ("descriptors", "most"),
    [pytest.param("1000", 500, id="500"), pytest.param("", 10_000, id="10000", marks=pytest.mark.chaos)],
)
async def test_who_holds_connections_keeps_nobody_out(folder: pathlib.Path, descriptors: str, most: int) -> None:
    """Of so many and a hundred more the oldest give way; agents are spawned, talk and end; at the end all is free."""
    may_open, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = min(most, int(descriptors or may_open) // 2)  # as the server bounds them
    plugin(folder)
    async with serve(folder, descriptors=descriptors) as server:
        path = folder / ".ramet" / "serve.sock"
        before = held(server.process.pid)
        connections = await asyncio.to_thread(opened, path, most + 100)
        try:
            assert held(server.process.pid) <= before + most + 20
            await eventually(lambda: sum(map(is_cut, connections[:100])) == 100)

            async with ramet.connect(path) as client:
                team = await client.create_team({"agents": 1})
                spawned = await client.spawn_agent(team.team.id, "bob", "echo", key=team.key)
                assert await client.say(spawned.agent.id, b"one two", key=spawned.nonce) == b"onetwo"
                await client.delete_team(team.team.id)
        finally:
            for each in connections:
                each.close()
        await eventually(lambda: held(server.process.pid) <= before + 5)
