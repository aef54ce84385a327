"""A server as its clients see it: over a Unix socket and over TCP, with real uvicorn."""

from __future__ import annotations

import asyncio
import json
import re
from typing import NoReturn

import pytest

from ramet.core.errors import StoreFailed
from ramet.wire.sse import Parser, ServerSentEvent
from tests.support.serving import EchoServer
from tests.support.waiting import eventually


async def read_stream(
    echo_server: EchoServer, method: str, path: str, key: str, **options: object
) -> list[ServerSentEvent]:
    """Return a whole stream of events."""
    answer = await echo_server.ask(method, path, key, **options)
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"].startswith("text/event-stream")
    return list(Parser().feed(answer.content))


async def test_a_team_an_agent_and_its_turns(echo_server: EchoServer) -> None:
    """A client reserves a team, spawns an agent, talks twice, looks, kills and deletes."""
    team, key = await echo_server.team()
    body = {"team": team, "name": "bob", "agent_type": "echo", "spawn_info": {"prefix": "<"}, "labels": {"a": "b"}}
    spawned_agent = (await echo_server.ask("POST", "/v1/agents", key, json=body)).json()
    agent, nonce = spawned_agent["agent"]["id"], spawned_agent["nonce"]

    first = await read_stream(echo_server, "POST", f"/v1/agents/{agent}/turns", nonce, content=b"one two")
    second = await read_stream(echo_server, "POST", f"/v1/agents/{agent}/turns?format=letters", nonce, content=b"three")

    assert [(each.event, each.data) for each in first] == [("chunk", b"<one"), ("chunk", b"<two"), ("done", b"")]
    assert [each.id.rpartition(":")[2] for each in first] == ["1", "2", "3"]
    assert echo_server.echo.opened[0].received_bodies == [(b"one two", "words"), (b"three", "letters")]
    assert [each.data for each in second] == [b"<three", b""]

    info = (await echo_server.ask("GET", f"/v1/agents/{agent}", nonce)).json()
    assert (info["name"], info["turns"], info["labels"]) == ("bob", 2, {"a": "b"})
    agent_list = (await echo_server.ask("GET", "/v1/agents", key, params={"team": team, "label": "a=b"})).json()
    assert [each["id"] for each in agent_list["agents"]] == [agent]
    assert (await echo_server.ask("GET", "/v1/agents", key, params={"label": "a=c"})).json() == {"agents": []}
    history = (await echo_server.ask("GET", f"/v1/agents/{agent}/history", nonce)).json()
    assert [each["content"] for each in history["messages"]] == ["one two", "three"]

    assert (await echo_server.ask("DELETE", f"/v1/agents/{agent}", nonce)).status_code == 204
    assert (await echo_server.ask("GET", f"/v1/agents/{agent}", nonce)).status_code == 401
    assert (await echo_server.ask("DELETE", f"/v1/teams/{team}", key)).status_code == 204
    assert (await echo_server.ask("GET", "/v1/teams", echo_server.server.operator)).json() == {"teams": []}


@pytest.mark.parametrize(
    "body", [b"\x00\xff\r\n\n data: x \r", "ü\n\nü".encode(), b"{}"], ids=["bytes", "lines", "json"]
)
async def test_bodies_pass_unchanged(echo_server: EchoServer, body: bytes) -> None:
    """Messages and answers keep every byte."""
    agent, nonce = await echo_server.agent()

    events = await read_stream(echo_server, "POST", f"/v1/agents/{agent}/turns", nonce, content=body)

    assert echo_server.echo.opened[0].received_bodies == [(body, "words")]
    assert [each.data for each in events if each.event == "chunk"] == body.split()


async def test_a_key_is_accepted_in_either_header(echo_server: EchoServer) -> None:
    """The headers are Authorization with Bearer, and x-api-key. Without a key the answer is 401."""
    agent, nonce = await echo_server.agent()
    path = f"/v1/agents/{agent}"

    assert (await echo_server.http.get(path, headers={"x-api-key": nonce})).status_code == 200
    assert (await echo_server.http.get(path, headers={"authorization": f"bearer {nonce}"})).status_code == 200
    nothing = await echo_server.http.get(path)
    assert (nothing.status_code, nothing.headers["www-authenticate"]) == (401, "Bearer")
    assert (await echo_server.http.get("/v1/agents/none")).json() == nothing.json()


