"""What clients do who mean no good, or are broken: each is refused, bounded or cut off, and the server goes on."""

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

from ramet.services.contract import AgentSpec, RunningAgent
from ramet.services.http.connections import Bounds
from ramet.services.http.request import RequestContext
from tests.support.echo_agents import Echo, EchoType
from tests.support.serving import Served as Serving
from tests.support.serving import serving
from tests.support.waiting import eventually


@pytest.fixture
async def hasty(folder: pathlib.Path) -> AsyncIterator[Serving]:
    """A server that does not wait long for the head of a request."""
    async with serving(folder, bounds=Bounds(head_s=1, head_bytes=2048)) as found:
        yield found


async def answer_to(served: Serving, request: bytes) -> tuple[int, dict[str, str], bytes]:
    """What bytes are answered with, up to the end of the connection."""
    reader, writer = await served.connection()
    try:
        writer.write(request)
        async with asyncio.timeout(180):
            head, _, body = (await reader.read()).partition(b"\r\n\r\n")
    finally:
        writer.close()
    if not head:
        return 0, {}, b""
    first, *lines = head.decode().split("\r\n")
    return int(first.split()[1]), {k.lower(): v for k, v in (each.split(": ", 1) for each in lines)}, body


def said_to(agent: str, nonce: str, body: bytes, *, length: int) -> bytes:
    """A turn, as bytes; of its body so much."""
    head = f"POST /v1/agents/{agent}/turns HTTP/1.1\r\nhost: x\r\nx-api-key: {nonce}\r\ncontent-length: {length}"
    return f"{head}\r\n\r\n".encode() + body


async def is_well(served: Serving) -> bool:
    return (await served.ask("GET", "/healthz")).status_code == 200


# ---- what is no request


async def test_half_a_request_is_answered_and_cut_off(hasty: Serving) -> None:
    """A head that does not end, and a connection that says nothing: neither is kept."""
    status, headers, body = await answer_to(hasty, b"GET /healthz HTTP/1.1\r\nhost: x\r\n")

    assert (status, headers["content-type"]) == (408, "application/problem+json")
    assert json.loads(body)["status"] == 408
    assert await answer_to(hasty, b"") == (0, {}, b"")
    assert await is_well(hasty)


async def test_a_head_without_end_is_cut_off(hasty: Serving) -> None:
    """Header after header, and no end: it is refused when it has had its bytes."""
    status, _, _ = await answer_to(hasty, b"GET / HTTP/1.1\r\n" + b"x-more: and more\r\n" * 200)

    assert status in (400, 431)
    assert await is_well(hasty)


async def test_headers_that_are_too_large(served: Serving) -> None:
    """A whole head of too many bytes is a problem document."""
    refused = await served.ask("GET", "/healthz", headers={"x-large": "x" * 70_000})

    assert refused.status_code in (400, 431)
    assert await is_well(served)


