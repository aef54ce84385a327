"""Payloads of long conversations, with the real clients: encoded off the event loop, and the same JSON as ever."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from langchain_core.callbacks import AsyncCallbackHandler
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.tools import tool

from ramet.core.errors import ModelFailed
from ramet.models.call import Bound, bind, complete, stream_reply
from ramet.models.providers.payloads import LONG
from tests.support.providers import Provider, provider

CLIENTS = ("openai", "openai-responses", "anthropic")


@tool
def look(path: str) -> str:
    """Look at a file."""
    return path


def conversation(length: int) -> list[BaseMessage]:
    """A conversation of at least so many messages, with calls of a tool."""
    said: list[BaseMessage] = [SystemMessage("be brief")]
    while len(said) < length:
        number = len(said)
        said += [
            HumanMessage(f"question {number}"),
            AIMessage("", tool_calls=[{"name": "look", "args": {"path": f"a/{number}"}, "id": f"call-{number}"}]),
            ToolMessage("found", tool_call_id=f"call-{number}"),
            AIMessage(f"answer {number}"),
        ]
    return [*said, HumanMessage("and now?")]


def client(server: Provider, name: str, **options: Any) -> BaseChatModel:
    """The real client of that name."""
    if name == "anthropic":
        return server.anthropic(**options)
    return server.openai(use_responses_api=name != "openai", **options)


async def say(bound: Bound, messages: list[BaseMessage], *, streams: bool, max_tokens: int | None = None) -> str:
    """What a model answers."""
    if not streams:
        return (await complete(bound, messages, max_tokens=max_tokens)).text
    return "".join([chunk.text async for chunk in stream_reply(bound, messages, max_tokens=max_tokens)])


@pytest.fixture
def encoders(monkeypatch: pytest.MonkeyPatch) -> list[threading.Thread]:
    """The thread of each encoding of a payload by LangChain."""
    from langchain_anthropic import ChatAnthropic
    from langchain_openai.chat_models.base import BaseChatOpenAI

    seen: list[threading.Thread] = []
    for cls in (ChatAnthropic, BaseChatOpenAI):
        encode = cls._get_request_payload

        def noted(self: Any, *args: Any, encode: Any = encode, **kwargs: Any) -> Any:
            seen.append(threading.current_thread())
            return encode(self, *args, **kwargs)

        noted.__module__ = encode.__module__
        monkeypatch.setattr(cls, "_get_request_payload", noted)
    return seen


@pytest.fixture
def transformed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many messages each request had that OpenAI's SDK looked through."""
    from openai.resources.chat.completions import completions
    from openai.resources.responses import responses

    seen: list[int] = []
    for module in (completions, responses):
        transform = module.async_maybe_transform

        async def noted(data: Any, kind: Any, transform: Any = transform) -> Any:
            seen.append(len(data.get("messages") or data.get("input") or ()))
            return await transform(data, kind)

        monkeypatch.setattr(module, "async_maybe_transform", noted)
    return seen


@pytest.mark.parametrize("streams", [True, False], ids=["streamed", "whole"])
@pytest.mark.parametrize("name", CLIENTS)
async def test_a_long_conversation_is_sent_as_the_client_itself_would_send_it(name: str, streams: bool) -> None:
    """The same JSON at the first request, when nothing is known of the client yet, and at later ones."""
    messages = conversation(LONG)
    async with provider({"and now?": ["a"] * 4}) as server:
        model = client(server, name)
        shown = model.bind_tools([look])
        if streams:
            options: Any = {"stream_usage": True} if name == "openai" else {}
            assert [chunk async for chunk in shown.astream(messages, **options)]
        else:
            await shown.ainvoke(messages)
        bound = bind(model, [look])
        for _ in range(3):
            assert await say(bound, messages, streams=streams) == "a"

        assert len(server.bodies) == 4
        assert all(body == server.bodies[0] for body in server.bodies)
        assert len(server.bodies[0].get("messages") or server.bodies[0]["input"]) >= LONG


@pytest.mark.parametrize("streams", [True, False], ids=["streamed", "whole"])
@pytest.mark.parametrize("name", CLIENTS)
async def test_a_long_conversation_is_encoded_beside_the_event_loop(
    name: str, streams: bool, encoders: list[threading.Thread], transformed: list[int]
) -> None:
    """Once for each request, in another thread from the second request on; OpenAI's SDK never sees its messages."""
    messages = conversation(LONG)
    async with provider({"and now?": ["a"] * 4}) as server:
        bound = bind(client(server, name), [look])
        for max_tokens in (100, 200, 300, None):
            await say(bound, messages, streams=streams, max_tokens=max_tokens)

    first, second, third, other = encoders
    assert first is threading.current_thread()
    assert threading.current_thread() not in (second, third)
    assert other is threading.current_thread(), "a request of another kind"
    assert transformed == ([] if name == "anthropic" else [0] * 4)


async def test_a_short_conversation_is_left_to_the_client(
    encoders: list[threading.Thread], transformed: list[int]
) -> None:
    """A thread would take longer."""
    async with provider({"and now?": ["a"] * 2}) as server:
        bound = bind(server.openai())
        for _ in range(2):
            await say(bound, conversation(4), streams=True)

    assert encoders == [threading.current_thread()] * 2
    assert transformed == [6] * 2


async def test_who_listens_sees_the_messages_and_their_request_is_not_looked_through_either(
    transformed: list[int],
) -> None:
    """LangChain's callbacks take the public way, where a request may be changed before it is encoded."""
    heard: list[int] = []

    class Listener(AsyncCallbackHandler):
        async def on_chat_model_start(self, serialized: Any, messages: list[list[BaseMessage]], **_: Any) -> None:
            heard.append(len(messages[0]))

    messages = conversation(LONG)
    async with provider({"and now?": ["a"]}) as server:
        assert await say(bind(server.openai(callbacks=[Listener()])), messages, streams=True) == "a"
        assert len(server.bodies[0]["messages"]) == len(messages)

    assert heard == [len(messages)]
    assert transformed == [0]


async def test_a_body_of_the_owners_own_is_sent_as_well() -> None:
    """What is in `extra_body` already stays there, and goes before."""
    own = [{"role": "user", "content": "and now?"}]
    async with provider({"and now?": ["a"] * 2}) as server:
        for extra in ({"top_k": 3}, {"messages": own}):
            await say(bind(server.openai(extra_body=extra)), conversation(LONG), streams=True)

    assert server.bodies[0]["top_k"] == 3
    assert len(server.bodies[0]["messages"]) > LONG
    assert server.bodies[1]["messages"] == own


async def test_what_cannot_be_encoded_fails_as_in_a_short_conversation() -> None:
    """With the client's own words, before anything is sent, also once it was encoded in a thread."""
    messages = conversation(LONG)
    async with provider({"and now?": ["a"]}) as server:
        bound = bind(server.openai())
        await say(bound, messages, streams=True)

        class Strange(BaseMessage):
            type: Any = "strange"

        refused, before = [], list[list[BaseMessage]]([[], messages])
        for said in before:
            with pytest.raises((ModelFailed, TypeError)) as failed:
                await say(bound, [*said, Strange(content="x")], streams=True)
            refused.append((type(failed.value), str(failed.value)))

        assert refused[0] == refused[1]
        assert server.count == 1
