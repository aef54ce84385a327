"""The client's `idempotency_key`: a request whose answer was lost is sent again, and takes effect once."""

from __future__ import annotations

import asyncio
import contextlib
import pathlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

import ramet
from ramet.core.errors import Gone, InvalidValue
from ramet.services.client.client import Client
from tests.support.serving import EchoServer


@asynccontextmanager
async def lossy_client(
    echo_server: EchoServer, folder: pathlib.Path, key: str, is_lost: Callable[[bytes], bool] = lambda answer: True
) -> AsyncIterator[tuple[Client, list[bytes]]]:
    """Yield a client whose connection breaks once, at the first answer that `is_lost`, and the answers so far."""
    answers: list[bytes] = []
    lost_requests: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        back, on = await asyncio.open_unix_connection(echo_server.server.listen_address)

        async def asks() -> None:
            while data := await reader.read(65_536):
                on.write(data)

        asking = asyncio.create_task(asks())
        with contextlib.suppress(OSError):
            while data := await back.read(65_536):
                answers.append(data)
                if not lost_requests and is_lost(data):
                    lost_requests.append(data)
                    break
                writer.write(data)
                await writer.drain()
        asking.cancel()
        for each in (writer, on):
            each.close()

    socket_path = folder / "lossy.sock"
    async with await asyncio.start_unix_server(serve, socket_path), ramet.connect(socket_path, key) as client:
        yield client, answers


async def test_a_team_with_a_lost_answer_is_created_once(echo_server: EchoServer, folder: pathlib.Path) -> None:
    """The client repeats the request by itself, and has the key of the team that was created."""
    async with lossy_client(echo_server, folder, echo_server.server.operator) as (client, _):
        created_team = await client.create_team({"agents": 2}, name="crew", idempotency_key="team-1")

        assert [each.id for each in await client.list_teams()] == [created_team.team.id]
        spawned_agent = await client.spawn_agent(
            created_team.team.id, "bob", "echo", key=created_team.key, idempotency_key="bob-1"
        )
        repeated_spawn = await client.spawn_agent(
            created_team.team.id, "bob", "echo", key=created_team.key, idempotency_key="bob-1"
        )
    assert (repeated_spawn.agent.id, repeated_spawn.nonce) == (spawned_agent.agent.id, spawned_agent.nonce)


async def test_a_request_without_an_idempotency_key_is_not_repeated(
    echo_server: EchoServer, folder: pathlib.Path
) -> None:
    """The client raises Gone, since it cannot know whether the request took effect."""
    async with lossy_client(echo_server, folder, echo_server.server.operator) as (client, answers):
        with pytest.raises(Gone, match="no server answers"):
            await client.create_team({"agents": 2}, name="crew")

        assert len(answers) == 1
        assert [each.name for each in await client.list_teams()] == ["crew"]


async def test_a_turn_with_a_lost_answer_runs_once(echo_server: EchoServer, folder: pathlib.Path) -> None:
    """The repetition gets the answer of the turn that has begun."""
    agent, nonce = await echo_server.agent()
    async with lossy_client(echo_server, folder, nonce) as (client, _):
        assert await client.say(agent, b"one two", idempotency_key="turn-1") == b"onetwo"
        assert await client.say(agent, b"one two", idempotency_key="turn-1") == b"onetwo"
    assert [body for body, _ in echo_server.echo.opened[0].received_bodies] == [b"one two"]


async def test_repeated_mail_arrives_once(echo_server: EchoServer) -> None:
    """The blocking client deduplicates mail with equal idempotency keys."""
    agent, nonce = await echo_server.agent()

    def program() -> None:
        with ramet.connect(echo_server.server.listen_address, nonce) as client:
            for _ in range(2):
                client.mail(agent, "hello", idempotency_key="mail-1")
            client.mail(agent, "hello", idempotency_key="mail-2")

    await asyncio.to_thread(program)
    assert echo_server.echo.opened[0].mail_texts == ["hello", "hello"]


@pytest.mark.parametrize("key", ["", "ü", "a\nb", "x" * 256])
async def test_an_invalid_idempotency_key_is_refused_before_sending(echo_server: EchoServer, key: str) -> None:
    """InvalidValue names the header."""
    async with ramet.connect(echo_server.server.listen_address) as client:
        with pytest.raises(InvalidValue, match="Idempotency-Key"):
            await client.create_team({"agents": 1}, idempotency_key=key)
        assert not await client.list_teams()
