"""The loopback server itself, which the tests of budgets need."""

from __future__ import annotations

import asyncio
import json

import httpx2
import pytest
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage, ToolMessage

from ramet.models.call import complete
from tests.support.providers import Call, Endless, cut_short, provider


@pytest.mark.slow
async def test_a_thousand_concurrent_requests_are_counted() -> None:
    """Each of them is open at the same time, and each counts once."""
    async with provider(lambda messages: "ok") as server:
        server.hold = asyncio.Event()
        models = [server.openai(max_retries=0), server.anthropic(max_retries=0)]
        asking = [asyncio.ensure_future(complete(models[n % 2], [HumanMessage(str(n))])) for n in range(1_000)]
        await server.arrived(1_000)

        assert server.count == 1_000
        assert not any(task.done() for task in asking)

        server.hold.set()
        assert {str(reply.text) for reply in await asyncio.gather(*asking)} == {"ok"}
        assert server.count == 1_000


async def test_a_script_sees_the_conversation_in_both_formats() -> None:
    """System prompt, calls and their results arrive as they were sent."""
    history: list[BaseMessage] = [
        SystemMessage("You search."),
        HumanMessage("find it"),
        AIMessage("", tool_calls=[{"name": "grep", "args": {"pattern": "x"}, "id": "call_1"}]),
        ToolMessage("hit", tool_call_id="call_1"),
    ]
    conversations: list[list[tuple[str, str]]] = []

    def step(messages: list[BaseMessage]) -> str:
        conversations.append([(message.type, str(message.content)) for message in messages])
        return "done"

    async with provider(step) as server:
        await complete(server.anthropic(), history)
        await complete(server.openai(), history)

    assert conversations == [[("system", "You search."), ("human", "find it"), ("ai", ""), ("tool", "hit")]] * 2


async def test_dialogues_by_pattern_work_over_http() -> None:
    """Parents and children can share one server."""
    async with provider({"You lead.": [Call("Agent", {"prompt": "x"}), "answer"], "": ["found"]}) as server:
        model = server.anthropic()
        parent: list[BaseMessage] = [SystemMessage("You lead."), HumanMessage("why?")]
        first = await complete(model, parent)
        reply = await complete(model, [HumanMessage("search")])
        result = ToolMessage(str(reply.text), tool_call_id=first.tool_calls[0]["id"] or "")
        last = await complete(model, [*parent, first, result])

    assert (str(reply.text), str(last.text)) == ("found", "answer")


CONTENTS = {"contents": [{"role": "user", "parts": [{"text": "find it"}]}]}
STREAM = "/v1beta/models/gemini-2.5-pro:streamGenerateContent?alt=sse"


async def test_the_gemini_format_has_calls_results_and_usage() -> None:
    """A stream ends with the calls, the reason and the usage, and the results of calls come back as messages."""
    seen: list[list[str]] = []

    def step(messages: list[BaseMessage]) -> Call | AIMessage:
        seen.append([message.type for message in messages])
        return Call("grep", {"pattern": "x"}, id="one") if len(seen) == 1 else cut_short("The hit")

    async with provider(step) as server, httpx2.AsyncClient(base_url=server.url) as client:
        first = await client.post(STREAM, json={**CONTENTS, "systemInstruction": {"parts": [{"text": "You search."}]}})
        result = {"functionResponse": {"id": "one", "name": "grep", "response": {"output": "hit"}}}
        history = [*CONTENTS["contents"], {"role": "user", "parts": [result]}]
        whole = await client.post(STREAM.replace("streamG", "g"), json={"contents": history})

    events = [json.loads(line.removeprefix("data: ")) for line in first.text.splitlines() if line]
    ended = events[-1]["candidates"][0]
    assert ended["content"]["parts"] == [{"functionCall": {"id": "one", "name": "grep", "args": {"pattern": "x"}}}]
    assert (ended["finishReason"], events[-1]["usageMetadata"]["candidatesTokenCount"]) == ("STOP", 9)
    assert whole.json()["candidates"][0]["finishReason"] == "MAX_TOKENS"
    assert seen == [["system", "human"], ["human", "tool"]]


@pytest.mark.parametrize(
    ("path", "body", "event"),
    [
        ("/v1/messages?beta=true", {"messages": []}, '"stop_reason": "max_tokens"'),
        ("/v1/responses", {"input": []}, "event: response.incomplete"),
        ("/v1/chat/completions", {"messages": []}, '"finish_reason": "length"'),
        (STREAM, CONTENTS, '"finishReason": "MAX_TOKENS"'),
    ],
)
async def test_a_reply_can_end_at_the_maximum_of_output(path: str, body: dict[str, object], event: str) -> None:
    """The word for that is the one of each format."""
    async with provider([cut_short("So far")]) as server, httpx2.AsyncClient(base_url=server.url) as client:
        reply = await client.post(path, json={**body, "stream": True})

        assert event in reply.text


async def test_requests_that_ask_for_no_reply_take_no_step() -> None:
    """Counts of tokens, lists of models and looks at the address are answered, and are no generations."""
    async with provider(["ok"]) as server, httpx2.AsyncClient(base_url=server.url) as client:
        assert (await client.head("/api/hello")).status_code == 200
        assert (await client.get("/v1/models")).json() == {}
        counted = await client.post("/v1/messages/count_tokens?beta=true", json={"messages": []})
        assert counted.json()["input_tokens"] > 0
        assert (await client.post(STREAM.replace("streamGenerateContent", "countTokens"), json={})).json()
        assert server.generations == []

        await client.post("/v1/chat/completions", json={"messages": []})

        assert [request.path for request in server.generations] == ["/v1/chat/completions"]
        assert server.count == 5


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/responses", "/v1/chat/completions", STREAM])
async def test_an_endless_stream_ends_with_its_client(path: str) -> None:
    """The server goes on for as long as somebody reads."""
    async with provider([Endless()]) as server, httpx2.AsyncClient(base_url=server.url) as client:
        async with client.stream("POST", path, json={"stream": True}) as reply:
            read = 0
            async for chunk in reply.aiter_bytes():
                read += len(chunk)
                if read > 1_000_000:
                    break
        await server.client_left.wait()
