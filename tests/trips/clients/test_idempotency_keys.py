"""`Idempotency-Key`: a POST takes effect once, and its repetition gets the first answer."""

from __future__ import annotations

import asyncio
import json
import pathlib
from collections.abc import AsyncIterator
from typing import Any

import httpx2
import pytest

from ramet.core.errors import Aborted, OutputInvalid, RametError, TaskFailed
from tests.support.parrot_agents import ParrotType
from tests.support.serving import EchoServer, serving
from tests.support.tars import tar
from tests.support.waiting import eventually

REPLAYED = "idempotent-replayed"


def key_header(key: str) -> dict[str, str]:
    return {"idempotency-key": key}


async def post_twice(
    echo_server: EchoServer, path: str, key: str, **options: Any
) -> tuple[httpx2.Response, httpx2.Response]:
    """Send the same POST two times."""
    return (
        await echo_server.ask("POST", path, key, headers=key_header("one"), **options),
        await echo_server.ask("POST", path, key, headers=key_header("one"), **options),
    )


def check_repeated_answer(first: httpx2.Response, second: httpx2.Response) -> None:
    assert (first.status_code, first.content) == (second.status_code, second.content)
    assert first.headers.get("content-type") == second.headers.get("content-type")
    assert first.is_success, first.text
    assert REPLAYED not in first.headers
    assert second.headers[REPLAYED] == "true"


@pytest.fixture
async def provider_server(folder: pathlib.Path) -> AsyncIterator[EchoServer]:
    """Yield a server whose agents also speak the formats of providers."""
    from tests.support.echo_agents import EchoType

    echo = EchoType()
    async with serving(folder, echo=echo, types={"echo": echo, "parrot": ParrotType()}) as server:
        yield server


async def test_a_team_and_an_agent_are_created_once(echo_server: EchoServer) -> None:
    """The second answer has the same ids and keys; the store has no part of the keys."""
    operator = echo_server.server.operator
    teams = await post_twice(echo_server, "/v1/teams", operator, json={"resources": {"agents": 4}})
    check_repeated_answer(*teams)
    team = teams[0].json()
    spawn = {"team": team["team"]["id"], "name": "bob", "agent_type": "echo"}
    agents = await post_twice(echo_server, "/v1/agents", team["key"], json=spawn)
    check_repeated_answer(*agents)

    agent_list = (await echo_server.ask("GET", "/v1/agents", operator)).json()["agents"]
    assert [each["id"] for each in agent_list] == [agents[0].json()["agent"]["id"]]
    nonce = agents[1].json()["nonce"]
    assert (await echo_server.ask("GET", f"/v1/agents/{agent_list[0]['id']}", nonce)).is_success
    assert echo_server.server.runtime.journal is not None
    store = echo_server.server.runtime.journal.store
    records = [each.data for kind in ("idempotent request", "idempotent answer") for each in await store.list(kind)]
    assert len(records) == 4
    secrets = (nonce.removeprefix("agent_"), team["key"].removeprefix("team_"), operator.removeprefix("op_"))
    assert not [each for each in records for secret in secrets if secret.encode() in each]


async def test_a_reused_key_with_another_body_is_refused(provider_server: EchoServer) -> None:
    """The refusal has the endpoint's form: a problem document, OpenAI's error, or Anthropic's error."""
    operator = provider_server.server.operator
    await provider_server.ask(
        "POST", "/v1/teams", operator, headers=key_header("one"), json={"resources": {"agents": 4}}
    )
    response = await provider_server.ask(
        "POST", "/v1/teams", operator, headers=key_header("one"), json={"resources": {"agents": 5}}
    )
    assert response.status_code == 422
    assert response.json()["type"] == "urn:ramet:problem:key-reused"
    assert response.json()["field"] == "Idempotency-Key"

    _, nonce = await provider_server.agent(agent_type="parrot")
    for path in ("/v1/chat/completions", "/v1/messages"):
        body: dict[str, Any] = {"model": "any", "messages": [{"role": "user", "content": "a"}]}
        assert (await provider_server.ask("POST", path, nonce, headers=key_header("one"), json=body)).is_success
        body["messages"] = [{"role": "user", "content": "b"}]
        response = await provider_server.ask("POST", path, nonce, headers=key_header("one"), json=body)
        assert response.status_code == 422
        assert response.json()["error"]["type"] == "invalid_request_error"
        assert "Idempotency-Key" in response.json()["error"]["message"]


