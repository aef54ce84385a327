"""The typed client, async and sync: the service's own structures and errors, through a real server."""

from __future__ import annotations

import asyncio
import contextlib
import io
import pathlib
import ssl
import tarfile

import pytest

import ramet
from ramet.core.errors import BusyError, Gone, InvalidValue, ModelFailed, NotYours, OverCapacity, RametError, Unknown
from ramet.services.client.client import Client
from ramet.services.client.errors import Refused
from ramet.services.client.requests import RequestSpec
from ramet.services.contract import SpawnedAgent
from ramet.services.errors import Undecodable
from ramet.services.http import endpoints
from tests.support.serving import EchoServer
from tests.support.tls import make_certificate
from tests.support.waiting import eventually


async def test_the_client_has_every_operation_of_teams_and_agents(client: Client, echo_server: EchoServer) -> None:
    """The client finds the operator's key beside the socket."""
    created_team = await client.create_team({"agents": 2}, name="red", labels={"a": "b"})
    assert (created_team.team.name, created_team.team.free["agents"]) == ("red", 2)
    spawned_agent = await client.spawn_agent("red", "bob", "echo", {"prefix": "<"}, key=created_team.key)
    agent, nonce = spawned_agent.agent.id, spawned_agent.nonce

    chunks = [each async for each in client.turn(agent, b"one two\n", key=nonce)]
    assert [(each.number, each.kind, each.body) for each in chunks] == [
        (1, "chunk", b"<one"), (2, "chunk", b"<two"), (3, "done", b""),
    ]  # fmt: skip
    chunks_again = [each async for each in client.read_turn(agent, chunks[0].turn, 1, key=nonce)]
    assert chunks_again == chunks[1:]
    assert await client.say(agent, b"three", format="letters", key=nonce) == b"<three"
    assert [each["content"] for each in await client.history(agent, key=nonce)] == ["one two\n", "three"]
    assert await client.control(agent, {"@type": "shout", "times": 2}, key=nonce) == {"times": 2}
    for field in ("key", "body", "waits", "endpoint", "idempotency_key"):
        with pytest.raises(InvalidValue, match=field):  # The operation's own, which it does not know.
            await client.control(agent, {"@type": "shout", field: None}, key=nonce)
    await client.mail(agent, "psst", key=nonce)
    assert (await client.interrupt(agent, key=nonce)).interrupted is False
    assert [each.id for each in await client.list_agents("red", labels={}, key=created_team.key)] == [agent]

    narrow = await client.delegate(agent, ["info"], key=nonce)
    assert (await client.get_agent(agent, key=narrow.key)).name == "bob"
    await client.revoke(agent, narrow.id, key=nonce)
    with pytest.raises(NotYours):
        await client.get_agent(agent, key=narrow.key)
    new = await client.rotate(agent, key=nonce)
    await client.kill_agent(agent, key=new)
    assert (await client.get_team("red", key=created_team.key)).agents == 0
    await client.delete_team("red", key=created_team.key)
    assert await client.list_teams() == []


async def test_the_client_builds_an_image_of_a_bundle(client: Client) -> None:
    """An uploaded bundle becomes an image, which is listed."""
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        entry = tarfile.TarInfo("helper.py")
        entry.size = 5
        tar.addfile(entry, io.BytesIO(b"x = 1"))

    bundle = await client.upload_bundle(archive.getvalue())
    job = await client.create_image([bundle.id])
    async with asyncio.timeout(180):
        while job.state != "done":
            job = await client.job(job.id)

    assert bundle.files == 1
    assert [each.id for each in await client.list_images()] == [job.image]
    assert (await client.get_image(job.image)).bundles == (bundle.id,)
    with pytest.raises(Unknown):
        await client.get_image("none")
    with pytest.raises(NotYours):
        await client.upload_bundle(b"", key="wrong")


