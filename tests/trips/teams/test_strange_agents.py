"""Strange output of an agent reaches its readers unchanged or as an error, and harms no server and no other agent."""

from __future__ import annotations

import asyncio
import json
import pathlib
from collections.abc import AsyncIterator, Iterator, Sequence

import pytest

from ramet.core.outcome import ErrorInfo
from ramet.services.agent_types.function.type import FunctionType
from ramet.services.contract import AgentSpec
from ramet.services.contract import RunningAgent as Agent
from ramet.services.rules import Rules
from tests.support.echo_agents import Echo, EchoType
from tests.support.serving import EchoServer, serving
from tests.support.waiting import eventually

IN_HOST = Rules(sandboxed=False)  #: for functions of this module, which are called in it
PROMPT = b'{"messages": [{"role": "user", "content": "say it"}]}'


class FixedAnswerType(EchoType):
    """The type of agents that always answer with these bytes."""

    transport_formats: Sequence[str] = ("openai", "anthropic")

    def __init__(self, *chunks: bytes) -> None:
        super().__init__()
        self.chunks = chunks

    async def open(self, spec: AgentSpec) -> Agent:
        self.opened.append(_FixedAnswerAgent(spec, self.chunks))
        return self.opened[-1]


class _FixedAnswerAgent(Echo):
    def __init__(self, opening: AgentSpec, chunks: Sequence[bytes]) -> None:
        super().__init__(opening)
        self.chunks = chunks

    async def turn(self, body: bytes, format: str) -> AsyncIterator[bytes]:
        for chunk in self.chunks:
            yield chunk


async def request_turn(echo_server: EchoServer, path: str, nonce: str, *, stream: bool) -> tuple[int, str]:
    body = PROMPT.replace(b"{", b'{"stream": true, ' if stream else b"{", 1)
    answer = await echo_server.ask("POST", path, nonce, content=body)
    return answer.status_code, answer.text


PATHS = pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages"], ids=["openai", "anthropic"])


@PATHS
@pytest.mark.parametrize(
    "chunk",
    [b"\xff", b"no json", b"[]", b"7", b'{"a": 1}\n\ndata: {"b": 2}', b"[" * 5_000],
    ids=["bytes", "text", "list", "number", "two", "deep"],
)
async def test_an_invalid_chunk_is_an_error_in_the_client_s_format(
    folder: pathlib.Path, path: str, chunk: bytes
) -> None:
    """A stream ends with the error as its only event, and a whole answer is a 500. Neither shows the invalid chunk."""
    async with serving(folder, types={"echo": FixedAnswerType(chunk)}) as echo_server:
        _, nonce = await echo_server.agent()

        status, body_text = await request_turn(echo_server, path, nonce, stream=True)
        events = [each for each in body_text.split("\n\n") if each]
        assert status == 200
        [event] = events
        assert "error" in json.loads(event.rpartition("data: ")[2])

        status, text = await request_turn(echo_server, path, nonce, stream=False)
        assert status == 500
        assert "error" in json.loads(text)
        assert "urn:ramet" not in text


@PATHS
async def test_a_chunk_with_line_breaks_is_one_event(folder: pathlib.Path, path: str) -> None:
    """JSON may have line breaks, and the client still reads one event."""
    content = b'{\n"type": "content_block_delta",\r\n\n"data": "x",\n\r"choices": []\n}'
    async with serving(folder, types={"echo": FixedAnswerType(content)}) as echo_server:
        _, nonce = await echo_server.agent()
        _, body_text = await request_turn(echo_server, path, nonce, stream=True)

    first = body_text.split("\n\n")[0]
    assert json.loads(first.rpartition("data: ")[2]) == json.loads(content)
    assert "\r" not in body_text


async def test_the_type_of_an_event_cannot_forge_lines(folder: pathlib.Path) -> None:
    """A type with line breaks is an error for Anthropic's clients."""
    async with serving(
        folder, types={"echo": FixedAnswerType(b'{"type": "a\\ndata: forged\\n\\nevent: b"}')}
    ) as echo_server:
        _, nonce = await echo_server.agent()
        _, body_text = await request_turn(echo_server, "/v1/messages", nonce, stream=True)

    assert "forged" not in body_text
    assert body_text.startswith("event: error\n")