async def test_unknown_and_forbidden_objects_get_the_same_answer(echo_server: EchoServer) -> None:
    """A key learns nothing about another's agent."""
    agent, nonce = await echo_server.agent()
    _, other_nonce = await echo_server.agent()
    for method, rest in [
        ("GET", ""), ("DELETE", ""), ("GET", "/history"), ("GET", "/events"), ("POST", "/interrupt"),
        ("POST", "/turns"), ("GET", "/turns/x"), ("POST", "/control"), ("POST", "/rotate"), ("DELETE", "/keys/x"),
    ]:  # fmt: skip
        foreign = await echo_server.ask(method, f"/v1/agents/{agent}{rest}", other_nonce)
        unknown = await echo_server.ask(method, f"/v1/agents/agent-0{rest}", other_nonce)
        assert foreign.status_code == unknown.status_code == 404, (method, rest)
        assert foreign.text.replace(agent, "agent-0") == unknown.text
        assert foreign.headers["content-type"] == "application/problem+json"
    assert (await echo_server.ask("GET", f"/v1/agents/{agent}", nonce)).status_code == 200


async def test_a_reader_can_continue_after_a_lost_connection(echo_server: EchoServer) -> None:
    """Last-Event-ID and `after` return the missing events, and no more."""
    agent, nonce = await echo_server.agent()
    events = await read_stream(echo_server, "POST", f"/v1/agents/{agent}/turns", nonce, content=b"a b c")
    turn = events[0].id.rpartition(":")[0]
    path = f"/v1/agents/{agent}/turns/{turn}"

    rest = await read_stream(echo_server, "GET", path, nonce, headers={"last-event-id": events[1].id})
    assert rest == events[2:]
    assert await read_stream(echo_server, "GET", path, nonce, params={"after": "3"}) == events[3:]
    wrong = await echo_server.ask("GET", path, nonce, headers={"last-event-id": "other:1"})
    assert (wrong.status_code, wrong.json()["field"]) == (422, "Last-Event-ID")
    assert (await echo_server.ask("GET", path, nonce, params={"after": "99"})).status_code == 422
    assert (await echo_server.ask("GET", path + "0", nonce)).status_code in (404, 410)


async def test_a_client_that_disconnects_does_not_end_the_turn(echo_server: EchoServer) -> None:
    """The turn continues, and another connection can read it."""
    agent, nonce = await echo_server.agent()
    headers = {"authorization": f"Bearer {nonce}"}
    async with echo_server.http.stream(
        "POST", f"/v1/agents/{agent}/turns", content=b"one wait two", headers=headers
    ) as answer:
        turn = answer.headers["ramet-turn"]
        async for _ in answer.aiter_bytes():
            break
    await wait_until_no_stream(echo_server)
    assert echo_server.echo.opened[0].interrupts == 0

    reading = asyncio.create_task(read_stream(echo_server, "GET", f"/v1/agents/{agent}/turns/{turn}", nonce))
    echo_server.echo.opened[0].go_on.set()

    assert [each.data for each in await reading] == [b"one", b"wait", b"two", b""]


async def test_a_failed_turn_ends_with_a_problem_document(echo_server: EchoServer) -> None:
    """The text before the failure comes first."""
    agent, nonce = await echo_server.agent()

    *chunks, last = await read_stream(echo_server, "POST", f"/v1/agents/{agent}/turns", nonce, content=b"one fail")

    assert [each.data for each in chunks] == [b"one"]
    assert last.event == "error"
    assert json.loads(last.data)["type"] == "urn:ramet:problem:model-failed"


async def test_interrupt_control_and_mail_reach_the_agent(echo_server: EchoServer) -> None:
    """Each request is answered. An unknown operation gets 404 with the known ones."""
    agent, nonce = await echo_server.agent()
    path = f"/v1/agents/{agent}"
    turn = asyncio.create_task(read_stream(echo_server, "POST", f"{path}/turns", nonce, content=b"one wait"))
    await eventually(lambda: echo_server.echo.opened[0].received_bodies)

    assert (await echo_server.ask("POST", f"{path}/interrupt", nonce)).json() == {"interrupted": True}
    assert (await turn)[-1].event == "error"
    assert (await echo_server.ask("POST", f"{path}/interrupt", nonce)).json() == {"interrupted": False}
    loud = await echo_server.ask("POST", f"{path}/control", nonce, json={"@type": "shout", "times": 2})
    assert loud.json() == {"times": 2}
    unknown = await echo_server.ask("POST", f"{path}/control", nonce, json={"@type": "whisper"})
    assert (unknown.status_code, unknown.json()["known"]) == (404, ["shout"])
    assert (await echo_server.ask("POST", f"{path}/control", nonce, content=b"{")).status_code == 400
    assert (await echo_server.ask("POST", f"{path}/mail", nonce, json={"text": "psst"})).status_code == 204
    assert echo_server.echo.opened[0].mail_texts == ["psst"]


