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


async def read_stream(served: EchoServer, method: str, path: str, key: str, **options: object) -> list[ServerSentEvent]:
    """Return a whole stream of events."""
    answer = await served.ask(method, path, key, **options)
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"].startswith("text/event-stream")
    return list(Parser().feed(answer.content))


async def test_a_team_an_agent_and_its_turns(served: EchoServer) -> None:
    """A client reserves a team, spawns an agent, talks twice, looks, kills and deletes."""
    team, key = await served.team()
    body = {"team": team, "name": "bob", "agent_type": "echo", "spawn_info": {"prefix": "<"}, "labels": {"a": "b"}}
    spawned_agent = (await served.ask("POST", "/v1/agents", key, json=body)).json()
    agent, nonce = spawned_agent["agent"]["id"], spawned_agent["nonce"]

    first = await read_stream(served, "POST", f"/v1/agents/{agent}/turns", nonce, content=b"one two")
    second = await read_stream(served, "POST", f"/v1/agents/{agent}/turns?format=letters", nonce, content=b"three")

    assert [(each.event, each.data) for each in first] == [("chunk", b"<one"), ("chunk", b"<two"), ("done", b"")]
    assert [each.id.rpartition(":")[2] for each in first] == ["1", "2", "3"]
    assert served.echo.opened[0].received_bodies == [(b"one two", "words"), (b"three", "letters")]
    assert [each.data for each in second] == [b"<three", b""]

    info = (await served.ask("GET", f"/v1/agents/{agent}", nonce)).json()
    assert (info["name"], info["turns"], info["labels"]) == ("bob", 2, {"a": "b"})
    agent_list = (await served.ask("GET", "/v1/agents", key, params={"team": team, "label": "a=b"})).json()
    assert [each["id"] for each in agent_list["agents"]] == [agent]
    assert (await served.ask("GET", "/v1/agents", key, params={"label": "a=c"})).json() == {"agents": []}
    history = (await served.ask("GET", f"/v1/agents/{agent}/history", nonce)).json()
    assert [each["content"] for each in history["messages"]] == ["one two", "three"]

    assert (await served.ask("DELETE", f"/v1/agents/{agent}", nonce)).status_code == 204
    assert (await served.ask("GET", f"/v1/agents/{agent}", nonce)).status_code == 401
    assert (await served.ask("DELETE", f"/v1/teams/{team}", key)).status_code == 204
    assert (await served.ask("GET", "/v1/teams", served.server.operator)).json() == {"teams": []}


@pytest.mark.parametrize(
    "body", [b"\x00\xff\r\n\n data: x \r", "ü\n\nü".encode(), b"{}"], ids=["bytes", "lines", "json"]
)
async def test_bodies_pass_unchanged(served: EchoServer, body: bytes) -> None:
    """Messages and answers keep every byte."""
    agent, nonce = await served.agent()

    events = await read_stream(served, "POST", f"/v1/agents/{agent}/turns", nonce, content=body)

    assert served.echo.opened[0].received_bodies == [(body, "words")]
    assert [each.data for each in events if each.event == "chunk"] == body.split()


async def test_a_key_is_accepted_in_either_header(served: EchoServer) -> None:
    """The headers are Authorization with Bearer, and x-api-key. Without a key the answer is 401."""
    agent, nonce = await served.agent()
    path = f"/v1/agents/{agent}"

    assert (await served.http.get(path, headers={"x-api-key": nonce})).status_code == 200
    assert (await served.http.get(path, headers={"authorization": f"bearer {nonce}"})).status_code == 200
    nothing = await served.http.get(path)
    assert (nothing.status_code, nothing.headers["www-authenticate"]) == (401, "Bearer")
    assert (await served.http.get("/v1/agents/none")).json() == nothing.json()


