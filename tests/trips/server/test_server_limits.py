"""Limits of a whole server: bytes of bodies, queued spawns, and connections of strangers."""

from __future__ import annotations

import asyncio
import contextlib
import json
import pathlib
from contextlib import AsyncExitStack

import pytest

from ramet.services.http.connections import Bounds
from ramet.services.http.request import RequestContext
from ramet.services.teams import team_state
from ramet.services.turns.queue import TurnLimits
from tests.support.serving import EchoServer, serving
from tests.support.waiting import eventually

KIB = 1024


def request_bytes(key: str, path: str, *, length: int, body: bytes = b"", method: str = "POST") -> bytes:
    """Return a request as bytes, with a body that may be shorter than its length."""
    head = f"{method} {path} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {key}\r\ncontent-length: {length}"
    return f"{head}\r\n\r\n".encode() + body


async def head_of(reader: asyncio.StreamReader) -> tuple[int, dict[str, str]]:
    """Return the status and the headers of an answer."""
    first, *lines = (await reader.readuntil(b"\r\n\r\n")).decode().strip().split("\r\n")
    return int(first.split()[1]), {k.lower(): v for k, v in (each.split(": ", 1) for each in lines)}


async def send_unfinished_body(
    echo_server: EchoServer, leaving: AsyncExitStack, key: str, path: str
) -> asyncio.StreamReader:
    """Open a connection, and send a body of 300 KiB except its last byte."""
    reader, writer = await echo_server.connection()
    leaving.callback(writer.close)
    with contextlib.suppress(ConnectionError):
        writer.write(request_bytes(key, path, length=300 * KIB, body=b" " * (300 * KIB - 1)))
        await writer.drain()
    return reader


@pytest.mark.parametrize("path", ["/v1/agents", "/v1/agents/{agent}/turns"])
async def test_unfinished_bodies_share_one_budget_of_bytes(folder: pathlib.Path, path: str) -> None:
    """A team above its share gets 429, and any team above the budget gets 503.

    Small bodies pass, and every byte is released.

    The keys of a team's agents share the budget of the team's own key.
    """
    bounds = Bounds(body_bytes=1000 * KIB, team_body_bytes=650 * KIB)
    async with serving(folder, bounds=bounds, talk=TurnLimits(body_bytes=400 * KIB)) as echo_server:
        teams = [await echo_server.team() for _ in range(3)]
        keys, paths = [key for _, key in teams], [path] * 3
        if "{agent}" in path:
            for number, (team, key) in enumerate(teams):
                body = {"team": team, "name": "bob", "agent_type": "echo"}
                created_agent = (await echo_server.ask("POST", "/v1/agents", key, json=body)).json()
                keys[number], paths[number] = created_agent["nonce"], path.format(agent=created_agent["agent"]["id"])
        bodies = echo_server.server._parts.bodies
        async with AsyncExitStack() as leaving, asyncio.timeout(180):
            for _ in range(2):
                await send_unfinished_body(echo_server, leaving, keys[0], paths[0])
            await eventually(lambda: bodies.held_bytes >= 2 * (300 - 64) * KIB - 2)
            status, headers = await head_of(await send_unfinished_body(echo_server, leaving, teams[0][1], "/v1/agents"))
            assert (status, headers["retry-after"]) == (429, "1")

            await send_unfinished_body(echo_server, leaving, keys[1], paths[1])
            await send_unfinished_body(echo_server, leaving, keys[1], paths[1])
            await eventually(lambda: bodies.held_bytes >= 4 * (300 - 64) * KIB - 4)
            status, headers = await head_of(await send_unfinished_body(echo_server, leaving, keys[2], paths[2]))
            assert (status, headers["retry-after"]) == (503, "1")

            small = await echo_server.ask(
                "POST", "/v1/teams", echo_server.server.operator, json={"resources": {"agents": 1}}
            )
            assert small.status_code == 201
        await eventually(lambda: bodies.held_bytes == 0)
        second_answer = await echo_server.ask("POST", paths[0], keys[0], content=b" " * 300 * KIB)
        assert second_answer.status_code in (200, 400)
        await eventually(lambda: bodies.held_bytes == 0 and not bodies.held_by_owner)


async def test_the_queue_of_spawns_is_bounded_in_time_and_length(
    folder: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A longer wait is refused with the maximum. A spawn behind a full queue gets 429, and takes no name."""
    monkeypatch.setattr(team_state, "MAX_WAITING", 2, raising=False)
    async with serving(folder) as echo_server:
        team, key = await echo_server.team(agents=1)
        fields = {"team": team, "agent_type": "echo", "wait_s": 600}
        too_long = await echo_server.ask("POST", "/v1/agents", key, json={**fields, "name": "long", "wait_s": 600.5})
        assert (too_long.status_code, too_long.json()["field"]) == (422, "wait_s")
        assert "600" in too_long.json()["accepted"]

        assert (await echo_server.ask("POST", "/v1/agents", key, json={**fields, "name": "one"})).status_code == 201
        (state,) = echo_server.server.spawner._team_states.values()
        async with AsyncExitStack() as leaving, asyncio.timeout(180):
            for name in ("two", "three"):
                body = json.dumps({**fields, "name": name}).encode()
                _, writer = await echo_server.connection()
                leaving.callback(writer.close)
                writer.write(request_bytes(key, "/v1/agents", length=len(body), body=body))
            await eventually(lambda: len(state._queue) == 2)

            response = await echo_server.ask("POST", "/v1/agents", key, json={**fields, "name": "four"})
            assert (response.status_code, response.json()["type"]) == (429, "urn:ramet:problem:busy")
            assert response.headers["retry-after"] == "1"
            assert "2 spawns" in response.json()["detail"]
            assert "four" not in state.names


@pytest.mark.parametrize(
    ("method", "path", "status"), [("POST", "/v1/agents", 401), ("GET", "/healthz", 200), ("POST", "/nothing", 404)]
)
async def test_a_stranger_without_a_body_does_not_block_connections(
    folder: pathlib.Path, method: str, path: str, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer does not wait for the body, and the connection makes room for the next one."""
    # More than this test may take, however busy the machine is: who waits for a body waits in vain.
    monkeypatch.setattr(RequestContext.drain_body, "__defaults__", (600.0,))
    async with serving(folder, bounds=Bounds(connections=3)) as echo_server, AsyncExitStack() as leaving:
        async with asyncio.timeout(180):
            for _ in range(4):
                reader, writer = await echo_server.connection()
                leaving.callback(writer.close)
                writer.write(request_bytes("nobody", path, length=9, method=method))
                found_status, headers = await head_of(reader)
                assert (found_status, headers["connection"]) == (status, "close")
                assert await reader.readexactly(int(headers["content-length"]))
            assert (await echo_server.ask("GET", "/v1/teams", echo_server.server.operator)).status_code == 200
