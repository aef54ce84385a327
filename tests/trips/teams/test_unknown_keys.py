"""A key that opens nothing gets 401 on every path that needs a key."""

from __future__ import annotations

import re
from typing import Any

from ramet.services.http.routes.operation import Operation
from ramet.services.http.routes.table import OPERATIONS
from tests.support.serving import EchoServer, serving, short_folder

#: Every path that answers without a key. A new one must be added here on purpose.
PUBLIC = {"/healthz", "/readyz", "/openapi.json"}
NEED_KEY = [each for each in OPERATIONS if each.endpoint.path not in PUBLIC]


async def dead_keys(echo_server: EchoServer) -> tuple[dict[str, str], dict[str, str]]:
    """Return keys that open nothing, by the reason, and the ids of existing objects."""
    operator = echo_server.server.operator
    team, key = await echo_server.team()
    body = {"team": team, "name": "bob", "agent_type": "echo"}
    created_agent = (await echo_server.ask("POST", "/v1/agents", key, json=body)).raise_for_status().json()
    agent, first = created_agent["agent"]["id"], created_agent["nonce"]
    path = f"/v1/agents/{agent}"
    narrow = (await echo_server.ask("POST", f"{path}/keys", first, json={"rights": ["info"]})).raise_for_status().json()
    (await echo_server.ask("DELETE", f"{path}/keys/{narrow['id']}", first)).raise_for_status()
    (await echo_server.ask("POST", f"{path}/rotate", first)).raise_for_status()
    killed_agent, nonce = await echo_server.agent()
    (await echo_server.ask("DELETE", f"/v1/agents/{killed_agent}", nonce)).raise_for_status()
    deleted_team, old = await echo_server.team()
    (await echo_server.ask("DELETE", f"/v1/teams/{deleted_team}", operator)).raise_for_status()
    dead = {
        "missing": "",
        "wrong": "nobody",
        "almost": operator[:-1],
        "revoked": narrow["key"],
        "rotated": first,
        "of a killed agent": nonce,
        "of a deleted team": old,
    }
    return dead, {"agent": agent, "team": team}


async def ask(echo_server: EchoServer, operation: Operation, key: str, ids: dict[str, str]) -> Any:
    """Call an operation on existing objects, with a JSON body where it takes one."""
    endpoint = operation.endpoint
    path = re.sub(r"{(\w+)}", lambda name: ids.get(name[1], "none"), endpoint.path)
    body = {} if endpoint.takes is None and not endpoint.media else {"content": b"{}"}
    return await echo_server.ask(endpoint.method, path, key, **body)


async def test_an_unknown_key_gets_401_on_every_path() -> None:
    """The key is missing, wrong, revoked, rotated, of a killed agent, or of a deleted team."""
    with short_folder() as folder:
        async with serving(folder) as echo_server:
            dead, ids = await dead_keys(echo_server)
            statuses = {
                f"{operation.endpoint.method} {operation.endpoint.path}, {reason}": (
                    await ask(echo_server, operation, key, ids)
                ).status_code
                for operation in NEED_KEY
                for reason, key in dead.items()
            }

    assert {request: status for request, status in statuses.items() if status != 401} == {}


async def test_a_known_key_learns_nothing_about_others() -> None:
    """The key of another agent or team gets the same 404 for existing and for missing agents."""
    with short_folder() as folder:
        async with serving(folder) as echo_server:
            (agent, _), (_, other) = await echo_server.agent(), await echo_server.agent()
            _, team = await echo_server.team()
            for key in (other, team):
                answer = await echo_server.ask("GET", f"/v1/agents/{agent}", key)
                nowhere = await echo_server.ask("GET", "/v1/agents/agent-0", key)
                assert answer.status_code == nowhere.status_code == 404
                assert answer.json()["type"] == nowhere.json()["type"] == "urn:ramet:problem:not-yours"
            assert (await echo_server.ask("GET", "/v1/teams", other)).json() == {"teams": []}
            assert (await echo_server.ask("GET", f"/v1/agents/{agent}", "nobody")).status_code == 401
