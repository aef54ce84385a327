"""A key that is handed over, rotated or revoked: its streams end, and its queued turns do not run."""

from __future__ import annotations

import asyncio
import json
import pathlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any, NamedTuple

import httpx2
import pytest

from tests.support.echo_agents import Echo
from tests.support.parrot_agents import ParrotType, user_message
from tests.support.serving import EchoServer, serving
from tests.support.waiting import eventually


class SharedAgent(NamedTuple):
    """An agent, the key that loses its rights, and the key that then opens the agent."""

    id: str
    lost_key: str
    other: Callable[[], Awaitable[str]]  #: takes the rights away

    @property
    def path(self) -> str:
        """The path of the agent."""
        return f"/v1/agents/{self.id}"


async def handed_over(echo_server: EchoServer, id: str, nonce: str) -> SharedAgent:
    """Share the owner's key, which loses its rights when another owner takes the agent."""

    async def hand_over() -> str:
        answer = await echo_server.ask("POST", f"/v1/agents/{id}/keys", nonce, json={"owner": True})
        return str(answer.raise_for_status().json()["key"])

    return SharedAgent(id, nonce, hand_over)


async def rotate_key(echo_server: EchoServer, id: str, nonce: str) -> SharedAgent:
    """Share the owner's key, which loses its rights when the owner gets a new one."""

    async def rotate() -> str:
        return str((await echo_server.ask("POST", f"/v1/agents/{id}/rotate", nonce)).raise_for_status().json()["nonce"])

    return SharedAgent(id, nonce, rotate)


async def revoke_key(echo_server: EchoServer, id: str, nonce: str) -> SharedAgent:
    """Share a narrower key, which loses its rights when its owner revokes it."""
    body = {"rights": ["turn", "events", "history"]}
    narrow = (await echo_server.ask("POST", f"/v1/agents/{id}/keys", nonce, json=body)).raise_for_status().json()

    async def revoke() -> str:
        (await echo_server.ask("DELETE", f"/v1/agents/{id}/keys/{narrow['id']}", nonce)).raise_for_status()
        return nonce

    return SharedAgent(id, narrow["key"], revoke)


async def revoked_above(echo_server: EchoServer, id: str, nonce: str) -> SharedAgent:
    """Share a key of a narrower key, which loses its rights when the owner revokes the narrower one."""
    body = {"rights": ["turn", "events", "history", "delegate"]}
    narrow = (await echo_server.ask("POST", f"/v1/agents/{id}/keys", nonce, json=body)).raise_for_status().json()
    narrower = await echo_server.ask(
        "POST", f"/v1/agents/{id}/keys", narrow["key"], json={"rights": ["turn", "events"]}
    )

    async def revoke() -> str:
        (await echo_server.ask("DELETE", f"/v1/agents/{id}/keys/{narrow['id']}", nonce)).raise_for_status()
        return nonce

    return SharedAgent(id, narrower.raise_for_status().json()["key"], revoke)


SHARE_FUNCTIONS = (handed_over, rotate_key, revoke_key, revoked_above)


class Stream:
    """An answer that is read as it comes."""

    def __init__(self, answer: httpx2.Response) -> None:
        self._answer, self._pieces = answer, answer.aiter_text()
        self.turn = answer.headers.get("ramet-turn", "")
        self.text = ""

    async def until(self, words: str) -> None:
        """Read until these words have come."""
        while words not in self.text:
            self.text += await anext(self._pieces)

    async def to_its_end(self) -> str:
        """Read to the end, and return all text since the beginning.

        A stream that never ends fails the test after three minutes.
        """
        async with asyncio.timeout(180):
            async for piece in self._pieces:
                self.text += piece
        return self.text

    @property
    def end(self) -> tuple[str, Any]:
        """The last event: its name, and its data, decoded if that is JSON."""
        lines = self.text.rstrip("\n").rpartition("\n\n")[2].split("\n")
        fields = dict(line.split(": ", 1) for line in lines if ": " in line)
        data = fields.get("data", "")
        return fields["event"], json.loads(data) if data.startswith("{") else data