async def test_a_key_is_scoped_to_its_caller_and_route(echo_server: EchoServer) -> None:
    """One Idempotency-Key is another request under another API key, and on another route."""
    operator = echo_server.server.operator
    agent, nonce = await echo_server.agent()
    first = await echo_server.ask("POST", f"/v1/agents/{agent}/rotate", operator, headers=key_header("one"))
    second_answer = await echo_server.ask(
        "POST", f"/v1/agents/{agent}/rotate", first.json()["nonce"], headers=key_header("one")
    )
    other = await echo_server.ask("POST", f"/v1/agents/{agent}/interrupt", operator, headers=key_header("one"))
    assert len({nonce, first.json()["nonce"], second_answer.json()["nonce"]}) == 3
    assert other.json() == {"interrupted": False}


async def test_a_refused_request_can_be_repeated(echo_server: EchoServer) -> None:
    """A refusal takes no effect, so that the same key may ask again and succeed."""
    team, key = await echo_server.team()
    for number in range(4):
        spawn = {"team": team, "name": f"a{number}", "agent_type": "echo"}
        agent = (await echo_server.ask("POST", "/v1/agents", key, json=spawn)).json()["agent"]["id"]
    spawn = {"team": team, "name": "late", "agent_type": "echo"}
    response = await echo_server.ask("POST", "/v1/agents", key, headers=key_header("one"), json=spawn)
    assert response.status_code == 409
    await echo_server.ask("DELETE", f"/v1/agents/{agent}", echo_server.server.operator)
    check_repeated_answer(*await post_twice(echo_server, "/v1/agents", key, json=spawn))


@pytest.mark.parametrize("key", ["", "k" * 256, "käse".encode(), b"a\tb"], ids=["empty", "long", "umlaut", "tab"])
async def test_an_invalid_idempotency_key_is_refused(echo_server: EchoServer, key: str | bytes) -> None:
    """The refusal asks for 1 to 255 printable characters of ASCII."""
    body = {"resources": {"agents": 4}}
    response = await echo_server.ask(
        "POST", "/v1/teams", echo_server.server.operator, headers={"idempotency-key": key}, json=body
    )
    assert response.status_code == 422
    assert (response.json()["field"], "1 to 255" in response.json()["accepted"]) == ("Idempotency-Key", True)


async def test_a_repetition_during_the_first_request_gets_409(provider_server: EchoServer) -> None:
    """The answer has Retry-After; a later repetition gets the first answer."""
    _, nonce = await provider_server.agent(agent_type="parrot")
    parrot = provider_server.server.spawner.agents.find_by_key(nonce, "turn").running_agent
    body = {"model": "any", "messages": [{"role": "user", "content": "a wait"}]}

    async def ask() -> httpx2.Response:
        return await provider_server.ask("POST", "/v1/chat/completions", nonce, headers=key_header("one"), json=body)

    first = asyncio.create_task(ask())
    await eventually(lambda: parrot.received_bodies)  # type: ignore[attr-defined]
    second = await ask()
    assert (second.status_code, second.headers["retry-after"]) == (409, "1")
    assert "being executed" in second.json()["error"]["message"]
    parrot.go_on.set()  # type: ignore[attr-defined]
    assert (await first).json()["choices"][0]["message"]["content"] == "1: a wait "
    check_repeated_answer(await first, await ask())


async def test_a_repetition_after_a_disconnect_gets_the_answer(provider_server: EchoServer) -> None:
    """A turn with an Idempotency-Key continues without its client; the same request reads it to its end."""
    _, nonce = await provider_server.agent(agent_type="parrot")
    parrot: Any = provider_server.server.spawner.agents.find_by_key(nonce, "turn").running_agent
    requests = provider_server.server._parts.metrics.requests
    body = {"model": "any", "messages": [{"role": "user", "content": "a wait b"}]}

    async def ask() -> httpx2.Response:
        return await provider_server.ask("POST", "/v1/chat/completions", nonce, headers=key_header("one"), json=body)

    first = asyncio.create_task(ask())
    await eventually(lambda: parrot.received_bodies)
    first.cancel()
    await eventually(lambda: not requests.under_way)
    second = asyncio.create_task(ask())
    await eventually(lambda: requests.under_way)
    parrot.go_on.set()
    assert (await second).json()["choices"][0]["message"]["content"] == "1: a wait b "
    assert len(parrot.received_bodies) == 1


