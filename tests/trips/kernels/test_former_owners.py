"""What a kernel says that was asked for what another one has by now, and has not heard of that: come again, at once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import psycopg
import pytest
from msgspec.structs import replace

from ramet.services.cluster.auth import PeerAuth
from ramet.services.teams.tables import TeamTables
from ramet.services.turns.log import REQUEST_KIND
from ramet.store.postgres import PostgresStore
from tests.support.postgres import Server, fresh_schema, postgres
from tests.support.serving import Served, serving, short_folder
from tests.support.waiting import eventually

__all__ = ["postgres"]  # a fixture is used by its name


@pytest.fixture
async def store(postgres: Server) -> AsyncIterator[PostgresStore]:
    """That of the kernel which is asked; its schema goes with its test."""
    schema = fresh_schema()
    yield PostgresStore(postgres.dsn, schema=schema, kernel="one")
    with psycopg.connect(postgres.dsn, autocommit=True) as connection:
        connection.execute(f'DROP SCHEMA IF EXISTS "{schema}" CASCADE')


@pytest.fixture
async def served(store: PostgresStore) -> AsyncIterator[Served]:
    """A kernel, named one."""
    with short_folder() as folder:
        async with serving(folder, store=store) as served:
            yield served


async def taken_over(store: PostgresStore) -> None:
    """All teams by kernel two, as it does with those of a kernel that it holds for lost; nobody is told."""
    books = TeamTables(store)
    agents = (await books.agents()).readable
    for team in (await books.teams()).readable:
        crew = [each for each in agents if each.team == team.id]
        books.hold(team, *crew)
        await books.write(replace(team, kernel="two"), *crew)


def is_told_to_come_again(answer: Any, detail: str) -> None:
    """By a document of a type that is in the reference, without a word of how it is kept."""
    assert answer.status_code == 503, answer.text
    assert answer.headers["retry-after"] == "1"
    problem = answer.json()
    assert problem["type"] == "urn:ramet:problem:taken-over"
    assert problem["detail"] == detail
    assert not {"expected", "found", "key"} & set(problem)


async def test_a_write_of_what_was_taken_over_is_refused_as_what_it_is(served: Served, store: PostgresStore) -> None:
    """Keys, spawns, ends and turns: each was not done, may be asked for again, and says so."""
    team, key = await served.team()
    asked = {"team": team, "name": "bob", "agent_type": "echo"}
    made = (await served.ask("POST", "/v1/agents", key, json=asked)).json()
    agent, nonce = made["agent"]["id"], made["nonce"]
    await taken_over(store)
    its_agent = f"agent '{agent}' is owned by another kernel now: nothing was done here, repeat the request"
    its_team = f"team '{team}' is owned by another kernel now: nothing was done here, repeat the request"

    is_told_to_come_again(await served.ask("POST", f"/v1/agents/{agent}/rotate", nonce), its_agent)
    is_told_to_come_again(await served.ask("POST", "/v1/agents", key, json={**asked, "name": "eve"}), its_team)
    is_told_to_come_again(await served.ask("DELETE", f"/v1/agents/{agent}", nonce), its_team)
    is_told_to_come_again(await served.ask("DELETE", f"/v1/teams/{team}", key), its_team)


async def test_a_turn_that_another_kernel_wrote_first_is_not_begun_here(served: Served, store: PostgresStore) -> None:
    """Of an agent without a tree, whose turns are all that tells of it."""
    agent, nonce = await served.agent()
    await store.put(REQUEST_KIND, f"{agent}/000000000001", b"another kernel's", expected=0)

    answer = await served.ask("POST", f"/v1/agents/{agent}/turns", nonce, content=b"hello")

    is_told_to_come_again(
        answer, f"agent '{agent}' is owned by another kernel now: nothing was done here, repeat the request"
    )
    assert served.echo.opened[0].heard == []
    again = await served.ask("POST", f"/v1/agents/{agent}/turns", nonce, content=b"hello")
    is_told_to_come_again(
        again, f"agent '{agent}' is owned by another kernel now: nothing was done here, repeat the request"
    )


async def test_who_was_let_in_is_not_turned_away_when_it_goes_elsewhere_meanwhile(
    served: Served, store: PostgresStore, postgres: Server
) -> None:
    """Its message is on its way in, which takes a while."""
    agent, nonce = await served.agent()
    two = await PostgresStore(postgres.dsn, schema=store._place.schema, kernel="two").open()  # It lives.
    reader, writer = await served.connection()
    head = f"POST /v1/agents/{agent}/turns HTTP/1.1\r\nhost: ramet\r\nauthorization: Bearer {nonce}\r\n"
    writer.write(head.encode() + b"content-length: 5\r\nconnection: close\r\n\r\n")
    requests = served.server._parts.metrics.requests
    await eventually(lambda: requests.under_way == 1)
    await taken_over(store)
    await served.server.spawner.take_over()
    writer.write(b"hello")

    answer = (await reader.read()).decode()
    writer.close()
    await two.close()
    assert answer.startswith("HTTP/1.1 503"), answer
    assert "urn:ramet:problem:taken-over" in answer
    assert served.echo.opened[0].heard == []


async def test_whoever_passed_a_request_on_is_told_that_it_is_not_here(served: Served, store: PostgresStore) -> None:
    """And asks the kernel that has it now: its client hears nothing of that."""
    agent, nonce = await served.agent()
    await taken_over(store)

    passed_on = PeerAuth("three", served.server.operator).headers("one")
    answer = await served.ask("POST", f"/v1/agents/{agent}/rotate", nonce, headers=passed_on)

    assert answer.status_code == 421, answer.text


async def test_a_spawn_that_waits_is_not_aborted_when_its_team_goes_elsewhere(
    served: Served, store: PostgresStore
) -> None:
    """It stands in line here, and is to be asked for there."""
    team, key = await served.team(agents=1)
    asked = {"team": team, "agent_type": "echo"}
    assert (await served.ask("POST", "/v1/agents", key, json={**asked, "name": "bob"})).status_code == 201
    waiting = asyncio.create_task(served.ask("POST", "/v1/agents", key, json={**asked, "name": "eve", "wait_s": 60}))
    while not served.server.spawner._team_states[team]._queue:  # noqa: ASYNC110 - it is on its way
        await asyncio.sleep(0)
    await taken_over(store)
    await served.server.spawner.take_over()

    is_told_to_come_again(
        await waiting, f"team '{team}' is owned by another kernel now: nothing was done here, repeat the request"
    )


async def test_an_agent_that_cannot_be_taken_up_keeps_no_other_from_it(
    store: PostgresStore, postgres: Server, caplog: pytest.LogCaptureFixture
) -> None:
    """What is on record of its turns is not whole: it has failed, which is told in one line, and all others go on."""
    two = PostgresStore(postgres.dsn, schema=store._place.schema, kernel="two")
    with short_folder() as folder, short_folder() as other_folder:
        async with serving(other_folder, store=two) as other:
            async with serving(folder, store=store) as one:
                agents = [await one.agent(name=name) for name in ("ann", "bob", "cal")]
                broken, bad_key = agents[1]
                await store.put(REQUEST_KIND, f"{broken}/000000000001", b"\xff", expected=0)
                other.server.operator = one.server.operator
            for id, nonce in (agents[0], agents[2]):
                await eventually(lambda id=id: other.server.spawner.agents.has(id))  # type: ignore[misc]
                said = await other.ask("POST", f"/v1/agents/{id}/turns", nonce, content=b"hello")
                assert b"hello" in said.content, said.text
            found = (await other.ask("GET", f"/v1/agents/{broken}", bad_key)).json()
            assert (found["state"], found["error"]["type"]) == ("failed", "Damaged"), found
            said_of_it = [each for each in caplog.records if broken in each.getMessage() and each.levelname != "INFO"]
            [line] = [each for each in said_of_it if each.name == "ramet.services"]
            assert "\n" not in line.getMessage()
            assert line.exc_info is None
            assert (await other.ask("DELETE", f"/v1/agents/{broken}", bad_key)).status_code == 204
