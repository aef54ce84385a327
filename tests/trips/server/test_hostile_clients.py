"""Hostile and broken clients: each is refused, bounded or disconnected, and the server continues."""

from __future__ import annotations

import asyncio
import contextlib
import json
import pathlib
import socket
from collections.abc import AsyncGenerator, AsyncIterator
from functools import partial
from typing import Any

import pytest

from ramet.services.contract import AgentSpec, Right, RunningAgent
from ramet.services.http.body_budget import BodyHold
from ramet.services.http.connections import Bounds
from ramet.services.http.request import RequestContext
from tests.support.echo_agents import Echo, EchoType
from tests.support.serving import EchoServer as Serving
from tests.support.serving import serving
from tests.support.waiting import eventually


@pytest.fixture
async def impatient_server(folder: pathlib.Path) -> AsyncIterator[Serving]:
    """A server with a short timeout for the head of a request."""
    async with serving(folder, bounds=Bounds(head_s=1, head_bytes=2048)) as server:
        yield server


async def answer_to(echo_server: Serving, request_bytes: bytes) -> tuple[int, dict[str, str], bytes]:
    """Send bytes, and return the answer up to the end of the connection."""
    reader, writer = await echo_server.connection()
    try:
        writer.write(request_bytes)
        async with asyncio.timeout(180):
            head, _, body = (await reader.read()).partition(b"\r\n\r\n")
    finally:
        writer.close()
    if not head:
        return 0, {}, b""
    first, *lines = head.decode().split("\r\n")
    return int(first.split()[1]), {k.lower(): v for k, v in (each.split(": ", 1) for each in lines)}, body


def turn_request(agent: str, nonce: str, body: bytes, *, length: int) -> bytes:
    """Return the request of a turn as bytes, with a body that may be shorter than its length."""
    head = f"POST /v1/agents/{agent}/turns HTTP/1.1\r\nhost: x\r\nx-api-key: {nonce}\r\ncontent-length: {length}"
    return f"{head}\r\n\r\n".encode() + body


async def is_well(echo_server: Serving) -> bool:
    return (await echo_server.ask("GET", "/healthz")).status_code == 200


# ---- what is no request


async def test_an_unfinished_head_is_answered_and_closed(impatient_server: Serving) -> None:
    """A head that does not end gets 408. A silent connection is closed without an answer."""
    status, headers, body = await answer_to(impatient_server, b"GET /healthz HTTP/1.1\r\nhost: x\r\n")

    assert (status, headers["content-type"]) == (408, "application/problem+json")
    assert json.loads(body)["status"] == 408
    assert await answer_to(impatient_server, b"") == (0, {}, b"")
    assert await is_well(impatient_server)


async def test_an_endless_head_is_refused(impatient_server: Serving) -> None:
    """The server refuses endless headers once they reach their limit of bytes."""
    status, _, _ = await answer_to(impatient_server, b"GET / HTTP/1.1\r\n" + b"x-more: and more\r\n" * 200)

    assert status in (400, 431)
    assert await is_well(impatient_server)


async def test_headers_that_are_too_large_are_refused(echo_server: Serving) -> None:
    """A complete head that is too large gets 400 or 431."""
    response = await echo_server.ask("GET", "/healthz", headers={"x-large": "x" * 70_000})

    assert response.status_code in (400, 431)
    assert await is_well(echo_server)


@pytest.mark.parametrize(
    "request_bytes",
    [b"\x16\x03\x01\x02\x00\x01", b"GET\r\n\r\n", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"],
    ids=["tls", "get", "h2"],
)
async def test_another_protocol_gets_a_problem_document(echo_server: Serving, request_bytes: bytes) -> None:
    """The server answers 400 or 404, and closes the connection."""
    status, headers, body = await answer_to(echo_server, request_bytes + b"\r\n\r\n")

    assert status in (400, 404)
    assert headers["content-type"] == "application/problem+json"
    assert json.loads(body)["status"] == status
    assert await is_well(echo_server)


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"\x00\xff\r\n\r\n",
        b"GET /\xff HTTP/1.1\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n\x00\r\n\r\n",
    ],
    ids=["bytes", "path", "behind a third"],
)
async def test_garbage_after_a_request_ends_its_answer(echo_server: Serving, request_bytes: bytes) -> None:
    """The answer stops, and no second answer is written into it."""
    agent, nonce = await echo_server.agent()
    reader, writer = await echo_server.connection()
    writer.write(turn_request(agent, nonce, b"one wait", length=8))
    response = await reader.readuntil(b"data: one\n\n")

    writer.write(request_bytes)
    async with asyncio.timeout(180):
        response += await reader.read()
    writer.close()

    assert response.count(b"HTTP/1.1") == 1
    assert b"about:blank" not in response
    assert not response.endswith(b"0\r\n\r\n")
    assert await is_well(echo_server)


