"""Clients of the tools of the tree that do what they should not: each is refused, and the endpoint goes on."""

from __future__ import annotations

from typing import Any

import pytest

import ramet
from tests.trips.agents import tree_clients
from tests.trips.kits.isolated import runtime
from tests.trips.kits.isolated import usual_backend as backend
from tests.trips.tree_tools.test_tree_tools import run

__all__ = ["backend", "runtime"]

PING = {"jsonrpc": "2.0", "id": 1, "method": "ping"}


def call(tool: Any, arguments: Any) -> dict[str, Any]:
    """Return the call of a tool."""
    return {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": tool, "arguments": arguments}}


#: What is sent (message, headers, method), the status of the reply, and what its error says.
REFUSED: list[tuple[list[Any], int, str]] = [
    ([PING, {"authorization": None}], 401, "the key of this endpoint is expected"),
    ([PING, {"authorization": "Bearer wrong"}], 401, "the key of this endpoint is expected"),
    ([PING, {"authorization": "Basic a2V5"}], 401, "the key of this endpoint is expected"),
    ([b"", {"authorization": None}, "GET"], 401, "the key of this endpoint is expected"),
    ([PING, {"origin": "https://example.org"}], 403, "only a loopback one is accepted"),
    ([PING, {"origin": "http://127.0.0.1.example.org"}], 403, "only a loopback one is accepted"),
    ([PING, {"origin": "null"}], 403, "only a loopback one is accepted"),
    ([b"", {}, "GET"], 405, ""),
    ([b"", {}, "DELETE"], 405, ""),
    ([PING, {"content-type": "text/plain"}], 415, "application/json is expected"),
    ([PING, {"mcp-protocol-version": "1999-01-01"}], 400, "expected is one of 2025-11-25"),
    ([b"{"], 400, "the body is not JSON"),
    ([b"[" * 100_000], 400, "the body is not JSON"),
    ([b'{"jsonrpc": "2.0", "id": 1, "method": "\\ud800"}'], 400, "the body is not JSON"),
    ([[PING, PING]], 400, "a batch is not accepted"),
    ([b"7"], 400, 'jsonrpc: "2.0" is expected'),
    ([{**PING, "jsonrpc": "1.0"}], 400, 'jsonrpc: "2.0" is expected'),
    ([{**PING, "id": None}], 400, "id: a whole number"),
    ([{**PING, "id": True}], 400, "id: a whole number"),
    ([{**PING, "id": 10**30}], 400, "id: a whole number"),
    ([{**PING, "id": "a" * 201}], 400, "id: a whole number"),
    ([{**PING, "method": 7}], 400, "method: a text is expected"),
    ([{**PING, "params": [1]}], 200, "params: an object is expected"),
    ([{**PING, "method": "server/discover"}], 200, "no such method: 'server/discover'"),
    ([{**PING, "method": "initialize"}], 200, "protocolVersion: a text is expected"),
    ([{**PING, "method": "tools/list", "params": {"cursor": "x"}}], 200, "cursor: all tools are on the first page"),
    ([call(7, {})], 200, "name: the name of a tool is expected"),
    ([call("rm", {})], 200, "unknown tool 'rm'; known: spawn_agent, send, result, tree, stop"),
    ([call("tree", [])], 200, "arguments: an object is expected"),
    ([call("tree", {"all": True})], 200, "unknown argument 'all'; there are none"),
    ([call("result", {})], 200, "id is missing; expected a text"),
    ([call("result", {"id": None})], 200, "id is missing; expected a text"),
    ([call("result", {"id": {"a": 1}})], 200, "id: {'a': 1} is not accepted; expected a text"),
    ([call("result", {"id": "x" * 1_001})], 200, "id: '1001 characters' is not accepted; expected at most 1000"),
    ([call("result", {"id": "x", "wait_s": 51})], 200, "wait_s: 51 is not accepted; expected a number of seconds"),
    ([call("result", {"id": "x", "wait_s": -0.1})], 200, "wait_s: -0.1 is not accepted"),
    ([call("result", {"id": "x", "wait_s": True})], 200, "wait_s: True is not accepted"),
    ([call("send", {"to": "parent", "text": "x" * 100_001})], 200, "text: '100001 characters' is not accepted"),
    ([call("stop", {"id": "x", "reason": 5})], 200, "reason: 5 is not accepted; expected a text"),
    ([call("spawn_agent", {"agent": "double", "prompt": "1", "policy": {"models": ["*"]}})], 200, "unknown argument"),
]


async def test_what_is_not_accepted_is_refused_by_name(runtime: ramet.AgentRuntime) -> None:
    """Neither a key, an origin, a version nor a wrong type gets through, and the next client is served."""
    replies = await run(runtime, tree_clients.ask_wrongly, [sent for sent, _, _ in REFUSED])

    for (sent, status, reason), (got, body) in zip(REFUSED, replies, strict=True):
        assert got == status, (sent, got, body)
        assert reason in (body["error"]["message"] if body else ""), (sent, body)


async def test_a_notification_has_no_answer(runtime: ramet.AgentRuntime) -> None:
    """Neither has an answer to a question that was not asked."""
    notification = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1}}
    answer = {"jsonrpc": "2.0", "id": 5, "result": {}}

    replies = await run(runtime, tree_clients.ask_wrongly, [[notification], [answer]])

    assert replies == [[202, None], [202, None]]


@pytest.mark.parametrize(
    ("length", "status"), [(f"content-length: {100 * 2**20}", 413), ("transfer-encoding: chunked", 413)]
)
async def test_a_large_body_is_refused_before_it_is_read(runtime: ramet.AgentRuntime, length: str, status: int) -> None:
    """A chunk announces its size, too."""
    head = f"POST /mcp HTTP/1.1\r\nauthorization: Bearer KEY\r\ncontent-type: application/json\r\n{length}\r\n\r\n"

    [line] = await run(runtime, tree_clients.send_raw, [head + ("6400000\r\n" if "chunked" in length else "")])

    assert line.startswith(f"HTTP/1.1 {status} ")


async def test_a_thousand_calls_at_once_end(runtime: ramet.AgentRuntime) -> None:
    """Each is answered, or refused where too many connections are open; afterwards the tools work."""
    found = await run(runtime, tree_clients.flood, 1_000)

    assert set(found["ends"]) <= {"200", "503"}
    assert found["ends"]["200"] >= 500
    assert found["after"] == 1


async def test_without_the_option_there_are_no_tools(runtime: ramet.AgentRuntime) -> None:
    """The path is that of a provider that nobody knows."""
    assert await run(runtime, tree_clients.ask_without_tools) == [403, "RametError"]