async def test_the_client_raises_the_services_own_errors(client: Client, echo_server: EchoServer) -> None:
    """Errors keep their types and fields, so that a caller can act on them."""
    with pytest.raises(InvalidValue) as wrong:
        await client.create_team({"agents": -1})
    assert wrong.value.field == "resources.agents"
    with pytest.raises(NotYours):
        await client.create_team({"agents": 1}, key="wrong")
    created_team = await client.create_team({"agents": 1})
    with pytest.raises(Unknown) as unknown:
        await client.spawn_agent(created_team.team.id, "bob", "parrot", key=created_team.key)
    assert list(unknown.value.known) == ["echo"]
    spawned_agent = await client.spawn_agent(created_team.team.id, "bob", "echo", key=created_team.key)
    with pytest.raises(OverCapacity) as full:
        await client.spawn_agent(created_team.team.id, "eve", "echo", key=created_team.key)
    assert (full.value.resource, full.value.room["agents"]) == ("agents", 0)
    with pytest.raises(ModelFailed, match="told to"):
        await client.say(spawned_agent.agent.id, b"one fail", key=spawned_agent.nonce)
    with pytest.raises(Undecodable):
        await client._transport.send(_bad_json(), created_team.key)
    with pytest.raises(Refused) as refusal:
        await client.create_team({"agents": 1}, key="")
    assert refusal.value.status == 401


def _bad_json() -> RequestSpec[SpawnedAgent]:
    return RequestSpec(endpoints.SPAWN_AGENT, "/v1/agents", b"{", {}, {})


async def test_a_turn_continues_over_a_lost_connection(client: Client, echo_server: EchoServer) -> None:
    """The reader of a turn gets every chunk once although the connection breaks."""
    team = await client.create_team({"agents": 1})
    spawned_agent = await client.spawn_agent(team.team.id, "bob", "echo", key=team.key)
    bodies = []
    async for chunk in client.turn(spawned_agent.agent.id, b"one wait two", key=spawned_agent.nonce):
        bodies.append(chunk.body)
        if len(bodies) == 1:
            for each in tuple(echo_server.server._http_server._connections):
                each.cut()
            echo_server.echo.opened[0].go_on.set()

    assert bodies == [b"one", b"wait", b"two", b""]


async def test_consecutive_turns_reuse_one_connection(client: Client, echo_server: EchoServer) -> None:
    """The client reads an answer past its last chunk, so that the connection can be used again."""
    agent, nonce = await echo_server.agent()
    async with ramet.connect(echo_server.server.listen_address, nonce) as other:
        before = set(echo_server.server._http_server._connections)
        assert await other.say(agent, b"one") == b"one"
        (connection,) = set(echo_server.server._http_server._connections) - before
        assert await other.say(agent, b"two") == b"two"

        assert set(echo_server.server._http_server._connections) - before == {connection}


async def test_a_turn_beyond_the_queue_limit_is_refused(client: Client, echo_server: EchoServer) -> None:
    """One of 18 concurrent turns gets BusyError, and the others are answered."""
    team = await client.create_team({"agents": 1})
    spawned_agent = await client.spawn_agent(team.team.id, "bob", "echo", key=team.key)
    turns = [
        asyncio.create_task(client.say(spawned_agent.agent.id, b"wait", key=spawned_agent.nonce)) for _ in range(18)
    ]
    await eventually(lambda: any(each.done() for each in turns))
    echo_server.echo.opened[0].go_on.set()
    outcomes = await asyncio.gather(*turns, return_exceptions=True)

    assert [type(each) for each in outcomes if each != b"wait"] == [BusyError]


