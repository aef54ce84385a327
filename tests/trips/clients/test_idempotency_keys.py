"""`Idempotency-Key`: a POST takes effect once, and whoever sends it again gets the first answer."""

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
from tests.support.serving import Served, serving
from tests.support.tars import tar
from tests.support.waiting import eventually

REPLAYED = "idempotent-replayed"


def keyed(key: str) -> dict[str, str]:
    return {"idempotency-key": key}


async def twice(served: Served, path: str, key: str, **options: Any) -> tuple[httpx2.Response, httpx2.Response]:
    """The same POST two times."""
    return (
        await served.ask("POST", path, key, headers=keyed("one"), **options),
        await served.ask("POST", path, key, headers=keyed("one"), **options),
    )


def see_that_it_is_the_first_answer(first: httpx2.Response, second: httpx2.Response) -> None:
    assert (first.status_code, first.content) == (second.status_code, second.content)
    assert first.headers.get("content-type") == second.headers.get("content-type")
    assert first.is_success, first.text
    assert REPLAYED not in first.headers
    assert second.headers[REPLAYED] == "true"


@pytest.fixture
async def both(folder: pathlib.Path) -> AsyncIterator[Served]:
    """A server whose agents speak the formats of providers as well."""
    from tests.support.echo_agents import EchoType

    echo = EchoType()
    async with serving(folder, echo=echo, types={"echo": echo, "parrot": ParrotType()}) as found:
        yield found


async def test_a_team_and_an_agent_are_made_once(served: Served) -> None:
    """The second answer has the same ids and keys; nothing of the keys is in the store."""
    operator = served.server.operator
    teams = await twice(served, "/v1/teams", operator, json={"resources": {"agents": 4}})
    see_that_it_is_the_first_answer(*teams)
    team = teams[0].json()
    spawn = {"team": team["team"]["id"], "name": "bob", "agent_type": "echo"}
    agents = await twice(served, "/v1/agents", team["key"], json=spawn)
    see_that_it_is_the_first_answer(*agents)

    listed = (await served.ask("GET", "/v1/agents", operator)).json()["agents"]
    assert [each["id"] for each in listed] == [agents[0].json()["agent"]["id"]]
    nonce = agents[1].json()["nonce"]
    assert (await served.ask("GET", f"/v1/agents/{listed[0]['id']}", nonce)).is_success
    assert served.server.runtime.journal is not None
    store = served.server.runtime.journal.store
    kept = [each.data for kind in ("idempotent request", "idempotent answer") for each in await store.list(kind)]
    assert len(kept) == 4
    secrets = (nonce.removeprefix("agent_"), team["key"].removeprefix("team_"), operator.removeprefix("op_"))
    assert not [each for each in kept for secret in secrets if secret.encode() in each]


async def test_another_body_is_refused(both: Served) -> None:
    """In the form of the endpoint: a problem document, OpenAI's error, Anthropic's error."""
    operator = both.server.operator
    await both.ask("POST", "/v1/teams", operator, headers=keyed("one"), json={"resources": {"agents": 4}})
    refused = await both.ask("POST", "/v1/teams", operator, headers=keyed("one"), json={"resources": {"agents": 5}})
    assert refused.status_code == 422
    assert refused.json()["type"] == "urn:ramet:problem:key-reused"
    assert refused.json()["field"] == "Idempotency-Key"

    _, nonce = await both.agent(agent_type="parrot")
    for path in ("/v1/chat/completions", "/v1/messages"):
        body: dict[str, Any] = {"model": "any", "messages": [{"role": "user", "content": "a"}]}
        assert (await both.ask("POST", path, nonce, headers=keyed("one"), json=body)).is_success
        body["messages"] = [{"role": "user", "content": "b"}]
        refused = await both.ask("POST", path, nonce, headers=keyed("one"), json=body)
        assert refused.status_code == 422
        assert refused.json()["error"]["type"] == "invalid_request_error"
        assert "Idempotency-Key" in refused.json()["error"]["message"]


async def test_keys_of_others_and_other_routes_are_other_keys(served: Served) -> None:
    """One Idempotency-Key means another request under another key, and on another route."""
    operator = served.server.operator
    agent, nonce = await served.agent()
    first = await served.ask("POST", f"/v1/agents/{agent}/rotate", operator, headers=keyed("one"))
    again = await served.ask("POST", f"/v1/agents/{agent}/rotate", first.json()["nonce"], headers=keyed("one"))
    other = await served.ask("POST", f"/v1/agents/{agent}/interrupt", operator, headers=keyed("one"))
    assert len({nonce, first.json()["nonce"], again.json()["nonce"]}) == 3
    assert other.json() == {"interrupted": False}