@pytest.mark.parametrize(
    "failure",
    [
        TaskFailed("'charge' was not answered within 1 s"),
        Aborted("it was stopped"),
        OutputInvalid("no answer", tries=2),
    ],
    ids=["too late", "stopped", "no answer"],
)
async def test_a_failed_operation_is_not_repeated(
    echo_server: EchoServer, monkeypatch: pytest.MonkeyPatch, failure: RametError
) -> None:
    """The operation may have taken effect, so that its failure is the first answer; an earlier refusal is not."""
    agent, nonce = await echo_server.agent()
    echo: Any = echo_server.echo.opened[0]
    requests = list[object]()

    async def charge(operation: object) -> object:
        requests.append(operation)
        raise failure

    monkeypatch.setattr(echo, "control", charge)
    path, wrong = f"/v1/agents/{agent}/control", {"@type": "whisper"}
    assert (await echo_server.ask("POST", path, nonce, headers=key_header("one"), json=wrong)).status_code == 404
    first, second = await post_twice(echo_server, path, nonce, json={"@type": "shout", "times": 2})

    assert first.status_code >= 400
    assert (first.status_code, first.content) == (second.status_code, second.content)
    assert second.headers[REPLAYED] == "true"
    assert len(requests) == 1


async def test_a_repeated_turn_is_read_from_its_beginning(echo_server: EchoServer) -> None:
    """The stream of a repetition is that of the same turn."""
    agent, nonce = await echo_server.agent()
    first, second = await post_twice(echo_server, f"/v1/agents/{agent}/turns", nonce, content=b"one two")
    assert first.headers["ramet-turn"] == second.headers["ramet-turn"]
    assert first.text == second.text
    assert [body for body, _ in echo_server.echo.opened[0].received_bodies] == [b"one two"]


async def test_a_rotation_is_repeated_with_the_dead_key(echo_server: EchoServer) -> None:
    """The client has only its dead key: with an Idempotency-Key that cannot be guessed, the answer comes again."""
    agent, nonce = await echo_server.agent()
    guessable, secret = key_header("rotate-1"), key_header("5cdbf6c0-2f27-4f4a-9d0b-1f0c6a4d7e11")
    first = await echo_server.ask("POST", f"/v1/agents/{agent}/rotate", nonce, headers=secret)
    second = await echo_server.ask("POST", f"/v1/agents/{agent}/rotate", nonce, headers=secret)
    check_repeated_answer(first, second)
    assert (await echo_server.ask("POST", f"/v1/agents/{agent}/rotate", nonce)).status_code == 401

    newer = first.json()["nonce"]
    assert (await echo_server.ask("POST", f"/v1/agents/{agent}/rotate", newer, headers=guessable)).is_success
    dead = await echo_server.ask("POST", f"/v1/agents/{agent}/rotate", newer, headers=guessable)
    assert dead.status_code == 401, "an Idempotency-Key that can be guessed opens nothing"


async def test_a_handover_is_repeated_with_the_dead_key(echo_server: EchoServer) -> None:
    """The repetition gets the first answer, as for a rotation."""
    agent, nonce = await echo_server.agent()
    secret, path = key_header("5cdbf6c0-2f27-4f4a-9d0b-1f0c6a4d7e11"), f"/v1/agents/{agent}/keys"
    first = await echo_server.ask("POST", path, nonce, headers=secret, json={"owner": True})
    second = await echo_server.ask("POST", path, nonce, headers=secret, json={"owner": True})
    check_repeated_answer(first, second)
    assert (await echo_server.ask("GET", f"/v1/agents/{agent}", second.json()["key"])).is_success


async def test_an_upload_is_compared_completely(echo_server: EchoServer) -> None:
    """An upload of the same bytes gets the first answer, and other bytes are refused."""
    operator, bundle = echo_server.server.operator, tar({"kit.py": b"X = 1\n"})
    check_repeated_answer(*await post_twice(echo_server, "/v1/bundles", operator, content=bundle))
    other = await echo_server.ask(
        "POST", "/v1/bundles", operator, headers=key_header("one"), content=bundle + b"\0" * 512
    )
    assert other.status_code == 422


async def test_an_unknown_key_leaves_no_record(provider_server: EchoServer) -> None:
    """The server refuses an invalid API key before it reads the body, in the endpoint's form."""
    for path in ("/v1/chat/completions", "/v1/messages", "/v1/teams"):
        response = await provider_server.ask("POST", path, "agent_nobody", headers=key_header("one"), content=b"{")
        assert response.status_code == 401
    assert provider_server.server.runtime.journal is not None
    assert await provider_server.server.runtime.journal.store.list("idempotent request") == []


async def test_the_openapi_document_describes_idempotency_keys(echo_server: EchoServer) -> None:
    """Each POST has the header and its refusals in the OpenAPI document."""
    document = (await echo_server.ask("GET", "/openapi.json")).json()
    posts = [each["post"] for each in document["paths"].values() if "post" in each]
    for each in posts:
        assert "Idempotency-Key" in [parameter["name"] for parameter in each.get("parameters", ())], each["operationId"]
        assert {"409", "410", "422"} <= each["responses"].keys(), each["operationId"]
    assert json.dumps(document["paths"]["/v1/agents"]["get"]).find("Idempotency-Key") == -1