async def test_keys_are_delegated_revoked_and_rotated(echo_server: EchoServer) -> None:
    """A delegated key has its rights until it is revoked. A rotation invalidates the owner's old key."""
    agent, nonce = await echo_server.agent()
    path = f"/v1/agents/{agent}"

    created_key = (await echo_server.ask("POST", f"{path}/keys", nonce, json={"rights": ["info"]})).json()
    assert (await echo_server.ask("GET", path, created_key["key"])).status_code == 200
    assert (await echo_server.ask("GET", f"{path}/history", created_key["key"])).status_code == 404
    assert (await echo_server.ask("DELETE", f"{path}/keys/{created_key['id']}", nonce)).status_code == 204
    assert (await echo_server.ask("GET", path, created_key["key"])).status_code == 401
    new = (await echo_server.ask("POST", f"{path}/rotate", nonce)).json()["nonce"]
    assert (await echo_server.ask("GET", path, nonce)).status_code == 401
    assert (await echo_server.ask("GET", path, new)).status_code == 200


async def wait_until_no_stream(echo_server: EchoServer) -> None:
    """Wait until no stream is open."""
    await eventually(lambda: len(echo_server.server._parts.streams) == 0)


async def test_requests_are_logged_without_keys(echo_server: EchoServer, caplog: pytest.LogCaptureFixture) -> None:
    """A request is one log line: INFO with method, path, status and time, or WARNING with the reason of a refusal.

    Successful health checks are not logged.
    """
    with caplog.at_level("INFO", logger="ramet.serve"):
        agent, nonce = await echo_server.agent()
        await echo_server.ask("GET", f"/v1/agents/{agent}", nonce)
        await echo_server.ask("GET", f"/v1/agents/{agent}", nonce, params={"x": "sought"})
        await echo_server.ask("GET", "/healthz", "")
        await echo_server.ask("GET", "/v1/agents/%0aWARNING", nonce)
        await echo_server.ask("POST", "/v1/teams", "agent_wrong", json={"resources": {"agents": 1}})
        await echo_server.ask(
            "POST", "/v1/teams", echo_server.server.operator, json={"resources": {}, "label": {"a": "personal"}}
        )

    took = re.compile(r" \d+\.\d ms")
    lines = [(each.levelname, took.sub("", each.getMessage())) for each in caplog.records]
    assert ("INFO", f"GET /v1/agents/{agent} 200") in lines
    assert ("WARNING", f"GET /v1/agents/{agent} 422: x: expected no parameter in the query of this path") in lines
    line = "GET /v1/agents/\\nWARNING 404: there is no agent '\\\\nWARNING' that this key may access"
    assert ("WARNING", line) in lines
    assert any(line.startswith("POST /v1/teams 401: this key is not valid: ") for _, line in lines)
    assert any(line.startswith("POST /v1/teams 422: label: expected ") for _, line in lines)
    secrets = (nonce, echo_server.server.operator, "agent_wrong", "sought", "personal")
    assert not any(secret in caplog.text for secret in secrets)
    assert "healthz" not in caplog.text


async def test_events_of_an_agent_are_streamed_from_a_cursor(echo_server: EchoServer) -> None:
    """An agent without a tree has no events yet. An invalid cursor is refused."""
    agent, nonce = await echo_server.agent()
    path = f"/v1/agents/{agent}/events"

    assert (await echo_server.ask("GET", path, nonce, headers={"last-event-id": "x"})).status_code == 422
    assert (await echo_server.ask("GET", path, nonce, params={"after": "-1"})).status_code == 422
    reading = asyncio.create_task(read_stream(echo_server, "GET", path, nonce))
    await eventually(lambda: len(echo_server.server._parts.streams) == 1)
    assert (await echo_server.ask("DELETE", f"/v1/agents/{agent}", nonce)).status_code == 204

    last = (await reading)[-1]
    assert last.event in ("done", "error")


async def test_a_lost_store_is_one_log_line_per_request(
    echo_server: EchoServer, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The line has the error and no traceback: such lines are many, and all alike."""

    async def failing(*_: object) -> NoReturn:
        raise StoreFailed("the database", "it is away")

    with monkeypatch.context() as patch:
        patch.setattr(await echo_server.server.runtime.open_store(), "put_together", failing)
        body = {"resources": {"agents": 1}}
        answer = await echo_server.ask("POST", "/v1/teams", echo_server.server.operator, json=body)

    assert answer.status_code == 500
    [record] = [each for each in caplog.records if "an answer failed" in each.getMessage()]
    assert (record.exc_info, "it is away" in record.getMessage()) == (None, True)