class Streams:
    """Streams that stay open until the end of the test."""

    def __init__(self, echo_server: EchoServer, stack: AsyncExitStack) -> None:
        self._served, self._stack = echo_server, stack

    async def __call__(self, method: str, path: str, key: str, body: bytes = b"") -> Stream:
        """Begin to read a stream."""
        headers = {"authorization": f"Bearer {key}"}
        request = self._served.http.stream(method, path, headers=headers, content=body)
        answer = await self._stack.enter_async_context(request)
        assert answer.status_code == 200, await answer.aread()
        return Stream(answer)


@pytest.fixture
async def echo_server(folder: pathlib.Path) -> AsyncIterator[EchoServer]:
    async with serving(folder) as server:
        yield server


@pytest.fixture
async def streams(echo_server: EchoServer) -> AsyncIterator[Streams]:
    async with AsyncExitStack() as stack:
        yield Streams(echo_server, stack)


def echo(echo_server: EchoServer) -> Echo:
    """Return the agent that was opened last."""
    return echo_server.echo.opened[-1]


@pytest.mark.parametrize("share", SHARE_FUNCTIONS)
async def test_a_stream_of_a_turn_ends_when_its_key_loses_the_right(
    echo_server: EchoServer, streams: Streams, share: Callable[..., Awaitable[SharedAgent]]
) -> None:
    """The stream that asked, and another reader's, end with `not-yours` and without any later text."""
    shared = await share(echo_server, *await echo_server.agent())
    stream = await streams("POST", f"{shared.path}/turns", shared.lost_key, b"before wait after")
    along = await streams("GET", f"{shared.path}/turns/{stream.turn}", shared.lost_key)
    for each in (stream, along):
        await each.until("before")

    key = await shared.other()
    second_stream = await streams("GET", f"{shared.path}/turns/{stream.turn}", key)
    echo(echo_server).go_on.set()

    assert "after" in await second_stream.to_its_end()
    assert second_stream.end[0] == "done"
    for each in (stream, along):
        assert "after" not in await each.to_its_end()
        name, problem = each.end
        assert (name, problem["type"]) == ("error", "urn:ramet:problem:not-yours")


@pytest.mark.parametrize("share", SHARE_FUNCTIONS)
async def test_a_queued_turn_is_withdrawn_when_its_key_loses_the_right(
    echo_server: EchoServer, streams: Streams, share: Callable[..., Awaitable[SharedAgent]]
) -> None:
    """The agent never receives the turn, and both readers get `withdrawn`. Turns of other keys run."""
    shared = await share(echo_server, *await echo_server.agent())
    now = await streams("POST", f"{shared.path}/turns", shared.lost_key, b"first wait")
    await now.until("first")
    waits = await streams("POST", f"{shared.path}/turns", shared.lost_key, b"second")
    by_operator = await streams("POST", f"{shared.path}/turns", echo_server.server.operator, b"third")

    key = await shared.other()
    reader_stream = await streams("GET", f"{shared.path}/turns/{waits.turn}", key)
    echo(echo_server).go_on.set()

    assert "third" in await by_operator.to_its_end()
    assert by_operator.end[0] == "done"
    assert [body for body, _ in echo(echo_server).received_bodies] == [b"first wait", b"third"]
    for each in (waits, reader_stream):
        await each.to_its_end()
        name, problem = each.end
        assert (name, problem["type"]) == ("error", "urn:ramet:problem:withdrawn")


async def test_a_handover_gives_the_current_turn_to_the_new_owner(echo_server: EchoServer, streams: Streams) -> None:
    """The turn continues. The new owner can interrupt it, and the old one cannot."""
    shared = await handed_over(echo_server, *await echo_server.agent())
    stream = await streams("POST", f"{shared.path}/turns", shared.lost_key, b"before wait after")
    await stream.until("before")

    key = await shared.other()

    assert (await echo_server.ask("POST", f"{shared.path}/interrupt", shared.lost_key)).status_code == 401
    assert echo(echo_server).interrupts == 0
    assert (await echo_server.ask("POST", f"{shared.path}/interrupt", key)).json() == {"interrupted": True}
    assert "after" not in await stream.to_its_end()
    assert stream.end[1]["type"] == "urn:ramet:problem:not-yours"


