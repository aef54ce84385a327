"""Owners supply the values of variables and secrets again over HTTP, after a kill of the server."""

from __future__ import annotations

import hashlib
import pathlib
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx2

import ramet
from tests.support.acceptance_types import ENTRY_POINTS
from tests.support.serve_process import plugin
from tests.support.serving import short_folder
from tests.support.team_keys import ServeProcess, TeamClient

VALUES = {
    "env": {"LEVEL": "level-0123456789"},
    "env_vars": {"DATABASE_URL": "postgresql://app:hunter2-0123456789@db/app"},
    "secrets": {"token": "secret-0123456789"},
}
SPAWN: dict[str, Any] = {
    "spawn_info": {"tools": ["Bash"]},
    "env": VALUES["env"],
    "policy": {"env_vars": VALUES["env_vars"], "secrets": VALUES["secrets"]},
}
#: Prints a hash of all values, so that the values themselves are in no answer.
HASH = '$ printf %s "$LEVEL$DATABASE_URL$(cat /run/secrets/token)" | sha256sum'
EXPECTED = hashlib.sha256("".join(value for each in VALUES.values() for value in each.values()).encode()).hexdigest()


@contextmanager
def server_folder() -> Iterator[tuple[pathlib.Path, httpx2.Client]]:
    """A folder for servers, and an HTTP client of the server that is running there."""
    with short_folder() as folder:
        plugin(folder, ENTRY_POINTS)
        transport = httpx2.HTTPTransport(uds=str(folder / ".ramet" / "serve.sock"))
        with httpx2.Client(transport=transport, base_url="http://ramet", timeout=180) as http:
            yield folder, http


def spawn_and_kill(folder: pathlib.Path, http: httpx2.Client, **more: Any) -> tuple[TeamClient, dict[str, Any]]:
    """Start a server, spawn an agent with values, talk with it, and kill the server."""
    with ServeProcess(folder) as first:
        client = TeamClient(folder, http)
        spawn_answer = client.spawn("bob", **SPAWN, **more)
        assert spawn_answer.status_code == 201, spawn_answer.text
        assert EXPECTED in client.say(spawn_answer.json(), HASH), "control: the sandbox has all values"
        first.kill()
    return client, spawn_answer.json()


@contextmanager
def restarted_server() -> Iterator[tuple[TeamClient, dict[str, Any]]]:
    """Start a second server in the folder of a killed one, and yield a client and the agent that had values."""
    with server_folder() as (folder, http):
        client, spawn_answer = spawn_and_kill(folder, http)
        with ServeProcess(folder):
            yield client, spawn_answer


def agent_of(client: TeamClient, spawned_agent: dict[str, Any]) -> dict[str, Any]:
    """Return the agent as its owner sees it."""
    answer = client.ask("GET", f"/v1/agents/{spawned_agent['agent']['id']}", spawned_agent["nonce"])
    return dict(answer.raise_for_status().json())


def supply(client: TeamClient, spawned_agent: dict[str, Any], key: str, values: object = None) -> httpx2.Response:
    """Supply values with a key."""
    path = f"/v1/agents/{spawned_agent['agent']['id']}/values"
    return client.ask("POST", path, key, json=VALUES if values is None else values)


def shows_a_value(text: str) -> bool:
    """Return whether a text holds one of the values."""
    return any(value in text for each in VALUES.values() for value in each.values())


def files_with_a_value(folder: pathlib.Path) -> list[str]:
    """Return the files below a folder that hold one of the values."""
    files = [each for each in folder.rglob("*") if each.is_file() and not each.is_symlink()]
    return [each.name for each in files if shows_a_value(each.read_bytes().decode("latin-1"))]


def test_an_agent_resumes_once_its_owner_supplies_values() -> None:
    """The agent waits and names the missing values.

    One request later it continues with the same id, key and history.
    """
    with restarted_server() as (client, spawn_answer):
        waiting = agent_of(client, spawn_answer)
        assert waiting["state"] == "waiting"
        assert all(name in waiting["error"]["message"] for name in ("LEVEL", "DATABASE_URL", "token"))
        early = client.ask("POST", f"/v1/agents/{waiting['id']}/turns", spawn_answer["nonce"], content=b"{}")
        assert early.status_code == 409, early.text
        assert early.json()["type"] == "urn:ramet:problem:values-missing"

        answer = supply(client, spawn_answer, spawn_answer["nonce"])

        assert answer.status_code == 200, answer.text
        agent = answer.json()
        assert (agent["id"], agent["state"], agent["error"]) == (waiting["id"], "idle", None)
        assert agent["run"] == waiting["run"]
        assert EXPECTED in client.say(spawn_answer, HASH)
        history = client.ask("GET", f"/v1/agents/{agent['id']}/history", spawn_answer["nonce"]).json()["messages"]
        assert sum(HASH in str(each["content"]) for each in history if each["role"] == "user") == 2
        assert not any(map(shows_a_value, (early.text, answer.text, str(waiting), str(history))))
        assert files_with_a_value(client.folder) == []


