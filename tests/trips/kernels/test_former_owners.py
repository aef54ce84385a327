"""Answers of a kernel that does not know yet that another kernel has taken over a team: ask again, at once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import psycopg
import pytest
from msgspec.structs import replace

from ramet.services.cluster.auth import PeerAuth
from ramet.services.cluster.router import KernelRouter
from ramet.services.teams.tables import TeamTables
from ramet.services.teams.takeover import Takeover
from ramet.services.turns.log import REQUEST_KIND
from ramet.store.postgres import PostgresStore
from tests.support.postgres import Server, fresh_schema, postgres
from tests.support.serving import EchoServer, serving, short_folder
from tests.support.waiting import eventually

__all__ = ["postgres"]  # a fixture is used by its name


@pytest.fixture
async def store(postgres: Server) -> AsyncIterator[PostgresStore]:
    """Yield the store of the kernel that the tests ask, and drop its schema afterwards."""
    schema = fresh_schema()
    yield PostgresStore(postgres.dsn, schema=schema, kernel="one")
    with psycopg.connect(postgres.dsn, autocommit=True) as connection:
        connection.execute(f'DROP SCHEMA IF EXISTS "{schema}" CASCADE')


@pytest.fixture
async def echo_server(store: PostgresStore) -> AsyncIterator[EchoServer]:
    """Yield a server whose kernel is named "one"."""
    with short_folder() as folder:
        async with serving(folder, store=store) as echo_server:
            yield echo_server


async def take_over_teams(store: PostgresStore) -> None:
    """Write kernel two as the owner of every team, as a takeover does, without a notice to kernel one."""
    books = TeamTables(store)
    agents = (await books.agents()).readable_rows
    for team in (await books.teams()).readable_rows:
        team_agents = [each for each in agents if each.team == team.id]
        books.hold(team, *team_agents)
        await books.write(replace(team, kernel="two"), *team_agents)


def check_taken_over_answer(answer: Any, detail: str) -> None:
    """Check for a 503 with Retry-After and a documented problem type, without details of the store."""
    assert answer.status_code == 503, answer.text
    assert answer.headers["retry-after"] == "1"
    problem = answer.json()
    assert problem["type"] == "urn:ramet:problem:taken-over"
    assert problem["detail"] == detail
    assert not {"expected", "found", "key"} & set(problem)


@pytest.mark.parametrize(
    ("method", "path", "has_nonce", "resource"),
    [
        ("POST", "/v1/agents/{agent}/rotate", True, "agent"),
        ("POST", "/v1/agents", False, "team"),
        ("DELETE", "/v1/agents/{agent}", True, "team"),
        ("DELETE", "/v1/teams/{team}", False, "team"),
    ],
)
async def test_a_write_to_a_taken_over_team_is_refused_as_taken_over(
    method: str, path: str, has_nonce: bool, resource: str, echo_server: EchoServer, store: PostgresStore
) -> None:
    """A rotation, a spawn, a kill and a deletion were not done, and the answer says that the client can ask again.

    Each is the first request after the takeover: the refusal makes the kernel drop the team.
    """
    team, key = await echo_server.team()
    spawn = {"team": team, "name": "bob", "agent_type": "echo"}
    created_agent = (await echo_server.ask("POST", "/v1/agents", key, json=spawn)).json()
    ids = {"agent": created_agent["agent"]["id"], "team": team}
    await take_over_teams(store)
    body = {"json": {**spawn, "name": "eve"}} if path == "/v1/agents" else {}

    answer = await echo_server.ask(method, path.format(**ids), created_agent["nonce"] if has_nonce else key, **body)

    check_taken_over_answer(
        answer,
        f"{resource} {ids[resource]!r} is owned by another kernel now: nothing was done here, repeat the request",
    )


async def test_a_key_between_two_owners_is_not_reported_as_unknown(
    echo_server: EchoServer, store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kernel that has dropped a team, and has not heard of its new owner, tells clients to come again."""
    may_continue = asyncio.Event()

    async def hold(self: Takeover, agents: object, teams: object) -> None:
        await may_continue.wait()

    router = echo_server.server._parts.router
    assert isinstance(router, KernelRouter)
    monkeypatch.setattr(router, "_wait_s", 0.1)
    monkeypatch.setattr(router._fan_out, "_wait_s", 0.1)
    agent, nonce = await echo_server.agent()
    team, key = await echo_server.team()
    await take_over_teams(store)
    monkeypatch.setattr(Takeover, "_remove_orphaned_agents", hold)
    takeover = asyncio.create_task(echo_server.server.spawner.take_over())
    await eventually(
        lambda: not echo_server.server.spawner.has_team(team) and not echo_server.server.spawner.agents.has(agent)
    )

    answers = [
        await echo_server.ask("DELETE", f"/v1/agents/{agent}", nonce),
        await echo_server.ask("DELETE", f"/v1/teams/{team}", key),
        await echo_server.ask("GET", "/v1/models", nonce),
        await echo_server.ask("GET", "/v1/agents", key),
    ]
    may_continue.set()
    await takeover

    assert [answer.status_code for answer in answers] == [503] * 4, [answer.text for answer in answers]