async def test_unknown_and_forbidden_objects_get_the_same_answer(served: EchoServer) -> None:
    """A key learns nothing about another's agent."""
    agent, nonce = await served.agent()
    _, other_nonce = await served.agent()
    for method, rest in [
        ("GET", ""), ("DELETE", ""), ("GET", "/history"), ("GET", "/events"), ("POST", "/interrupt"),
        ("POST", "/turns"), ("GET", "/turns/x"), ("POST", "/control"), ("POST", "/rotate"), ("DELETE", "/keys/x"),
    ]:  # fmt: skip
        foreign = await served.ask(method, f"/v1/agents/{agent}{rest}", other_nonce)
        unknown = await served.ask(method, f"/v1/agents/agent-0{rest}", other_nonce)
        assert foreign.status_code == unknown.status_code == 404, (method, rest)
        assert foreign.text.replace(agent, "agent-0") == unknown.text
        assert foreign.headers["content-type"] == "application/problem+json"
    assert (await served.ask("GET", f"/v1/agents/{agent}", nonce)).status_code == 200


async def test_a_reader_can_continue_after_a_lost_connection(served: EchoServer) -> None:
    """Last-Event-ID and `after` return the missing events, and no more."""
    agent, nonce = await served.agent()
    events = await read_stream(served, "POST", f"/v1/agents/{agent}/turns", nonce, content=b"a b c")
    turn = events[0].id.rpartition(":")[0]
    path = f"/v1/agents/{agent}/turns/{turn}"

    rest = await read_stream(served, "GET", path, nonce, headers={"last-event-id": events[1].id})
    assert rest == events[2:]
    assert await read_stream(served, "GET", path, nonce, params={"after": "3"}) == events[3:]
    wrong = await served.ask("GET", path, nonce, headers={"last-event-id": "other:1"})
    assert (wrong.status_code, wrong.json()["field"]) == (422, "Last-Event-ID")
    assert (await served.ask("GET", path, nonce, params={"after": "99"})).status_code == 422
    assert (await served.ask("GET", path + "0", nonce)).status_code in (404, 410)


async def test_a_client_that_disconnects_does_not_end_the_turn(served: EchoServer) -> None:
    """The turn continues, and another connection can read it."""
    agent, nonce = await served.agent()
    headers = {"authorization": f"Bearer {nonce}"}
    async with served.http.stream(
        "POST", f"/v1/agents/{agent}/turns", content=b"one wait two", headers=headers
    ) as answer:
        turn = answer.headers["ramet-turn"]
        async for _ in answer.aiter_bytes():
            break
    await wait_until_no_stream(served)
    assert served.echo.opened[0].interrupts == 0

    reading = asyncio.create_task(read_stream(served, "GET", f"/v1/agents/{agent}/turns/{turn}", nonce))
    served.echo.opened[0].go_on.set()

    assert [each.data for each in await reading] == [b"one", b"wait", b"two", b""]


async def test_a_failed_turn_ends_with_a_problem_document(served: EchoServer) -> None:
    """The text before the failure comes first."""
    agent, nonce = await served.agent()

    *chunks, last = await read_stream(served, "POST", f"/v1/agents/{agent}/turns", nonce, content=b"one fail")

    assert [each.data for each in chunks] == [b"one"]
    assert last.event == "error"
    assert json.loads(last.data)["type"] == "urn:ramet:problem:model-failed"


async def test_interrupt_control_and_mail_reach_the_agent(served: EchoServer) -> None:
    """Each request is answered. An unknown operation gets 404 with the known ones."""
    agent, nonce = await served.agent()
    path = f"/v1/agents/{agent}"
    turn = asyncio.create_task(read_stream(served, "POST", f"{path}/turns", nonce, content=b"one wait"))
    await eventually(lambda: served.echo.opened[0].received_bodies)

    assert (await served.ask("POST", f"{path}/interrupt", nonce)).json() == {"interrupted": True}
    assert (await turn)[-1].event == "error"
    assert (await served.ask("POST", f"{path}/interrupt", nonce)).json() == {"interrupted": False}
    loud = await served.ask("POST", f"{path}/control", nonce, json={"@type": "shout", "times": 2})
    assert loud.json() == {"times": 2}
    unknown = await served.ask("POST", f"{path}/control", nonce, json={"@type": "whisper"})
    assert (unknown.status_code, unknown.json()["known"]) == (404, ["shout"])
    assert (await served.ask("POST", f"{path}/control", nonce, content=b"{")).status_code == 400
    assert (await served.ask("POST", f"{path}/mail", nonce, json={"text": "psst"})).status_code == 204
    assert served.echo.opened[0].mail_texts == ["psst"]