def test_the_operator_supplies_values_through_the_client() -> None:
    """The Python client's `supply_values` works with the operator's key."""
    with (
        restarted_server() as (client, spawn_answer),
        ramet.connect(client.folder / ".ramet" / "serve.sock") as operator,
    ):
        info = operator.supply_values(
            spawn_answer["agent"]["id"], env=VALUES["env"], env_vars=VALUES["env_vars"], secrets=VALUES["secrets"]
        )

        assert info.state == "idle"
        assert EXPECTED in client.say(spawn_answer, HASH)


def test_wrong_values_are_refused_by_field_and_name() -> None:
    """Names that the agent does not have, names that are missing, and wrong types are refused without a value."""
    with restarted_server() as (client, spawn_answer):
        nonce = spawn_answer["nonce"]
        cases: dict[str, tuple[object, str]] = {
            "env": ({**VALUES, "env": {"LEVEL": "level-0123456789", "PATH": "/bin"}}, "LEVEL"),
            "env_vars": ({**VALUES, "env_vars": {}}, "DATABASE_URL"),
            "secrets": ({"env": VALUES["env"], "env_vars": VALUES["env_vars"]}, "token"),
            "secrets[": ({**VALUES, "secrets": {"token": ["secret-0123456789"]}}, "str"),
        }
        for field, (values, message) in cases.items():
            response = supply(client, spawn_answer, nonce, values)
            assert response.status_code == 422, response.text
            assert response.json()["field"].startswith(field), response.text
            assert message in response.json()["accepted"]
            assert not shows_a_value(response.text)
        path = f"/v1/agents/{spawn_answer['agent']['id']}/values"
        malformed_answer = client.ask("POST", path, nonce, content=b"secret-0123456789")
        assert malformed_answer.status_code == 400, malformed_answer.text
        assert not shows_a_value(malformed_answer.text)
        assert agent_of(client, spawn_answer)["state"] == "waiting"

        assert supply(client, spawn_answer, nonce).status_code == 200
        twice = supply(client, spawn_answer, nonce)
        assert twice.status_code == 422, twice.text
        assert "waiting" in twice.json()["accepted"]


def test_only_the_full_owner_and_the_operator_supply_values() -> None:
    """A delegated key with all rights, the team's key and a wrong key are refused; the agent still waits."""
    with restarted_server() as (client, spawn_answer):
        body = {"rights": ["turn", "control", "history", "info", "events", "mail", "kill", "delegate"]}
        path = f"/v1/agents/{spawn_answer['agent']['id']}/keys"
        narrower = client.ask("POST", path, spawn_answer["nonce"], json=body).raise_for_status().json()["key"]

        for key, status in ((narrower, 404), (client.key, 404), ("agent_wrong", 401)):
            assert supply(client, spawn_answer, key).status_code == status

        assert agent_of(client, spawn_answer)["state"] == "waiting"
        assert supply(client, spawn_answer, client.operator).status_code == 200


def test_an_agent_that_waits_for_values_survives_gc_and_keep_failed_s() -> None:
    """`ramet gc` between two servers removes nothing that the agent needs, and `keep_failed_s` does not end it."""
    with server_folder() as (folder, http):
        client, spawn_answer = spawn_and_kill(folder, http, keep_failed_s=0)
        with ServeProcess(folder) as second:
            assert agent_of(client, spawn_answer)["state"] == "waiting"
            second.kill()
        gc = [sys.executable, "-m", "ramet", "gc", "--dir", str(folder), "--older-than", "0s"]
        subprocess.run(gc, check=True, capture_output=True)

        with ServeProcess(folder):
            assert supply(client, spawn_answer, spawn_answer["nonce"]).status_code == 200
            assert EXPECTED in client.say(spawn_answer, HASH)
            history = client.ask("GET", f"/v1/agents/{spawn_answer['agent']['id']}/history", spawn_answer["nonce"])
            assert history.text.count("sha256sum") >= 2