async def test_a_refusal_is_not_kept(served: Served) -> None:
    """Nothing was done, so the same key may ask for it again, and then gets it."""
    team, key = await served.team()
    for number in range(4):
        spawn = {"team": team, "name": f"a{number}", "agent_type": "echo"}
        agent = (await served.ask("POST", "/v1/agents", key, json=spawn)).json()["agent"]["id"]
    spawn = {"team": team, "name": "late", "agent_type": "echo"}
    refused = await served.ask("POST", "/v1/agents", key, headers=keyed("one"), json=spawn)
    assert refused.status_code == 409
    await served.ask("DELETE", f"/v1/agents/{agent}", served.server.operator)
    see_that_it_is_the_first_answer(*await twice(served, "/v1/agents", key, json=spawn))


@pytest.mark.parametrize("key", ["", "k" * 256, "käse".encode(), b"a\tb"], ids=["empty", "long", "umlaut", "tab"])
async def test_keys_that_are_none(served: Served, key: str | bytes) -> None:
    """1 to 255 printable characters of ASCII; the refusal says so."""
    body = {"resources": {"agents": 4}}
    refused = await served.ask("POST", "/v1/teams", served.server.operator, headers={"idempotency-key": key}, json=body)
    assert refused.status_code == 422
    assert (refused.json()["field"], "1 to 255" in refused.json()["accepted"]) == ("Idempotency-Key", True)


async def test_while_the_first_is_being_done(both: Served) -> None:
    """409 with Retry-After: it can be asked for again, and then has the answer."""
    _, nonce = await both.agent(agent_type="parrot")
    parrots = both.server.spawner.agents.find_by_key(nonce, "turn").served
    body = {"model": "any", "messages": [{"role": "user", "content": "a wait"}]}

    async def ask() -> httpx2.Response:
        return await both.ask("POST", "/v1/chat/completions", nonce, headers=keyed("one"), json=body)

    first = asyncio.create_task(ask())
    await eventually(lambda: parrots.heard)  # type: ignore[attr-defined]
    second = await ask()
    assert (second.status_code, second.headers["retry-after"]) == (409, "1")
    assert "being executed" in second.json()["error"]["message"]
    parrots.go_on.set()  # type: ignore[attr-defined]
    assert (await first).json()["choices"][0]["message"]["content"] == "1: a wait "
    see_that_it_is_the_first_answer(await first, await ask())


async def test_who_leaves_a_whole_answer_gets_it_by_asking_again(both: Served) -> None:
    """A turn with an Idempotency-Key goes on without its client; the same request reads it to its end."""
    _, nonce = await both.agent(agent_type="parrot")
    parrot: Any = both.server.spawner.agents.find_by_key(nonce, "turn").served
    requests = both.server._parts.metrics.requests
    body = {"model": "any", "messages": [{"role": "user", "content": "a wait b"}]}

    async def ask() -> httpx2.Response:
        return await both.ask("POST", "/v1/chat/completions", nonce, headers=keyed("one"), json=body)

    first = asyncio.create_task(ask())
    await eventually(lambda: parrot.heard)
    first.cancel()
    await eventually(lambda: not requests.under_way)
    second = asyncio.create_task(ask())
    await eventually(lambda: requests.under_way)
    parrot.go_on.set()
    assert (await second).json()["choices"][0]["message"]["content"] == "1: a wait b "
    assert len(parrot.heard) == 1


@pytest.mark.parametrize(
    "failure",
    [
        TaskFailed("'charge' was not answered within 1 s"),
        Aborted("it was stopped"),
        OutputInvalid("no answer", tries=2),
    ],
    ids=["too late", "stopped", "no answer"],
)
async def test_an_operation_that_failed_in_the_middle_is_not_done_again(
    served: Served, monkeypatch: pytest.MonkeyPatch, failure: RametError
) -> None:
    """It may have taken effect, so its failure is the first answer; what was refused before is done."""
    agent, nonce = await served.agent()
    echo: Any = served.echo.opened[0]
    asked = list[object]()

    async def charge(operation: object) -> object:
        asked.append(operation)
        raise failure

    monkeypatch.setattr(echo, "control", charge)
    path, wrong = f"/v1/agents/{agent}/control", {"@type": "whisper"}
    assert (await served.ask("POST", path, nonce, headers=keyed("one"), json=wrong)).status_code == 404
    first, second = await twice(served, path, nonce, json={"@type": "shout", "times": 2})

    assert first.status_code >= 400
    assert (first.status_code, first.content) == (second.status_code, second.content)
    assert second.headers[REPLAYED] == "true"
    assert len(asked) == 1


