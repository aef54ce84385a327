"""Bounds on what the holder of a team's key leaves on a server: failed agents, their labels, and keys."""

from __future__ import annotations

import asyncio
import pathlib
from typing import Any

import httpx2
import pytest

from ramet.services.rules import Rules
from ramet.services.teams.keys import MAX_KEYS
from ramet.services.teams.tables import AGENT
from tests.support.serving import EchoServer, serving, short_folder
from tests.support.waiting import eventually

NOTE_BYTES = 16 * 1024


async def spawn(echo_server: EchoServer, team: tuple[str, str], name: str, **fields: Any) -> httpx2.Response:
    """Ask for an agent with the team's key."""
    body = {"team": team[0], "name": name, "agent_type": "echo", **fields}
    return await echo_server.ask("POST", "/v1/agents", team[1], json=body)


async def spawn_failed(echo_server: EchoServer, team: tuple[str, str], name: str, **fields: Any) -> str:
    """Spawn an agent that fails, and return its id."""
    created_agent = (await spawn(echo_server, team, name, **fields)).raise_for_status().json()
    id, key = created_agent["agent"]["id"], created_agent["nonce"]
    living = echo_server.server.spawner.agents.find_by_key(key, "info")
    (living.spec.folder / "note").write_text("left")  # type: ignore[union-attr]  # It was opened.
    await echo_server.ask("POST", f"/v1/agents/{id}/turns", key, content=b"die")
    await eventually(lambda: living.fail_task is not None and living.fail_task.done())
    return str(id)


async def list_agent_ids(echo_server: EchoServer, team: tuple[str, str]) -> list[str]:
    """Return the ids of a team's agents as its key sees them, the oldest first."""
    answer = (await echo_server.ask("GET", f"/v1/agents?team={team[0]}", team[1])).raise_for_status().json()
    return [each["id"] for each in answer["agents"]]


async def test_the_oldest_failed_agents_of_a_team_are_removed() -> None:
    """Their folders are removed, too, despite `keep_failed_s`.

    Living agents and other teams stay. A restart applies the bound.
    """
    with short_folder() as folder:
        async with serving(folder, rules=Rules(failed_agents=2)) as echo_server:
            team, other = await echo_server.team(), await echo_server.team()
            failed_id = await spawn_failed(echo_server, other, "a")
            lives = (await spawn(echo_server, team, "lives")).raise_for_status().json()["agent"]["id"]
            failed_ids = [
                await spawn_failed(echo_server, team, f"a{each}", keep_failed_s=60 if each == 0 else None)
                for each in range(4)
            ]
            agents = folder / ".ramet" / "agents"

            await eventually(lambda: not (agents / failed_ids[0]).exists() and not (agents / failed_ids[1]).exists())
            async with asyncio.timeout(180):  # An agent leaves the list behind its folder and its record.
                while await list_agent_ids(echo_server, team) != [lives, *failed_ids[2:]]:  # noqa: ASYNC110 - it asks a server
                    await asyncio.sleep(0.01)
            assert await list_agent_ids(echo_server, other) == [failed_id]
            assert (agents / failed_ids[2] / "note").exists()
            async with asyncio.timeout(180):  # A name is free once the record of who had it is gone, after the folder.
                while (second_answer := await spawn(echo_server, team, "a0")).status_code == 422:  # noqa: ASYNC110 - it asks a server
                    await asyncio.sleep(0.01)
            assert second_answer.status_code == 201, second_answer.text
        async with serving(folder, rules=Rules(failed_agents=1)) as echo_server:
            await eventually(lambda: not (agents / failed_ids[2]).exists())
            async with asyncio.timeout(180):
                while failed_ids[2] in await list_agent_ids(echo_server, team):  # noqa: ASYNC110 - as above
                    await asyncio.sleep(0.01)
            assert failed_ids[3] in await list_agent_ids(echo_server, team)


async def test_the_record_of_a_failed_agent_is_small(tmp_path: pathlib.Path) -> None:
    """A failed agent is never opened again, so its spawn arguments are not kept. They may be as large as a request."""
    async with serving(tmp_path) as echo_server:
        team = await echo_server.team()
        id = await spawn_failed(echo_server, team, "large", spawn_info={"prefix": "x" * 500_000}, labels={"a": "b"})
        document = await (await echo_server.server.runtime.open_store()).get(AGENT, id)

        assert document is not None
        assert len(document.data) < 4_000
        assert b'"labels":{"a":"b"}' in document.data


@pytest.mark.parametrize(("field", "other"), [("metadata", "labels"), ("labels", "metadata")])
async def test_labels_and_metadata_are_bounded_together(tmp_path: pathlib.Path, field: str, other: str) -> None:
    """The bound is exact in bytes of UTF-8. The refusal names the larger field, its size, and the bound."""
    async with serving(tmp_path) as echo_server:
        team = await echo_server.team()
        fits = {field: {"é": "x" * (NOTE_BYTES - 6)}, other: {"n": "abc"}}
        assert (await spawn(echo_server, team, "fits", **fits)).status_code == 201

        response = await spawn(echo_server, team, "not", **{**fits, other: {"n": "abcd"}})

        assert (response.status_code, response.json()["field"]) == (422, field)
        assert f"{NOTE_BYTES + 1} bytes" in response.json()["detail"]
        assert str(NOTE_BYTES) in response.json()["accepted"]


async def test_keys_of_an_agent_are_bounded(tmp_path: pathlib.Path) -> None:
    """An agent has at most 100 keys, and a revoked one makes room."""
    assert MAX_KEYS == 100
    async with serving(tmp_path) as echo_server:
        id, nonce = await echo_server.agent()
        body = {"rights": ["info"]}
        key_answers = [
            await echo_server.ask("POST", f"/v1/agents/{id}/keys", nonce, json=body) for _ in range(MAX_KEYS)
        ]
        assert {each.status_code for each in key_answers} == {201}

        assert (await echo_server.ask("POST", f"/v1/agents/{id}/keys", nonce, json=body)).status_code == 422
        await echo_server.ask("DELETE", f"/v1/agents/{id}/keys/{key_answers[0].json()['id']}", nonce)
        assert (await echo_server.ask("POST", f"/v1/agents/{id}/keys", nonce, json=body)).status_code == 201