async def test_endless_pipelined_requests_end_the_connection(echo_server: Serving) -> None:
    """A client that never waits for answers loses its connection, and the requests are not kept."""
    reader, writer = await echo_server.connection()

    async def answered() -> int:
        answers = 0
        with contextlib.suppress(ConnectionError):
            while piece := await reader.read(65_536):
                answers += piece.count(b"200 OK")
        return answers

    reading = asyncio.create_task(answered())
    writer.transport.set_write_buffer_limits(high=0)
    with contextlib.suppress(ConnectionError):
        for _ in range(10):
            writer.write(b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n" * 1000)
            await writer.drain()
        writer.write(b"GET /healthz HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
    answers = await reading
    writer.close()

    assert answers < 10_000
    assert await is_well(echo_server)


@pytest.mark.parametrize("trailer", [b"x: y\r\n", b"x"], ids=["many", "one"])
async def test_an_endless_trailer_of_a_body_ends_the_connection(echo_server: Serving, trailer: bytes) -> None:
    """The server keeps nothing after the last chunk, and does not wait for a timeout."""
    _, writer = await echo_server.connection()
    key = f"x-api-key: {echo_server.server.operator}\r\n"
    writer.write(f"POST /v1/teams HTTP/1.1\r\nhost: x\r\n{key}transfer-encoding: chunked\r\n\r\n".encode())
    await eventually(lambda: any(not each.is_between() for each in echo_server.server._http_server._connections))
    writer.transport.set_write_buffer_limits(high=0)
    writer.write(b"0\r\n" + (b"" if b":" in trailer else b"x: "))
    size = 0
    with contextlib.suppress(ConnectionError):
        while size < 8 * 2**20:
            writer.write(trailer * (65_536 // len(trailer)))
            await writer.drain()
            size += 65_536
    writer.close()

    assert size < 8 * 2**20
    assert await is_well(echo_server)


# ---- how many


async def test_idle_connections_make_room_for_new_ones(folder: pathlib.Path) -> None:
    """A new connection replaces the one that has been idle the longest. If all are active, it gets 503."""
    async with serving(folder, bounds=Bounds(connections=3)) as echo_server:
        agent, nonce = await echo_server.agent()  # on a connection that is kept
        await echo_server.http.aclose()
        connections = echo_server.server._http_server._connections
        await eventually(lambda: not connections)
        first, second, third = [await echo_server.connection() for _ in range(3)]
        await eventually(lambda: len(connections) == 3)

        status, _, _ = await answer_to(echo_server, b"GET /healthz HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
        assert (status, await first[0].read()) == (200, b"")

        for _, writer in (second, third):
            writer.write(turn_request(agent, nonce, b"one wait", length=8))
        fourth = await echo_server.connection()
        fourth[1].write(turn_request(agent, nonce, b"one wait", length=8))
        await eventually(lambda: len(connections) == 3 and not any(each.is_between() for each in connections))
        status, headers, body = await answer_to(echo_server, b"")
        assert (status, headers["content-type"], json.loads(body)["status"]) == (503, "application/problem+json", 503)

        fourth[1].close()
        await eventually(lambda: len(connections) == 2)
        assert (await answer_to(echo_server, b"GET /healthz HTTP/1.1\r\nconnection: close\r\n\r\n"))[0] == 200
        for _, writer in (first, second, third):
            writer.close()


# ---- bodies


async def test_a_body_over_the_limit_is_refused(echo_server: Serving) -> None:
    """The server refuses the body by its length, or once its bytes exceed the limit. The agent receives nothing."""
    agent, nonce = await echo_server.agent()
    large = echo_server.server._parts.message_bytes + 1

    by_length = await echo_server.ask("POST", f"/v1/agents/{agent}/turns", nonce, content=b"x" * large)
    by_coming = await echo_server.ask("POST", f"/v1/agents/{agent}/turns", nonce, content=pieces(large))

    for each in (by_length, by_coming):
        assert (each.status_code, each.json()["type"]) == (413, "urn:ramet:problem:body-too-large")
    assert echo_server.echo.opened[0].received_bodies == []
    too_large = await echo_server.ask("POST", "/v1/teams", echo_server.server.operator, content=b" " * 5_000_000)
    assert too_large.status_code == 413


async def pieces(size: int) -> AsyncGenerator[bytes, None]:
    while size > 0:
        yield b"x" * min(size, 65_536)
        size -= 65_536


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/v1/teams"),
        ("POST", "/v1/agents"),
        ("POST", "/v1/agents/{agent}/turns"),
        ("POST", "/v1/agents/{agent}/control"),
        ("POST", "/v1/agents/{agent}/mail"),
        ("POST", "/v1/agents/{agent}/keys"),
        ("POST", "/v1/bundles"),
        ("POST", "/v1/images"),
        ("POST", "/v1/chat/completions"),
        ("POST", "/v1/messages"),
    ],
)
async def test_the_server_does_not_read_the_body_of_a_stranger(
    echo_server: Serving, monkeypatch: pytest.MonkeyPatch, method: str, path: str
) -> None:
    """A request without a valid key is refused before its body is read, so it costs no memory."""
    agent, _ = await echo_server.agent()
    read_sizes: list[int] = []
    reads = RequestContext.body

    async def body(call: RequestContext, most: int, right: Right | None = None) -> bytes:
        read_sizes.append(most)
        return await reads(call, most, right)

    monkeypatch.setattr(RequestContext, "body", body)

    response = await echo_server.ask(method, path.format(agent=agent), "agent_no", content=b"x" * 100_000)

    assert response.status_code == 401
    assert read_sizes == []


@pytest.mark.parametrize("path", ["turns", "control", "mail", "keys", "values"])
async def test_the_server_does_not_read_the_body_for_an_agent_of_others(
    echo_server: Serving, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    """The key of another agent is refused before the body is read, as for an agent that does not exist."""
    (agent, _), (_, other) = await echo_server.agent(), await echo_server.agent()
    held_sizes: list[int] = []
    monkeypatch.setattr(BodyHold, "take", lambda hold, size, *, is_whole: held_sizes.append(size))

    response = await echo_server.ask("POST", f"/v1/agents/{agent}/{path}", other, content=b"x" * 100_000)

    assert (response.status_code, response.json()["type"]) == (404, "urn:ramet:problem:not-yours")
    assert held_sizes == []


async def test_a_body_that_never_arrives_times_out(echo_server: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server answers 408 after the time limit for a piece of a body."""
    monkeypatch.setattr("ramet.services.http.request.PIECE_S", 0.5)
    monkeypatch.setattr("ramet.services.http.request._SPILL_S", 0.05)
    head = (
        f"POST /v1/teams HTTP/1.1\r\nhost: x\r\nx-api-key: {echo_server.server.operator}\r\n"
        "content-length: 99\r\n\r\n{"
    )

    status, headers, body = await answer_to(echo_server, head.encode())

    assert (status, headers["connection"]) == (408, "close")
    assert json.loads(body)["type"] == "urn:ramet:problem:request-timeout"


async def test_half_a_body_starts_no_turn(echo_server: Serving) -> None:
    """The client disconnects in the middle of its body."""
    agent, nonce = await echo_server.agent()
    _, writer = await echo_server.connection()
    writer.write(turn_request(agent, nonce, b"one", length=99))
    await writer.drain()
    writer.close()

    await eventually(lambda: len(echo_server.server._http_server._connections) <= 1)
    assert echo_server.echo.opened[0].received_bodies == []
    assert await is_well(echo_server)


@pytest.mark.parametrize(
    ("body", "status", "field"),
    [
        (b"{", 400, "body"),
        (b"\xff", 400, "body"),
        (b'{"config": ' + b"[" * 100_000, 400, "body"),
        (b"[]", 422, "body"),
        (b'{"resources": {"agents": "1"}}', 422, "resources[...]"),
        (b'{"resources": {"agents": 1}, "nmae": "x"}', 422, "nmae"),
        (b"{}", 422, "resources"),
        (b'{"resources": {"agents": -1}}', 422, "resources.agents"),
    ],
    ids=["half", "bytes", "deep", "list", "type", "unknown", "missing", "value"],
)
async def test_an_invalid_body_is_refused(echo_server: Serving, body: bytes, status: int, field: str) -> None:
    """A body that is not JSON gets 400. A wrong field gets 422 with its name."""
    response = await echo_server.ask("POST", "/v1/teams", echo_server.server.operator, content=body)

    assert (response.status_code, response.json()["field"]) == (status, field)
    assert response.headers["content-type"] == "application/problem+json"
    assert (await echo_server.ask("GET", "/v1/teams", echo_server.server.operator)).json() == {"teams": []}


async def test_an_unexpected_body_does_not_harm_the_next_request(echo_server: Serving) -> None:
    """An operation that takes no body skips it. The next request on the connection is answered."""
    agent, nonce = await echo_server.agent()
    reader, writer = await echo_server.connection()
    head = turn_request(agent, nonce, b"x" * 1000, length=2_000_000).replace(b"/turns", b"/interrupt")
    writer.write(head)
    await eventually(
        lambda: [each._http.cycle for each in echo_server.server._http_server._connections][-1] is not None
    )
    writer.transport.set_write_buffer_limits(high=0)
    writer.write(b"x" * 1_999_000)
    try:
        async with asyncio.timeout(180):
            with contextlib.suppress(ConnectionError):
                await writer.drain()  # More than any socket holds: most of it has been read.
            answers = await reader.readuntil(b"}")
            writer.write(b"GET /healthz HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
            answers += await reader.read()
    finally:
        writer.close()

    assert answers.count(b"HTTP/1.1 200 OK") == answers.count(b"HTTP/1.1") == 2


# ---- paths, methods, queries


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/", 404),
        ("GET", "/v1/teams/", 404),
        ("GET", "/v1/nothing", 404),
        ("GET", "/v1/agents/a%2Fb", 404),
        ("PUT", "/v1/teams", 405),
        ("PATCH", "/healthz", 405),
        ("OPTIONS", "/v1/teams", 405),
        ("GET", "/v1/agents?other=1", 422),
        ("GET", "/v1/agents?team=a&team=b", 422),
        ("GET", "/v1/agents?label=x", 422),
        ("POST", "/v1/agents/none/turns", 404),
        ("GET", "/v1/jobs/none", 404),
        ("GET", "/v1/images/..%2f..", 404),
    ],
)
async def test_an_unknown_path_method_or_query_gets_a_problem_document(
    echo_server: Serving, method: str, path: str, status: int
) -> None:
    """A 405 lists the allowed methods."""
    response = await echo_server.ask(method, path, echo_server.server.operator)

    assert (response.status_code, response.json()["status"]) == (status, status)
    assert response.headers["content-type"] == "application/problem+json"
    assert (status == 405) == ("allow" in response.headers)


@pytest.mark.parametrize("key", ["", "wrong", "x" * 5_000, "agent_", "ü"], ids=["no", "wrong", "long", "kind", "text"])
async def test_an_invalid_key_is_refused(echo_server: Serving, key: str) -> None:
    """The key reads neither agents nor images."""
    agent, _ = await echo_server.agent()
    for path in (f"/v1/agents/{agent}", f"/v1/agents/{agent}/history", "/v1/images"):
        response = await echo_server.http.get(path, headers={b"x-api-key": key.encode()})
        assert response.status_code == 401, path


# ---- readers


class Flood(Echo):
    """An agent whose answer is larger than any connection holds."""

    async def turn(self, body: bytes, format: str) -> AsyncIterator[bytes]:
        self.received_bodies.append((body, format))
        for _ in range(200):
            yield b"x" * 65_536


class FloodType(EchoType):
    """The type of such agents."""

    async def open(self, spec: AgentSpec) -> RunningAgent:
        self.opened.append(Flood(spec))
        return self.opened[-1]


async def test_a_stalled_reader_is_disconnected(folder: pathlib.Path) -> None:
    """The agent does not wait for the reader, and its turn ends."""
    echo = FloodType()
    async with serving(folder, echo=echo, bounds=Bounds(stall_s=0.05)) as echo_server:
        agent, nonce = await echo_server.agent()
        reader, writer = await echo_server.connection()
        writer.write(turn_request(agent, nonce, b"go", length=2))
        await eventually(lambda: echo.opened and echo.opened[0].received_bodies)
        streams: Any = echo_server.server._parts.streams

        await eventually(lambda: len(streams) == 0)

        with contextlib.suppress(ConnectionError):  # What it had been sent before may still be read.
            while await reader.read(65_536):
                pass
        writer.close()
        living = echo_server.server.spawner.agents.authorize(agent, nonce, "info").entry
        await eventually(lambda: (living.turns, living.state) == (1, "idle"))


@pytest.mark.parametrize("after", [2**63, 10**30], ids=["64 bits", "more"])
async def test_a_cursor_out_of_range_is_refused(echo_server: Serving, after: int) -> None:
    """The server refuses the field `after` before the answer begins."""
    agent, nonce = await echo_server.agent()

    response = await echo_server.ask("GET", f"/v1/agents/{agent}/events", nonce, params={"after": after})

    assert (response.status_code, response.json()["field"]) == (422, "after")


async def test_an_answer_that_is_never_read_is_dropped(folder: pathlib.Path) -> None:
    """The server drops the connection although the answer is complete and small."""
    async with serving(folder, bounds=Bounds(stall_s=0.05)) as echo_server:
        connections = echo_server.server._http_server._connections
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(echo_server.server.listen_address)
            await eventually(lambda: len(connections) == 1)
            [theirs] = connections

            def was_answered(before: object) -> bool:
                return theirs not in connections or (theirs._http.cycle is not before and theirs.is_between())

            while theirs in connections and not theirs._transport.get_write_buffer_size():
                before = theirs._http.cycle
                client.send(b"GET /openapi.json HTTP/1.1\r\nhost: x\r\n\r\n")
                await eventually(partial(was_answered, before))

            await eventually(lambda: not connections)

        assert await is_well(echo_server)


async def test_a_queued_spawn_of_a_disconnected_client_is_dropped(echo_server: Serving) -> None:
    """No client would know the agent's nonce, so the spawn leaves the queue and no agent starts."""
    team, key = await echo_server.team(agents=1)
    fields = {"team": team, "name": "a", "agent_type": "echo", "wait_s": 600}
    first = (await echo_server.ask("POST", "/v1/agents", key, json=fields)).raise_for_status().json()
    [team_state] = echo_server.server.spawner._team_states.values()
    _, writer = await echo_server.connection()
    body = json.dumps({**fields, "name": "b"}).encode()
    head = f"POST /v1/agents HTTP/1.1\r\nhost: x\r\nx-api-key: {key}\r\ncontent-length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body)
    await eventually(lambda: len(team_state._queue) == 1)

    writer.close()

    await eventually(lambda: not team_state._queue and not team_state.spawning)
    (await echo_server.ask("DELETE", f"/v1/agents/{first['agent']['id']}", key=first["nonce"])).raise_for_status()
    assert (await echo_server.ask("GET", f"/v1/teams/{team}", key)).json()["free"] == {"agents": 1}


async def test_a_hundred_readers_get_one_turn(echo_server: Serving) -> None:
    """Each reader gets the whole turn."""
    agent, nonce = await echo_server.agent()
    async with echo_server.http.stream(
        "POST", f"/v1/agents/{agent}/turns", content=b"one wait two", headers={"x-api-key": nonce}
    ) as answer:
        path = f"/v1/agents/{agent}/turns/{answer.headers['ramet-turn']}"

        async def read() -> bytes:
            reader, writer = await echo_server.connection()
            writer.write(f"GET {path} HTTP/1.1\r\nhost: x\r\nx-api-key: {nonce}\r\nconnection: close\r\n\r\n".encode())
            try:
                return await reader.read()
            finally:
                writer.close()

        reading = [asyncio.create_task(read()) for _ in range(100)]
        await eventually(lambda: len(echo_server.server._parts.streams) == 101)
        echo_server.echo.opened[0].go_on.set()
        answers = await asyncio.gather(*reading)

    assert len(set(answers)) <= 2  # what was queued went out in one piece, or in two
    assert all(b"data: two" in each and b"event: done" in each for each in answers)


async def test_concurrent_spawns_fill_a_team_exactly(echo_server: Serving) -> None:
    """Ten of a hundred concurrent spawns succeed. Each refusal says what is free."""
    team, key = await echo_server.team(agents=10)
    bodies = [{"team": team, "name": f"a{number}", "agent_type": "echo"} for number in range(100)]

    answers = await asyncio.gather(*(echo_server.ask("POST", "/v1/agents", key, json=each) for each in bodies))

    assert sorted(each.status_code for each in answers) == [201] * 10 + [409] * 90
    assert all(each.json()["free"] == 0 for each in answers if each.status_code == 409)
    assert (await echo_server.ask("GET", f"/v1/teams/{team}", key)).json()["agents"] == 10