async def test_a_turn_that_another_kernel_wrote_first_does_not_begin_here(
    echo_server: EchoServer, store: PostgresStore
) -> None:
    """The agent has no tree, so that only the records of its turns show the takeover."""
    agent, nonce = await echo_server.agent()
    await store.put(REQUEST_KIND, f"{agent}/000000000001", b"another kernel's", expected=0)

    answer = await echo_server.ask("POST", f"/v1/agents/{agent}/turns", nonce, content=b"hello")

    check_taken_over_answer(
        answer, f"agent '{agent}' is owned by another kernel now: nothing was done here, repeat the request"
    )
    assert echo_server.echo.opened[0].received_bodies == []
    second_answer = await echo_server.ask("POST", f"/v1/agents/{agent}/turns", nonce, content=b"hello")
    check_taken_over_answer(
        second_answer, f"agent '{agent}' is owned by another kernel now: nothing was done here, repeat the request"
    )


async def test_a_takeover_during_an_upload_is_answered_as_taken_over(
    echo_server: EchoServer, store: PostgresStore, postgres: Server
) -> None:
    """The agent goes to another kernel after its key was checked, while the message still arrives."""
    agent, nonce = await echo_server.agent()
    two = await PostgresStore(postgres.dsn, schema=store._place.schema, kernel="two").open()  # It lives.
    reader, writer = await echo_server.connection()
    head = f"POST /v1/agents/{agent}/turns HTTP/1.1\r\nhost: ramet\r\nauthorization: Bearer {nonce}\r\n"
    writer.write(head.encode() + b"content-length: 5\r\nconnection: close\r\n\r\n")
    requests = echo_server.server._parts.metrics.requests
    await eventually(lambda: requests.under_way == 1)
    await take_over_teams(store)
    await echo_server.server.spawner.take_over()
    writer.write(b"hello")

    answer = (await reader.read()).decode()
    writer.close()
    await two.close()
    assert answer.startswith("HTTP/1.1 503"), answer
    assert "urn:ramet:problem:taken-over" in answer
    assert echo_server.echo.opened[0].received_bodies == []


async def test_a_forwarded_request_to_a_former_owner_gets_421(echo_server: EchoServer, store: PostgresStore) -> None:
    """The kernel that forwarded the request can then ask the new owner; the client sees nothing of that."""
    agent, nonce = await echo_server.agent()
    await take_over_teams(store)

    passed_on = PeerAuth("three", echo_server.server.operator).headers("one")
    answer = await echo_server.ask("POST", f"/v1/agents/{agent}/rotate", nonce, headers=passed_on)

    assert answer.status_code == 421, answer.text


async def test_a_waiting_spawn_of_a_taken_over_team_is_answered_as_taken_over(
    echo_server: EchoServer, store: PostgresStore
) -> None:
    """The spawn waits for capacity here, and the answer says that the client can ask again."""
    team, key = await echo_server.team(agents=1)
    body = {"team": team, "agent_type": "echo"}
    assert (await echo_server.ask("POST", "/v1/agents", key, json={**body, "name": "bob"})).status_code == 201
    waiting = asyncio.create_task(
        echo_server.ask("POST", "/v1/agents", key, json={**body, "name": "eve", "wait_s": 60})
    )
    while not echo_server.server.spawner._team_states[team]._queue:  # noqa: ASYNC110 - it is on its way
        await asyncio.sleep(0)
    await take_over_teams(store)
    await echo_server.server.spawner.take_over()

    check_taken_over_answer(
        await waiting, f"team '{team}' is owned by another kernel now: nothing was done here, repeat the request"
    )


async def test_an_unreadable_agent_does_not_prevent_takeover_of_others(
    store: PostgresStore, postgres: Server, caplog: pytest.LogCaptureFixture
) -> None:
    """An agent with a damaged record of turns has failed, which one log line says; the others continue."""
    two = PostgresStore(postgres.dsn, schema=store._place.schema, kernel="two")
    with short_folder() as folder, short_folder() as other_folder:
        async with serving(other_folder, store=two) as other:
            async with serving(folder, store=store) as one:
                agents = [await one.agent(name=name) for name in ("ann", "bob", "cal")]
                bad_agent, bad_key = agents[1]
                await store.put(REQUEST_KIND, f"{bad_agent}/000000000001", b"\xff", expected=0)
                other.server.operator = one.server.operator
            for id, nonce in (agents[0], agents[2]):
                await eventually(lambda id=id: other.server.spawner.agents.has(id))  # type: ignore[misc]
                answer = await other.ask("POST", f"/v1/agents/{id}/turns", nonce, content=b"hello")
                assert b"hello" in answer.content, answer.text
            info = (await other.ask("GET", f"/v1/agents/{bad_agent}", bad_key)).json()
            assert (info["state"], info["error"]["type"]) == ("failed", "Damaged"), info
            said_of_it = [
                each for each in caplog.records if bad_agent in each.getMessage() and each.levelname != "INFO"
            ]
            [line] = [each for each in said_of_it if each.name == "ramet.services"]
            assert "\n" not in line.getMessage()
            assert line.exc_info is None
            assert (await other.ask("DELETE", f"/v1/agents/{bad_agent}", bad_key)).status_code == 204