@pytest.mark.parametrize(
    "sent", [b"\x16\x03\x01\x02\x00\x01", b"GET\r\n\r\n", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"], ids=["tls", "get", "h2"]
)
async def test_what_is_no_http(served: Serving, sent: bytes) -> None:
    """Another protocol is told so, and its connection closed."""
    status, headers, body = await answer_to(served, sent + b"\r\n\r\n")

    assert status in (400, 404)
    assert headers["content-type"] == "application/problem+json"
    assert json.loads(body)["status"] == status
    assert await is_well(served)


@pytest.mark.parametrize(
    "sent",
    [
        b"\x00\xff\r\n\r\n",
        b"GET /\xff HTTP/1.1\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n\x00\r\n\r\n",
    ],
    ids=["bytes", "path", "behind a third"],
)
async def test_garbage_behind_a_request_that_is_being_answered(served: Serving, sent: bytes) -> None:
    """The answer breaks off, and nothing is written into the midst of it."""
    agent, nonce = await served.agent()
    reader, writer = await served.connection()
    writer.write(said_to(agent, nonce, b"one wait", length=8))
    said = await reader.readuntil(b"data: one\n\n")

    writer.write(sent)
    async with asyncio.timeout(180):
        said += await reader.read()
    writer.close()

    assert said.count(b"HTTP/1.1") == 1
    assert b"about:blank" not in said
    assert not said.endswith(b"0\r\n\r\n")
    assert await is_well(served)


async def test_requests_behind_requests_without_end(served: Serving) -> None:
    """So many as nobody sends who waits for answers: they are not kept, the connection is cut."""
    reader, writer = await served.connection()

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
    assert await is_well(served)


@pytest.mark.parametrize("sent", [b"x: y\r\n", b"x"], ids=["many", "one"])
async def test_a_body_whose_end_does_not_end(served: Serving, sent: bytes) -> None:
    """What comes behind the last chunk is kept by nobody: the connection is cut, and not by the clock."""
    _, writer = await served.connection()
    key = f"x-api-key: {served.server.operator}\r\n"
    writer.write(f"POST /v1/teams HTTP/1.1\r\nhost: x\r\n{key}transfer-encoding: chunked\r\n\r\n".encode())
    await eventually(lambda: any(not each.is_between() for each in served.server._http_server._connections))
    writer.transport.set_write_buffer_limits(high=0)
    writer.write(b"0\r\n" + (b"" if b":" in sent else b"x: "))
    size = 0
    with contextlib.suppress(ConnectionError):
        while size < 8 * 2**20:
            writer.write(sent * (65_536 // len(sent)))
            await writer.drain()
            size += 65_536
    writer.close()

    assert size < 8 * 2**20
    assert await is_well(served)


# ---- how many


async def test_connections_that_only_wait_keep_nobody_out(folder: pathlib.Path) -> None:
    """One more takes the place of the one that has waited the longest; where all are at work it is told so."""
    async with serving(folder, bounds=Bounds(connections=3)) as served:
        agent, nonce = await served.agent()  # on a connection that is kept
        await served.http.aclose()
        connections = served.server._http_server._connections
        await eventually(lambda: not connections)
        first, second, third = [await served.connection() for _ in range(3)]
        await eventually(lambda: len(connections) == 3)

        status, _, _ = await answer_to(served, b"GET /healthz HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
        assert (status, await first[0].read()) == (200, b"")

        for _, writer in (second, third):
            writer.write(said_to(agent, nonce, b"one wait", length=8))
        fourth = await served.connection()
        fourth[1].write(said_to(agent, nonce, b"one wait", length=8))
        await eventually(lambda: len(connections) == 3 and not any(each.is_between() for each in connections))
        status, headers, body = await answer_to(served, b"")
        assert (status, headers["content-type"], json.loads(body)["status"]) == (503, "application/problem+json", 503)

        fourth[1].close()
        await eventually(lambda: len(connections) == 2)
        assert (await answer_to(served, b"GET /healthz HTTP/1.1\r\nconnection: close\r\n\r\n"))[0] == 200
        for _, writer in (first, second, third):
            writer.close()


# ---- bodies


async def test_a_body_over_the_cap(served: Serving) -> None:
    """It is refused by its length, or once it has come to it, whichever is known first; nothing is kept of it."""
    agent, nonce = await served.agent()
    large = served.server._parts.message_bytes + 1

    by_length = await served.ask("POST", f"/v1/agents/{agent}/turns", nonce, content=b"x" * large)
    by_coming = await served.ask("POST", f"/v1/agents/{agent}/turns", nonce, content=pieces(large))

    for each in (by_length, by_coming):
        assert (each.status_code, each.json()["type"]) == (413, "urn:ramet:problem:body-too-large")
    assert served.echo.opened[0].heard == []
    too_large = await served.ask("POST", "/v1/teams", served.server.operator, content=b" " * 5_000_000)
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
async def test_nothing_of_a_strangers_body_is_taken_in(
    served: Serving, monkeypatch: pytest.MonkeyPatch, method: str, path: str
) -> None:
    """Whoever has no key for it is refused before the body is read, not after: it costs the server no memory."""
    agent, _ = await served.agent()
    read: list[int] = []
    reads = RequestContext.body

    async def body(call: RequestContext, most: int) -> bytes:
        read.append(most)
        return await reads(call, most)

    monkeypatch.setattr(RequestContext, "body", body)

    refused = await served.ask(method, path.format(agent=agent), "agent_no", content=b"x" * 100_000)

    assert refused.status_code == 401
    assert read == []


async def test_a_body_that_is_promised_and_never_sent(served: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is waited for no longer than a piece may take."""
    monkeypatch.setattr("ramet.services.http.request.PIECE_S", 0.5)
    monkeypatch.setattr("ramet.services.http.request._SPILL_S", 0.05)
    head = f"POST /v1/teams HTTP/1.1\r\nhost: x\r\nx-api-key: {served.server.operator}\r\ncontent-length: 99\r\n\r\n{{"

    status, headers, body = await answer_to(served, head.encode())

    assert (status, headers["connection"]) == (408, "close")
    assert json.loads(body)["type"] == "urn:ramet:problem:request-timeout"


async def test_a_client_that_leaves_in_the_middle_of_its_body(served: Serving) -> None:
    """Nothing is done with half of it."""
    agent, nonce = await served.agent()
    _, writer = await served.connection()
    writer.write(said_to(agent, nonce, b"one", length=99))
    await writer.drain()
    writer.close()

    await eventually(lambda: len(served.server._http_server._connections) <= 1)
    assert served.echo.opened[0].heard == []
    assert await is_well(served)


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
async def test_a_body_that_is_none(served: Serving, body: bytes, status: int, field: str) -> None:
    """No JSON is 400; wrong fields are 422, and named."""
    refused = await served.ask("POST", "/v1/teams", served.server.operator, content=body)

    assert (refused.status_code, refused.json()["field"]) == (status, field)
    assert refused.headers["content-type"] == "application/problem+json"
    assert (await served.ask("GET", "/v1/teams", served.server.operator)).json() == {"teams": []}


async def test_a_body_that_nobody_asked_for(served: Serving) -> None:
    """An operation that reads none lets it pass by: the next request on the connection is answered as any other."""
    agent, nonce = await served.agent()
    reader, writer = await served.connection()
    head = said_to(agent, nonce, b"x" * 1000, length=2_000_000).replace(b"/turns", b"/interrupt")
    writer.write(head)
    await eventually(lambda: [each._http.cycle for each in served.server._http_server._connections][-1] is not None)
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
async def test_what_there_is_not(served: Serving, method: str, path: str, status: int) -> None:
    """Problem documents as well, which say what is possible."""
    refused = await served.ask(method, path, served.server.operator)

    assert (refused.status_code, refused.json()["status"]) == (status, status)
    assert refused.headers["content-type"] == "application/problem+json"
    assert (status == 405) == ("allow" in refused.headers)


@pytest.mark.parametrize("key", ["", "wrong", "x" * 5_000, "agent_", "ü"], ids=["no", "wrong", "long", "kind", "text"])
async def test_keys_that_open_nothing(served: Serving, key: str) -> None:
    """Neither team nor agent, nor what there is of them."""
    agent, _ = await served.agent()
    for path in (f"/v1/agents/{agent}", f"/v1/agents/{agent}/history", "/v1/images"):
        refused = await served.http.get(path, headers={b"x-api-key": key.encode()})
        assert refused.status_code == 401, path


# ---- readers


class Flood(Echo):
    """Says more than any connection holds."""

    async def turn(self, body: bytes, format: str) -> AsyncIterator[bytes]:
        self.heard.append((body, format))
        for _ in range(200):
            yield b"x" * 65_536


class FloodType(EchoType):
    """Opens them."""

    async def open(self, spec: AgentSpec) -> RunningAgent:
        self.opened.append(Flood(spec))
        return self.opened[-1]


async def test_a_reader_that_takes_nothing_is_cut_off(folder: pathlib.Path) -> None:
    """The agent does not wait for it, little is held for it, and another reads on."""
    echo = FloodType()
    async with serving(folder, echo=echo, bounds=Bounds(stall_s=0.05)) as served:
        agent, nonce = await served.agent()
        reader, writer = await served.connection()
        writer.write(said_to(agent, nonce, b"go", length=2))
        await eventually(lambda: echo.opened and echo.opened[0].heard)
        streams: Any = served.server._parts.streams

        await eventually(lambda: len(streams) == 0)

        with contextlib.suppress(ConnectionError):  # What it had been sent before may still be read.
            while await reader.read(65_536):
                pass
        writer.close()
        living = served.server.spawner.agents.authorized_entry(agent, nonce, "info")
        await eventually(lambda: (living.turns, living.state) == (1, "idle"))


@pytest.mark.parametrize("after", [2**63, 10**30], ids=["64 bits", "more"])
async def test_a_cursor_that_no_journal_has(served: Serving, after: int) -> None:
    """Refused by its name, before the answer has begun."""
    agent, nonce = await served.agent()

    refused = await served.ask("GET", f"/v1/agents/{agent}/events", nonce, params={"after": after})

    assert (refused.status_code, refused.json()["field"]) == (422, "after")


async def test_an_answer_that_nobody_takes_is_thrown_away(folder: pathlib.Path) -> None:
    """Also where all of it has been said, and it is too little to hold anybody up."""
    async with serving(folder, bounds=Bounds(stall_s=0.05)) as served:
        connections = served.server._http_server._connections
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(served.server.where)
            await eventually(lambda: len(connections) == 1)
            [theirs] = connections

            def was_answered(before: object) -> bool:
                return theirs not in connections or (theirs._http.cycle is not before and theirs.is_between())

            while theirs in connections and not theirs._transport.get_write_buffer_size():
                before = theirs._http.cycle
                client.send(b"GET /openapi.json HTTP/1.1\r\nhost: x\r\n\r\n")
                await eventually(partial(was_answered, before))

            await eventually(lambda: not connections)

        assert await is_well(served)


async def test_an_agent_that_was_asked_for_by_a_client_that_has_left(served: Serving) -> None:
    """Nobody would have its nonce: it is not born, and a place in the line is given up."""
    team, key = await served.team(agents=1)
    asked = {"team": team, "name": "a", "agent_type": "echo", "wait_s": 600}
    first = (await served.ask("POST", "/v1/agents", key, json=asked)).raise_for_status().json()
    [room] = served.server.spawner._team_states.values()
    _, writer = await served.connection()
    body = json.dumps({**asked, "name": "b"}).encode()
    head = f"POST /v1/agents HTTP/1.1\r\nhost: x\r\nx-api-key: {key}\r\ncontent-length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body)
    await eventually(lambda: len(room._queue) == 1)

    writer.close()

    await eventually(lambda: not room._queue and not room.spawning)
    (await served.ask("DELETE", f"/v1/agents/{first['agent']['id']}", key=first["nonce"])).raise_for_status()
    assert (await served.ask("GET", f"/v1/teams/{team}", key)).json()["free"] == {"agents": 1}


async def test_a_hundred_readers_of_one_turn(served: Serving) -> None:
    """Each gets all of it, however many there are."""
    agent, nonce = await served.agent()
    async with served.http.stream(
        "POST", f"/v1/agents/{agent}/turns", content=b"one wait two", headers={"x-api-key": nonce}
    ) as answer:
        path = f"/v1/agents/{agent}/turns/{answer.headers['ramet-turn']}"

        async def read() -> bytes:
            reader, writer = await served.connection()
            writer.write(f"GET {path} HTTP/1.1\r\nhost: x\r\nx-api-key: {nonce}\r\nconnection: close\r\n\r\n".encode())
            try:
                return await reader.read()
            finally:
                writer.close()

        reading = [asyncio.create_task(read()) for _ in range(100)]
        await eventually(lambda: len(served.server._parts.streams) == 101)
        served.echo.opened[0].go_on.set()
        answers = await asyncio.gather(*reading)

    assert len(set(answers)) <= 2  # what was queued went out in one piece, or in two
    assert all(b"data: two" in each and b"event: done" in each for each in answers)


async def test_spawns_at_once_fill_a_team_exactly(served: Serving) -> None:
    """A hundred at once into ten places: ten are in, and each that is not is told what is free."""
    team, key = await served.team(agents=10)
    asked = [{"team": team, "name": f"a{number}", "agent_type": "echo"} for number in range(100)]

    answers = await asyncio.gather(*(served.ask("POST", "/v1/agents", key, json=each) for each in asked))

    assert sorted(each.status_code for each in answers) == [201] * 10 + [409] * 90
    assert all(each.json()["free"] == 0 for each in answers if each.status_code == 409)
    assert (await served.ask("GET", f"/v1/teams/{team}", key)).json()["agents"] == 10