async def test_a_strange_error_of_an_agent_can_be_listed_and_stored(folder: pathlib.Path) -> None:
    """The error is no Unicode and very long. The team can still be listed, also after a restart."""
    async with serving(folder) as echo_server:
        team, key = await echo_server.team(tokens=10)
        body = {"team": team, "name": "bob", "agent_type": "echo", "limits": {"tokens": 10}}
        (await echo_server.ask("POST", "/v1/agents", key, json=body)).raise_for_status()

        echo_server.echo.opened[0].end.set_result(ErrorInfo(type="Cra\ud800shed", message="\udfff" + "x" * 1_000_000))

        [living] = echo_server.server.spawner.agents
        await eventually(lambda: living.fail_task is not None and living.fail_task.done())
        agent_list = await echo_server.ask("GET", "/v1/agents", key)
        assert agent_list.status_code == 200
        [agent] = agent_list.json()["agents"]
        assert (agent["state"], agent["error"]["type"]) == ("failed", "Cra?shed")
        assert len(agent["error"]["message"]) < 10_000
        assert (await echo_server.ask("GET", f"/v1/teams/{team}", key)).json()["free"] == {"agents": 4, "tokens": 10}

    async with serving(folder) as echo_server:
        [agent] = (await echo_server.ask("GET", "/v1/agents", echo_server.server.operator)).json()["agents"]
        assert (agent["state"], agent["error"]["type"]) == ("failed", "Cra?shed")


def surrogates(text: str, history: object) -> Iterator[str]:
    yield "one \ud800"
    yield " two"


def deep(text: str, history: object) -> list[object]:
    value: list[object] = []
    for _ in range(100_000):
        value = [value]
    return value


async def test_output_that_is_no_unicode_is_replaced(folder: pathlib.Path) -> None:
    """Stream and history have a mark in its place, and the next turn works."""
    async with serving(folder, types={"echo": FunctionType([__name__])}, rules=IN_HOST) as echo_server:
        agent, nonce = await echo_server.agent(spawn_info={"function": f"{__name__}:surrogates"})
        for _ in range(2):
            answer = await echo_server.ask("POST", f"/v1/agents/{agent}/turns", nonce, content=PROMPT)
            assert "event: done" in answer.text
        history = (await echo_server.ask("GET", f"/v1/agents/{agent}/history", nonce)).json()["messages"]

    assert [each["content"] for each in history if each["role"] == "assistant"] == ["one ? two"] * 2


async def test_a_result_that_cannot_be_encoded_fails_its_turn(folder: pathlib.Path) -> None:
    """The error has the reason, and the agent takes the next turn."""
    async with serving(folder, types={"echo": FunctionType([__name__])}, rules=IN_HOST) as echo_server:
        agent, nonce = await echo_server.agent(spawn_info={"function": f"{__name__}:deep"})
        for _ in range(2):
            answer = await echo_server.ask("POST", f"/v1/agents/{agent}/turns", nonce, content=PROMPT)
            assert "urn:ramet:problem:not-shippable" in answer.text


async def endless(text: str, history: object) -> AsyncIterator[str]:
    try:
        while True:
            yield "x" * 65_536
            await asyncio.sleep(0)
    finally:
        ENDED.append(text)


ENDED: list[str] = []


async def test_a_function_with_endless_output_is_stopped(folder: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The host keeps output, so it bounds the output. The turn fails, and the function ends."""
    monkeypatch.setattr("ramet.services.agent_types.conversation_log.MAX_ANSWER_CHARS", 1_000_000)
    ENDED.clear()
    async with serving(folder, types={"echo": FunctionType([__name__])}, rules=IN_HOST) as echo_server:
        agent, nonce = await echo_server.agent(spawn_info={"function": f"{__name__}:endless"})
        answer = await echo_server.ask("POST", f"/v1/agents/{agent}/turns", nonce, content=PROMPT)
        assert "urn:ramet:problem:output-too-large" in answer.text
        assert ENDED == ["say it"]
        history = (await echo_server.ask("GET", f"/v1/agents/{agent}/history", nonce)).json()["messages"]
        assert sum(len(each["content"]) for each in history) <= 1_100_000
