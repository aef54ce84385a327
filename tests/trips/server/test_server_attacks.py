"""Attacks with a dead, foreign or reused key, and with bytes that are no HTTP."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import pathlib

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.serving import EchoServer, serving
from tests.support.waiting import eventually

ROUTES = [
    ("GET", ""), ("DELETE", ""), ("GET", "/history"), ("GET", "/events"), ("POST", "/interrupt"), ("POST", "/turns"),
    ("GET", "/turns/x"), ("POST", "/control"), ("POST", "/mail"), ("POST", "/rotate"), ("POST", "/keys"),
    ("DELETE", "/keys/x"),
]  # fmt: skip


@pytest.mark.parametrize("end", ["killed", "rotated", "handed over", "revoked", "its team deleted"])
async def test_a_dead_key_opens_nothing(echo_server: EchoServer, end: str) -> None:
    """Every route answers a dead key as it answers a key that never existed."""
    agent, nonce = await echo_server.agent()
    path = f"/v1/agents/{agent}"
    dead = nonce
    match end:
        case "killed":
            await echo_server.ask("DELETE", path, nonce)
        case "rotated":
            await echo_server.ask("POST", f"{path}/rotate", nonce)
        case "handed over":
            await echo_server.ask("POST", f"{path}/keys", nonce, json={"owner": True})
        case "revoked":
            created_agent = (
                await echo_server.ask("POST", f"{path}/keys", nonce, json={"rights": ["turn", "kill", "info"]})
            ).json()
            dead = created_agent["key"]
            await echo_server.ask("DELETE", f"{path}/keys/{created_agent['id']}", nonce)
        case _:
            team = (await echo_server.ask("GET", path, nonce)).json()["team"]
            await echo_server.ask("DELETE", f"/v1/teams/{team}", echo_server.server.operator)

    for method, rest in ROUTES:
        response = await echo_server.ask(method, path + rest, dead)
        never = await echo_server.ask(method, path + rest, "agent_never")
        assert (response.status_code, response.text) == (401, never.text), (method, rest)
    assert (await echo_server.ask("POST", "/v1/messages", dead, content=b"{}")).status_code == 401


async def test_a_repeated_request_has_no_second_effect(echo_server: EchoServer) -> None:
    """A repeated spawn creates no second agent, and a repeated rotation does not return the new key again."""
    team, key = await echo_server.team(agents=2)
    body = {"team": team, "name": "bob", "agent_type": "echo"}
    first = (await echo_server.ask("POST", "/v1/agents", key, json=body)).json()
    second_answer = await echo_server.ask("POST", "/v1/agents", key, json=body)
    assert (second_answer.status_code, second_answer.json()["field"]) == (422, "name")
    assert (await echo_server.ask("GET", f"/v1/teams/{team}", key)).json()["agents"] == 1

    path, nonce = f"/v1/agents/{first['agent']['id']}", first["nonce"]
    rotated = [await echo_server.ask("POST", f"{path}/rotate", nonce) for _ in range(2)]
    assert [each.status_code for each in rotated] == [200, 401]
    nonce = rotated[0].json()["nonce"]
    assert [(await echo_server.ask("DELETE", path, nonce)).status_code for _ in range(2)] == [204, 401]


async def test_one_of_many_concurrent_handovers_wins(echo_server: EchoServer) -> None:
    """One of twenty requests with the same key gets a new key, which works. Concurrent kills remove the agent."""
    team, key = await echo_server.team(agents=1)
    for _ in range(5):
        body = {"team": team, "name": "bob", "agent_type": "echo"}
        created_agent = (await echo_server.ask("POST", "/v1/agents", key, json=body)).raise_for_status().json()
        path, nonce = f"/v1/agents/{created_agent['agent']['id']}", created_agent["nonce"]
        rotating = [echo_server.ask("POST", f"{path}/rotate", nonce) for _ in range(10)]
        owning = [echo_server.ask("POST", f"{path}/keys", nonce, json={"owner": True}) for _ in range(10)]

        answers = await asyncio.gather(*rotating, *owning)
        given_out = [each.json() for each in answers if each.status_code < 300]
        assert len(given_out) == 1
        new = given_out[0].get("nonce") or given_out[0]["key"]
        killing = await asyncio.gather(*(echo_server.ask("DELETE", path, new) for _ in range(5)))
        assert 204 in [each.status_code for each in killing]
        assert (await echo_server.ask("GET", f"/v1/teams/{team}", key)).json()["free"] == {"agents": 1}


async def test_deleting_a_team_aborts_its_queued_spawns(echo_server: EchoServer) -> None:
    """Each queued spawn gets `aborted`, and nothing of the team is left."""
    team, key = await echo_server.team(agents=1)
    body = {"team": team, "agent_type": "echo", "wait_s": 600}
    (await echo_server.ask("POST", "/v1/agents", key, json={**body, "name": "a"})).raise_for_status()
    [team_state] = echo_server.server.spawner._team_states.values()
    waiting = [
        asyncio.create_task(echo_server.ask("POST", "/v1/agents", key, json={**body, "name": f"b{number}"}))
        for number in range(10)
    ]
    await eventually(lambda: len(team_state._queue) == 10)

    assert (await echo_server.ask("DELETE", f"/v1/teams/{team}", key)).status_code == 204

    for each in await asyncio.gather(*waiting):
        assert (each.status_code, each.json()["type"]) == (409, "urn:ramet:problem:aborted")
    assert (await echo_server.ask("GET", "/v1/agents", echo_server.server.operator)).json() == {"agents": []}
    assert echo_server.echo.opened[0].end.done()


LINES = st.sampled_from([
    b"GET /healthz HTTP/1.1\r\n", b"POST /v1/teams HTTP/1.1\r\n", b"GET / HTTP/9.9\r\n", b"GET  /\r\n", b"\r\n", b"\n",
    b"host: x\r\n", b"content-length: 3\r\n", b"content-length: -1\r\n", b"content-length: 99999999999999999999\r\n",
    b"transfer-encoding: chunked\r\n", b"transfer-encoding: gzip, chunked\r\n", b"connection: upgrade\r\n",
    b"upgrade: websocket\r\n", b"expect: 100-continue\r\n", b"x-api-key: agent_no\r\n", b"authorization: Bearer\r\n",
    b" folded: line\r\n", b": no name\r\n", b"name\x00: x\r\n", b"0\r\n\r\n", b"ffffffffffffffff\r\n", b"3\r\nabc\r\n",
    b"CONNECT x:1 HTTP/1.1\r\n", b"GET /\xff HTTP/1.1\r\n", b"GET /%ff%00 HTTP/1.1\r\n", b"OPTIONS * HTTP/1.1\r\n",
    b"GET http://[::1 HTTP/1.1\r\n", b"HEAD /healthz HTTP/1.0\r\n", b"abc",
])  # fmt: skip


def test_no_bytes_harm_a_server(folder: pathlib.Path, caplog: pytest.LogCaptureFixture) -> None:
    """Random HTTP lines and bytes never cause a 500 or a logged error, and the server answers the next client."""

    async def answer_to_bytes(echo_server: EchoServer, data: bytes) -> bytes:
        reader, writer = await echo_server.connection()
        try:
            writer.write(data)
            response = bytearray()
            with contextlib.suppress(TimeoutError, ConnectionError):  # It may be waiting for more.
                async with asyncio.timeout(0.05):
                    while piece := await reader.read(65_536):
                        response += piece
            with contextlib.suppress(OSError):
                writer.write_eof()
                async with asyncio.timeout(180):
                    response += await reader.read()
            return bytes(response)
        finally:
            writer.close()

    with asyncio.Runner() as runner:
        context = serving(folder)
        echo_server = runner.run(context.__aenter__())

        @settings(max_examples=60, suppress_health_check=list(HealthCheck))
        @given(st.lists(st.one_of(LINES, st.binary(max_size=20)), min_size=1, max_size=8))
        def attack(lines: list[bytes]) -> None:
            response = runner.run(answer_to_bytes(echo_server, b"".join(lines)))
            assert response == b"" or response.startswith(b"HTTP/1.1 ")
            assert b"HTTP/1.1 5" not in response

        try:
            attack()
            assert runner.run(echo_server.ask("GET", "/healthz")).status_code == 200
            assert (
                json.loads(runner.run(answer_to_bytes(echo_server, b"\x00\r\n\r\n")).partition(b"\r\n\r\n")[2])[
                    "status"
                ]
                == 400
            )
        finally:
            runner.run(context.__aexit__(None, None, None))
    assert [each for each in caplog.records if each.levelno >= logging.ERROR] == []
