"""What an agent says reaches its readers as that and nothing else, and harms neither its server nor its neighbours."""

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
from tests.support.serving import Served, serving
from tests.support.waiting import eventually

IN_HOST = Rules(sandboxed=False)  #: for functions of this module, which are called in it
PROMPT = b'{"messages": [{"role": "user", "content": "say it"}]}'


class Says(EchoType):
    """Opens agents that answer with these bytes, whatever they are asked."""

    transport_formats: Sequence[str] = ("openai", "anthropic")

    def __init__(self, *chunks: bytes) -> None:
        super().__init__()
        self.chunks = chunks

    async def open(self, spec: AgentSpec) -> Agent:
        self.opened.append(_Saying(spec, self.chunks))
        return self.opened[-1]


class _Saying(Echo):
    def __init__(self, opening: AgentSpec, chunks: Sequence[bytes]) -> None:
        super().__init__(opening)
        self.chunks = chunks

    async def turn(self, body: bytes, format: str) -> AsyncIterator[bytes]:
        for chunk in self.chunks:
            yield chunk


async def asked(served: Served, path: str, nonce: str, *, stream: bool) -> tuple[int, str]:
    body = PROMPT.replace(b"{", b'{"stream": true, ' if stream else b"{", 1)
    answer = await served.ask("POST", path, nonce, content=body)
    return answer.status_code, answer.text


PATHS = pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages"], ids=["openai", "anthropic"])


@PATHS
@pytest.mark.parametrize(
    "chunk",
    [b"\xff", b"no json", b"[]", b"7", b'{"a": 1}\n\ndata: {"b": 2}', b"[" * 5_000],
    ids=["bytes", "text", "list", "number", "two", "deep"],
)
async def test_what_is_no_chunk_is_an_error_of_the_format(folder: pathlib.Path, path: str, chunk: bytes) -> None:
    """Streamed it is the stream's last event, else a 500: one that the client can read, and without what was said."""
    async with serving(folder, types={"echo": Says(chunk)}) as served:
        _, nonce = await served.agent()

        status, streamed = await asked(served, path, nonce, stream=True)
        events = [each for each in streamed.split("\n\n") if each]
        assert status == 200
        [event] = events
        assert "error" in json.loads(event.rpartition("data: ")[2])

        status, whole = await asked(served, path, nonce, stream=False)
        assert status == 500
        assert "error" in json.loads(whole)
        assert "urn:ramet" not in whole


@PATHS
async def test_no_line_of_a_chunk_is_a_line_of_the_stream(folder: pathlib.Path, path: str) -> None:
    """JSON may be written over many lines; what a client reads is one event with all of it."""
    written = b'{\n"type": "content_block_delta",\r\n\n"data": "x",\n\r"choices": []\n}'
    async with serving(folder, types={"echo": Says(written)}) as served:
        _, nonce = await served.agent()
        _, streamed = await asked(served, path, nonce, stream=True)

    first = streamed.split("\n\n")[0]
    assert json.loads(first.rpartition("data: ")[2]) == json.loads(written)
    assert "\r" not in streamed


async def test_the_type_of_an_event_makes_no_lines(folder: pathlib.Path) -> None:
    """It is the name of an event for Anthropic's clients: one that would be more is an error."""
    async with serving(folder, types={"echo": Says(b'{"type": "a\\ndata: forged\\n\\nevent: b"}')}) as served:
        _, nonce = await served.agent()
        _, streamed = await asked(served, "/v1/messages", nonce, stream=True)

    assert "forged" not in streamed
    assert streamed.startswith("event: error\n")


async def test_how_an_agent_ended_can_be_told_and_kept(folder: pathlib.Path) -> None:
    """Its error is no Unicode, and longer than anybody reads: its team is listed, and it is there after a restart."""
    async with serving(folder) as served:
        team, key = await served.team(tokens=10)
        asked = {"team": team, "name": "bob", "agent_type": "echo", "limits": {"tokens": 10}}
        (await served.ask("POST", "/v1/agents", key, json=asked)).raise_for_status()

        served.echo.opened[0].ended.set_result(ErrorInfo(type="Cra\ud800shed", message="\udfff" + "x" * 1_000_000))

        [living] = served.server.spawner.agents
        await eventually(lambda: living.fail_task is not None and living.fail_task.done())
        listed = await served.ask("GET", "/v1/agents", key)
        assert listed.status_code == 200
        [agent] = listed.json()["agents"]
        assert (agent["state"], agent["error"]["type"]) == ("failed", "Cra?shed")
        assert len(agent["error"]["message"]) < 10_000
        assert (await served.ask("GET", f"/v1/teams/{team}", key)).json()["free"] == {"agents": 4, "tokens": 10}

    async with serving(folder) as served:
        [agent] = (await served.ask("GET", "/v1/agents", served.server.operator)).json()["agents"]
        assert (agent["state"], agent["error"]["type"]) == ("failed", "Cra?shed")


def surrogates(text: str, history: object) -> Iterator[str]:
    yield "one \ud800"
    yield " two"


def deep(text: str, history: object) -> list[object]:
    value: list[object] = []
    for _ in range(100_000):
        value = [value]
    return value


async def test_a_function_that_says_what_is_no_unicode(folder: pathlib.Path) -> None:
    """It is told, and kept, with a mark in its place: the next turn and the history are as ever."""
    async with serving(folder, types={"echo": FunctionType([__name__])}, rules=IN_HOST) as served:
        agent, nonce = await served.agent(spawn_info={"function": f"{__name__}:surrogates"})
        for _ in range(2):
            answer = await served.ask("POST", f"/v1/agents/{agent}/turns", nonce, content=PROMPT)
            assert "event: done" in answer.text
        history = (await served.ask("GET", f"/v1/agents/{agent}/history", nonce)).json()["messages"]

    assert [each["content"] for each in history if each["role"] == "assistant"] == ["one ? two"] * 2


async def test_a_function_that_returns_what_cannot_be_told(folder: pathlib.Path) -> None:
    """Its turn fails and says why; the agent answers on."""
    async with serving(folder, types={"echo": FunctionType([__name__])}, rules=IN_HOST) as served:
        agent, nonce = await served.agent(spawn_info={"function": f"{__name__}:deep"})
        for _ in range(2):
            answer = await served.ask("POST", f"/v1/agents/{agent}/turns", nonce, content=PROMPT)
            assert "urn:ramet:problem:not-shippable" in answer.text


async def endless(text: str, history: object) -> AsyncIterator[str]:
    try:
        while True:
            yield "x" * 65_536
            await asyncio.sleep(0)
    finally:
        ENDED.append(text)


ENDED: list[str] = []


async def test_a_function_that_says_too_much_is_stopped(folder: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All that it says is kept in the host: its turn fails, it is ended, and no more than that is kept."""
    monkeypatch.setattr("ramet.services.agent_types.kept_turns.MAX_ANSWER_CHARS", 1_000_000)
    ENDED.clear()
    async with serving(folder, types={"echo": FunctionType([__name__])}, rules=IN_HOST) as served:
        agent, nonce = await served.agent(spawn_info={"function": f"{__name__}:endless"})
        answer = await served.ask("POST", f"/v1/agents/{agent}/turns", nonce, content=PROMPT)
        assert "urn:ramet:problem:output-too-large" in answer.text
        assert ENDED == ["say it"]
        history = (await served.ask("GET", f"/v1/agents/{agent}/history", nonce)).json()["messages"]
        assert sum(len(each["content"]) for each in history) <= 1_100_000