async def test_a_turn_with_on_leave_interrupt_ends_when_its_reader_loses_the_right(
    echo_server: EchoServer, streams: Streams
) -> None:
    """The server interrupts the turn as if its only reader had left."""
    shared = await handed_over(echo_server, *await echo_server.agent())
    stream = await streams("POST", f"{shared.path}/turns?on_leave=interrupt", shared.lost_key, b"before wait after")
    await stream.until("before")

    await shared.other()

    await stream.to_its_end()
    assert stream.end[1]["type"] == "urn:ramet:problem:not-yours"
    await eventually(lambda: echo(echo_server).interrupts == 1)


@pytest.mark.parametrize("share", SHARE_FUNCTIONS)
async def test_a_stream_of_events_ends_when_its_key_loses_the_right(
    echo_server: EchoServer, streams: Streams, share: Callable[..., Awaitable[SharedAgent]]
) -> None:
    """The stream ends with `not-yours`, also if the agent is killed at once: the key must not read the last events."""
    shared = await share(echo_server, *await echo_server.agent())
    events = await streams("GET", f"{shared.path}/events", shared.lost_key)
    await eventually(lambda: len(echo_server.server._parts.streams) == 1)

    key = await shared.other()
    (await echo_server.ask("DELETE", shared.path, key)).raise_for_status()

    await events.to_its_end()
    assert (events.end[0], events.end[1] and events.end[1]["type"]) == ("error", "urn:ramet:problem:not-yours")


async def test_streams_of_other_keys_continue(echo_server: EchoServer, streams: Streams) -> None:
    """A rotation does not end streams of a narrower key or of the operator.

    Revoking a key does not end streams of other keys.
    """
    shared = await rotate_key(echo_server, *await echo_server.agent())
    keys = [
        (await echo_server.ask("POST", f"{shared.path}/keys", shared.lost_key, json={"rights": ["turn"]})).json()
        for _ in range(2)
    ]
    narrow = keys[0]["key"]
    first = await streams("POST", f"{shared.path}/turns", narrow, b"first wait")
    second = await streams("POST", f"{shared.path}/turns", narrow, b"second")
    along = await streams("GET", f"{shared.path}/turns/{first.turn}", echo_server.server.operator)

    key = await shared.other()
    (await echo_server.ask("DELETE", f"{shared.path}/keys/{keys[1]['id']}", key)).raise_for_status()
    echo(echo_server).go_on.set()

    for each in (first, second, along):
        await each.to_its_end()
        assert each.end[0] == "done"
    assert [body for body, _ in echo(echo_server).received_bodies] == [b"first wait", b"second"]


@pytest.mark.parametrize("is_stream", [True, False], ids=["streamed", "whole"])
async def test_an_answer_to_a_model_client_ends_with_its_key(folder: pathlib.Path, is_stream: bool) -> None:
    """The client reads an error in its own format, and the turn is interrupted."""
    parrot_type = ParrotType()
    async with serving(folder, types={"parrot": parrot_type}) as echo_server:
        shared = await handed_over(echo_server, *await echo_server.agent(agent_type="parrot"))
        body = {"model": "any", "stream": is_stream, "messages": [user_message("before wait after")]}
        answering = asyncio.create_task(echo_server.ask("POST", "/v1/chat/completions", shared.lost_key, json=body))
        await eventually(lambda: parrot_type.opened and parrot_type.opened[0].received_bodies)

        await shared.other()
        await eventually(lambda: parrot_type.opened[0].interrupts)

        answer = await answering
    assert "after" not in answer.text
    assert answer.status_code == (200 if is_stream else 401)
    assert '"error"' in answer.text