async def test_keys_are_delegated_revoked_and_rotated(served: EchoServer) -> None:
    """A delegated key has its rights until it is revoked. A rotation invalidates the owner's old key."""
    agent, nonce = await served.agent()
    path = f"/v1/agents/{agent}"

    created = (await served.ask("POST", f"{path}/keys", nonce, json={"rights": ["info"]})).json()
    assert (await served.ask("GET", path, created["key"])).status_code == 200
    assert (await served.ask("GET", f"{path}/history", created["key"])).status_code == 404
    assert (await served.ask("DELETE", f"{path}/keys/{created['id']}", nonce)).status_code == 204
    assert (await served.ask("GET", path, created["key"])).status_code == 401
    new = (await served.ask("POST", f"{path}/rotate", nonce)).json()["nonce"]
    assert (await served.ask("GET", path, nonce)).status_code == 401
    assert (await served.ask("GET", path, new)).status_code == 200


async def wait_until_no_stream(served: EchoServer) -> None:
    """Wait until no stream is open."""
    await eventually(lambda: len(served.server._parts.streams) == 0)


async def test_requests_are_logged_without_keys(served: EchoServer, caplog: pytest.LogCaptureFixture) -> None:
    """A request is one log line: INFO with method, path, status and time, or WARNING with the reason of a refusal.

    Successful health checks are not logged.
    """
    with caplog.at_level("INFO", logger="ramet.serve"):
        agent, nonce = await served.agent()
        await served.ask("GET", f"/v1/agents/{agent}", nonce)
        await served.ask("GET", f"/v1/agents/{agent}", nonce, params={"x": "sought"})
        await served.ask("GET", "/healthz", "")
        await served.ask("GET", "/v1/agents/%0aWARNING", nonce)
        await served.ask("POST", "/v1/teams", "agent_wrong", json={"resources": {"agents": 1}})
        await served.ask(
            "POST", "/v1/teams", served.server.operator, json={"resources": {}, "label": {"a": "personal"}}
        )

    took = re.compile(r" \d+\.\d ms")
    lines = [(each.levelname, took.sub("", each.getMessage())) for each in caplog.records]
    assert ("INFO", f"GET /v1/agents/{agent} 200") in lines
    assert ("WARNING", f"GET /v1/agents/{agent} 422: x: expected no parameter in the query of this path") in lines
    line = "GET /v1/agents/\\nWARNING 404: there is no agent '\\\\nWARNING' that this key may access"
    assert ("WARNING", line) in lines
    assert any(line.startswith("POST /v1/teams 401: this key is not valid: ") for _, line in lines)
    assert any(line.startswith("POST /v1/teams 422: label: expected ") for _, line in lines)
    secrets = (nonce, served.server.operator, "agent_wrong", "sought", "personal")
    assert not any(secret in caplog.text for secret in secrets)
    assert "healthz" not in caplog.text


async def test_events_of_an_agent_are_streamed_from_a_cursor(served: EchoServer) -> None:
    """An agent without a tree has no events yet. An invalid cursor is refused."""
    agent, nonce = await served.agent()
    path = f"/v1/agents/{agent}/events"

    assert (await served.ask("GET", path, nonce, headers={"last-event-id": "x"})).status_code == 422
    assert (await served.ask("GET", path, nonce, params={"after": "-1"})).status_code == 422
    reading = asyncio.create_task(read_stream(served, "GET", path, nonce))
    await eventually(lambda: len(served.server._parts.streams) == 1)
    assert (await served.ask("DELETE", f"/v1/agents/{agent}", nonce)).status_code == 204

    last = (await reading)[-1]
    assert last.event in ("done", "error")


async def test_a_lost_store_is_one_log_line_per_request(
    served: EchoServer, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The line has the error and no traceback: such lines are many, and all alike."""

    async def failing(*_: object) -> NoReturn:
        raise StoreFailed("the database", "it is away")

    with monkeypatch.context() as patch:
        patch.setattr(await served.server.runtime.open_store(), "put_together", failing)
        body = {"resources": {"agents": 1}}
        answer = await served.ask("POST", "/v1/teams", served.server.operator, json=body)

    assert answer.status_code == 500
    [record] = [each for each in caplog.records if "an answer failed" in each.getMessage()]
    assert (record.exc_info, "it is away" in record.getMessage()) == (None, True)