async def test_the_client_sends_no_key_to_an_untrusted_https_server(folder: pathlib.Path) -> None:
    """An unknown certificate ends the connection before any request."""
    requests: list[bytes] = []

    async def met(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        requests.append(await reader.read(100))
        writer.close()

    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(make_certificate(folder))
    async with await asyncio.start_server(met, "127.0.0.1", 0, ssl=tls) as stranger:
        port = stranger.sockets[0].getsockname()[1]
        async with ramet.connect(f"https://127.0.0.1:{port}", "op_secret") as client:
            with pytest.raises(Gone, match="CERTIFICATE_VERIFY_FAILED"):
                await client.list_teams()
    assert requests == []


async def test_a_missing_server_and_an_invalid_address_raise(folder: pathlib.Path) -> None:
    """A missing server raises Gone, an invalid address InvalidValue, and a closed client RametError."""
    async with ramet.connect(folder / "none.sock") as client:
        with pytest.raises(Gone, match="no server answers"):
            await client.list_teams()
    for url in ("ftp://example.org", "http://", "http://[::1", "https://here:99999"):
        with pytest.raises(InvalidValue, match="address"):
            ramet.connect(url)
    with pytest.raises(RametError, match="not open"):
        await Client(folder / "none.sock").list_teams()


async def test_the_blocking_client_works_without_an_event_loop(echo_server: EchoServer) -> None:
    """Each method blocks; streams are plain iterators, and a reader may leave them."""

    def program() -> list[bytes]:
        with ramet.connect(echo_server.server.listen_address) as client:
            team = client.create_team({"agents": 1})
            spawned_agent = client.spawn_agent(team.team.id, "bob", "echo", key=team.key)
            bodies = [each.body for each in client.turn(spawned_agent.agent.id, b"one two", key=spawned_agent.nonce)]
            for each in client.turn(spawned_agent.agent.id, b"three four", key=spawned_agent.nonce):
                bodies.append(each.body)
                break
            return bodies

    assert await asyncio.to_thread(program) == [b"one", b"two", b"", b"three"]
    with contextlib.ExitStack() as stack:
        with pytest.raises(RametError, match=r"use `async with ramet\.connect\(…\)` here") as refusal:
            stack.enter_context(ramet.connect(echo_server.server.listen_address))
    assert "_sync" not in str(refusal.value)


async def test_a_blocking_client_is_refused_in_an_event_loop_at_each_call(echo_server: EchoServer) -> None:
    """Each call would block the loop; the error names calls that exist."""
    client = await asyncio.to_thread(lambda: ramet.connect(echo_server.server.listen_address).__enter__())
    try:
        for call in (client.list_teams, client.kernel.runs, lambda: list(client.turn("x", b""))):
            with pytest.raises(RametError, match=r"use `async with ramet\.connect\(…\)` here"):
                call()
    finally:
        await asyncio.to_thread(client.__exit__)
    with pytest.raises(RametError, match="this client is not open: use it inside `with`"):
        await asyncio.to_thread(client.list_teams)


async def test_history_returns_the_newest_messages(client: Client, echo_server: EchoServer) -> None:
    """`last=n` gives the newest n messages, and every message if there are fewer."""
    created_team = await client.create_team({"agents": 1})
    spawned_agent = await client.spawn_agent(created_team.team.id, "bob", "echo", key=created_team.key)
    agent, nonce = spawned_agent.agent.id, spawned_agent.nonce
    for body in (b"one", b"two", b"three"):
        await client.say(agent, body, key=nonce)

    pages = [
        [each["content"] for each in await client.history(agent, last=last, key=nonce)] for last in (1, 2, 3, 9, None)
    ]

    every = ["one", "two", "three"]
    assert pages == [every[2:], every[1:], every, every, every]
    for wrong in (0, -1):
        with pytest.raises(InvalidValue, match=f"last: {wrong} is not accepted; expected a whole number from 1"):
            await client.history(agent, last=wrong, key=nonce)


async def test_dedupe_is_refused_for_agent_types_without_it(client: Client) -> None:
    """An agent type that cannot deduplicate mail refuses `dedupe_s`, and does not ignore it."""
    created_team = await client.create_team({"agents": 1})
    spawned_agent = await client.spawn_agent(created_team.team.id, "bob", "echo", key=created_team.key)
    agent, nonce = spawned_agent.agent.id, spawned_agent.nonce

    with pytest.raises(InvalidValue, match=r"dedupe_s: 60\.0 is not accepted; expected nothing: agents of type 'echo'"):
        await client.mail(agent, "psst", dedupe_s=60.0, key=nonce)


async def test_the_operator_sends_equal_mail_to_a_run_once(client: Client, echo_server: EchoServer) -> None:
    """A second equal message within `dedupe_s` is not delivered."""
    session = await ramet.Session(ramet.ScriptedModel(["Ready."] * 3), runtime=echo_server.server.runtime).start()
    await session.ask("Go.")

    answers = [await client.kernel.send(session.id, "ping", dedupe_s=60) for _ in range(2)]

    assert ["Delivered" in answers[0], "Not delivered again" in answers[1]] == [True, True]
    await session.close()
