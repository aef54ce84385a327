"""More connections than a server keeps, each answered once: the operator is still served."""

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


def open_connections(path: pathlib.Path, number: int) -> list[socket.socket]:
    """Open so many connections and read an answer on each. Waits until the server accepts each one."""
    found = []
    for _ in range(number):
        each = socket.socket(socket.AF_UNIX)
        found.append(each)
        each.settimeout(60)
        each.connect(str(path))
        each.sendall(REQUEST)
        assert each.recv(4096).startswith(b"HTTP/1.1 200 OK")
    return found


def count_descriptors(process: int) -> int:
    """Count the open descriptors of a process."""
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
    [
        pytest.param("1000", 500, id="500"),
        pytest.param("", 10_000, id="10000", marks=[pytest.mark.chaos, pytest.mark.larger]),
    ],
)
async def test_idle_connections_keep_no_client_out(folder: pathlib.Path, descriptors: str, most: int) -> None:
    """The server closes the oldest connections above its bound; agents are spawned, answer and end.

    Descriptors are released at the end.
    """
    may_open, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = min(most, int(descriptors or may_open) // 2)  # as the server bounds them
    plugin(folder)
    async with serve(folder, descriptors=descriptors) as server:
        path = folder / ".ramet" / "serve.sock"
        before = count_descriptors(server.process.pid)
        connections = await asyncio.to_thread(open_connections, path, most + 100)
        try:
            assert count_descriptors(server.process.pid) <= before + most + 20
            await eventually(lambda: sum(map(is_cut, connections[:100])) == 100)

            async with ramet.connect(path) as client:
                team = await client.create_team({"agents": 1})
                spawned = await client.spawn_agent(team.team.id, "bob", "echo", key=team.key)
                assert await client.say(spawned.agent.id, b"one two", key=spawned.nonce) == b"onetwo"
                await client.delete_team(team.team.id)
        finally:
            for each in connections:
                each.close()
        await eventually(lambda: count_descriptors(server.process.pid) <= before + 5)