async def test_a_turn_is_read_again_from_its_beginning(served: Served) -> None:
    """The stream of a repetition is the same turn's: under way, or over and kept."""
    agent, nonce = await served.agent()
    first, second = await twice(served, f"/v1/agents/{agent}/turns", nonce, content=b"one two")
    assert first.headers["ramet-turn"] == second.headers["ramet-turn"]
    assert first.text == second.text
    assert [body for body, _ in served.echo.opened[0].heard] == [b"one two"]


async def test_a_rotation_is_repeated_with_the_dead_key(served: Served) -> None:
    """Its sender has no other key: with an Idempotency-Key that nobody guesses, the answer comes again."""
    agent, nonce = await served.agent()
    guessable, secret = keyed("rotate-1"), keyed("5cdbf6c0-2f27-4f4a-9d0b-1f0c6a4d7e11")
    first = await served.ask("POST", f"/v1/agents/{agent}/rotate", nonce, headers=secret)
    second = await served.ask("POST", f"/v1/agents/{agent}/rotate", nonce, headers=secret)
    see_that_it_is_the_first_answer(first, second)
    assert (await served.ask("POST", f"/v1/agents/{agent}/rotate", nonce)).status_code == 401

    newer = first.json()["nonce"]
    assert (await served.ask("POST", f"/v1/agents/{agent}/rotate", newer, headers=guessable)).is_success
    dead = await served.ask("POST", f"/v1/agents/{agent}/rotate", newer, headers=guessable)
    assert dead.status_code == 401, "an Idempotency-Key that can be guessed opens nothing"


async def test_a_handover_is_repeated_with_the_dead_key(served: Served) -> None:
    """Likewise."""
    agent, nonce = await served.agent()
    secret, path = keyed("5cdbf6c0-2f27-4f4a-9d0b-1f0c6a4d7e11"), f"/v1/agents/{agent}/keys"
    first = await served.ask("POST", path, nonce, headers=secret, json={"owner": True})
    second = await served.ask("POST", path, nonce, headers=secret, json={"owner": True})
    see_that_it_is_the_first_answer(first, second)
    assert (await served.ask("GET", f"/v1/agents/{agent}", second.json()["key"])).is_success


async def test_an_upload_is_compared_to_its_end(served: Served) -> None:
    """The same bytes get the first answer, others are refused."""
    operator, bundle = served.server.operator, tar({"kit.py": b"X = 1\n"})
    see_that_it_is_the_first_answer(*await twice(served, "/v1/bundles", operator, content=bundle))
    other = await served.ask("POST", "/v1/bundles", operator, headers=keyed("one"), content=bundle + b"\0" * 512)
    assert other.status_code == 422


async def test_a_stranger_leaves_nothing_on_record(both: Served) -> None:
    """A key that opens nothing is refused before its body is read, in the form of the endpoint."""
    for path in ("/v1/chat/completions", "/v1/messages", "/v1/teams"):
        refused = await both.ask("POST", path, "agent_nobody", headers=keyed("one"), content=b"{")
        assert refused.status_code == 401
    assert both.server.runtime.journal is not None
    assert await both.server.runtime.journal.store.list("idempotent request") == []


async def test_the_document_says_so(served: Served) -> None:
    """Every POST with a key has the header in the OpenAPI document, and the refusals that come of it."""
    document = (await served.ask("GET", "/openapi.json")).json()
    posts = [each["post"] for each in document["paths"].values() if "post" in each]
    for each in posts:
        assert "Idempotency-Key" in [named["name"] for named in each.get("parameters", ())], each["operationId"]
        assert {"409", "410", "422"} <= each["responses"].keys(), each["operationId"]
    assert json.dumps(document["paths"]["/v1/agents"]["get"]).find("Idempotency-Key") == -1
