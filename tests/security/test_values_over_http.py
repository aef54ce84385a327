"""Values of secrets and variables are in no answer of a server but the agent's own, no log, and no file."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.team_keys import TeamClient, serve_team
from tests.support.waiting import eventually

TE1, TE2, TOKEN = "CANARYxENVVARS-ffff1111", "CANARYxENV-ffff2222", "CANARYxSECRET-ffff3333"
POLICY = {"env_vars": {"TE1": TE1}, "secrets": {"tok": TOKEN}}
VALUES = {"policy": POLICY, "env": {"TE2": TE2}}
PROGRAM = pathlib.Path(__file__).with_name("revealing_program.py").read_text()


@pytest.fixture(scope="module", params=["bwrap", "local"])
def client(request: pytest.FixtureRequest) -> Iterator[TeamClient]:
    """Start one server for the tests of this module."""
    with serve_team(None, "--backend", request.param) as client:
        yield client


def spawn_revealing_agent(client: TeamClient, name: str) -> dict[str, Any]:
    """Spawn an agent that reveals its values, and assert that it has them."""
    made = client.spawn(name, "command", spawn_info={"argv": ["python3", "-c", PROGRAM]}, **VALUES)
    assert made.status_code == 201, made.text
    spawned: dict[str, Any] = made.json()
    assert client.say(spawned, "answer")[::-1] == f"{TE1} {TE2} {TOKEN}"
    return spawned


def turn(client: TeamClient, spawned: dict[str, Any], text: str) -> str:
    """Send one message, and return the server's answer, whatever its status."""
    body = {"model": "any", "messages": [{"role": "user", "content": text}]}
    return client.ask("POST", "/v1/chat/completions", spawned["nonce"], json=body).text


def control(client: TeamClient, spawned: dict[str, Any], **operation: Any) -> str:
    """Send one operation, and return the server's answer."""
    path = f"/v1/agents/{spawned['agent']['id']}/control"
    return client.ask("POST", path, spawned["nonce"], json=operation).text


def state(client: TeamClient, spawned: dict[str, Any]) -> str:
    """Return the server's description of the agent."""
    return client.ask("GET", f"/v1/agents/{spawned['agent']['id']}", spawned["nonce"]).text


def files_with_values(client: TeamClient) -> list[str]:
    """Return the names of files in the server's folder, its log included, that hold a value."""
    files = (each for each in client.folder.rglob("*") if each.is_file() and not each.is_symlink())
    return [each.name for each in files if b"CANARY" in each.read_bytes()]


def end(client: TeamClient, spawned: dict[str, Any]) -> None:
    """End the agent, so that no sandbox holds the values."""
    client.ask("DELETE", f"/v1/agents/{spawned['agent']['id']}", spawned["nonce"]).raise_for_status()


def test_an_error_or_refusal_of_a_program_has_no_values(client: TeamClient) -> None:
    spawned = spawn_revealing_agent(client, "refuser")

    replies = [turn(client, spawned, "error"), control(client, spawned, **{"@type": "call", "operation": "x"})]
    end(client, spawned)

    for each in replies:
        assert "***" in each
        assert "CANARY" not in each
    assert files_with_values(client) == []


def test_the_log_of_a_program_has_no_values_where_it_is_cut(client: TeamClient) -> None:
    spawned = spawn_revealing_agent(client, "noisy")

    turn(client, spawned, "noise")
    log = control(client, spawned, **{"@type": "log"})
    end(client, spawned)

    assert "left out here" in log
    assert "ffff" not in log
    assert "CANARY" not in log
    assert files_with_values(client) == []


@pytest.mark.parametrize("text", ["frame 0", "frame 1", "frame 66", "exit"])
async def test_the_end_of_a_program_is_reported_without_values(client: TeamClient, text: str) -> None:
    spawned = spawn_revealing_agent(client, text.replace(" ", "-"))

    report = turn(client, spawned, text)
    await eventually(lambda: '"failed"' in state(client, spawned))
    report += state(client, spawned)
    end(client, spawned)

    assert "***" in report
    assert "CANARY" not in report
    assert files_with_values(client) == []


def invalid_parts() -> dict[str, Any]:
    """Return parts of a request that are refused, each with a value in it."""
    return {
        "mounts": {"policy": {"secrets": {"tok": TOKEN}, "readonly_mounts": ["x"]}},
        "policy": {"policy": TOKEN},
        "policies": {"policy": [POLICY]},
        "secrets-text": {"policy": {"secrets": TOKEN}},
        "secrets-list": {"policy": {"secrets": [TOKEN]}},
        "secrets-no-names": {"policy": {"secrets": [f"{TOKEN} {TOKEN}"]}},
        "secret-list": {"policy": {"secrets": {"tok": [TOKEN]}}},
        "env_vars-text": {"policy": {"env_vars": TE1}},
        "env_vars-list": {"policy": {"env_vars": {"TE1": [TE1]}}},
        "env-text": {"env": TE2},
        "env-list": {"env": [TE2]},
        "variable": {"env": {"TE2": {"value": TE2}}},
    }


@pytest.mark.parametrize("case", invalid_parts())
def test_a_refused_policy_or_environment_is_not_shown(client: TeamClient, case: str) -> None:
    refused = client.spawn("misfit", "command", spawn_info={"argv": ["true"]}, **invalid_parts()[case])

    assert refused.status_code == 422
    assert "not shown" in refused.text
    assert "CANARY" not in refused.text


BODIES = {
    "cut": json.dumps({"env": {"TE2": TE2}})[:-1],
    "list": json.dumps([{"env": {"TE2": TE2}}]),
    "text": json.dumps(json.dumps({"env": {"TE2": TE2}})),
}


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
def test_a_body_that_is_no_request_is_not_shown(client: TeamClient, body: str) -> None:
    refused = client.ask("POST", "/v1/agents", client.key, content=body)

    assert refused.status_code in (400, 422)
    assert "not shown" in refused.text
    assert "CANARY" not in refused.text
