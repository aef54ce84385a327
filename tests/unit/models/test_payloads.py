"""Payloads of long conversations with the real clients: encoded off the event loop, and the same JSON."""

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
    """Return a conversation of at least this many messages, with calls of a tool."""
    messages: list[BaseMessage] = [SystemMessage("be brief")]
    while len(messages) < length:
        number = len(messages)
        messages += [
            HumanMessage(f"question {number}"),
            AIMessage("", tool_calls=[{"name": "look", "args": {"path": f"a/{number}"}, "id": f"call-{number}"}]),
            ToolMessage("found", tool_call_id=f"call-{number}"),
            AIMessage(f"answer {number}"),
        ]
    return [*messages, HumanMessage("and now?")]


def client(server: Provider, name: str, **options: Any) -> BaseChatModel:
    """Return the real client of that name."""
    if name == "anthropic":
        return server.anthropic(**options)
    return server.openai(use_responses_api=name != "openai", **options)


async def say(bound_model: Bound, messages: list[BaseMessage], *, streams: bool, max_tokens: int | None = None) -> str:
    """Return the answer of a model."""
    if not streams:
        return (await complete(bound_model, messages, max_tokens=max_tokens)).text
    return "".join([chunk.text async for chunk in stream_reply(bound_model, messages, max_tokens=max_tokens)])


@pytest.fixture
def encoders(monkeypatch: pytest.MonkeyPatch) -> list[threading.Thread]:
    """Record the thread of each encoding of a payload by LangChain."""
    from langchain_anthropic import ChatAnthropic
    from langchain_openai.chat_models.base import BaseChatOpenAI

    threads: list[threading.Thread] = []
    for cls in (ChatAnthropic, BaseChatOpenAI):
        encode = cls._get_request_payload

        def noted(self: Any, *args: Any, encode: Any = encode, **kwargs: Any) -> Any:
            threads.append(threading.current_thread())
            return encode(self, *args, **kwargs)

        noted.__module__ = encode.__module__
        monkeypatch.setattr(cls, "_get_request_payload", noted)
    return threads


@pytest.fixture
def transformed_lengths(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Record the number of messages that the SDK of OpenAI transforms in each request."""
    from openai.resources.chat.completions import completions
    from openai.resources.responses import responses

    counts: list[int] = []
    for module in (completions, responses):
        transform = module.async_maybe_transform

        async def noted(data: Any, kind: Any, transform: Any = transform) -> Any:
            counts.append(len(data.get("messages") or data.get("input") or ()))
            return await transform(data, kind)

        monkeypatch.setattr(module, "async_maybe_transform", noted)
    return counts


@pytest.mark.parametrize("streams", [True, False], ids=["streamed", "whole"])
@pytest.mark.parametrize("name", CLIENTS)
async def test_a_long_conversation_is_sent_as_by_the_client_itself(name: str, streams: bool) -> None:
    """The first request, when nothing is known of the client, and later ones have the same JSON."""
    messages = conversation(LONG)
    async with provider({"and now?": ["a"] * 4}) as server:
        model = client(server, name)
        bound_tools = model.bind_tools([look])
        if streams:
            options: Any = {"stream_usage": True} if name == "openai" else {}
            assert [chunk async for chunk in bound_tools.astream(messages, **options)]
        else:
            await bound_tools.ainvoke(messages)
        bound_model = bind(model, [look])
        for _ in range(3):
            assert await say(bound_model, messages, streams=streams) == "a"

        assert len(server.bodies) == 4
        assert all(body == server.bodies[0] for body in server.bodies)
        assert len(server.bodies[0].get("messages") or server.bodies[0]["input"]) >= LONG


@pytest.mark.parametrize("streams", [True, False], ids=["streamed", "whole"])
@pytest.mark.parametrize("name", CLIENTS)
async def test_a_long_conversation_is_encoded_off_the_event_loop(
    name: str, streams: bool, encoders: list[threading.Thread], transformed_lengths: list[int]
) -> None:
    """Each request is encoded once, from the second on in a thread; the SDK of OpenAI never sees its messages."""
    messages = conversation(LONG)
    async with provider({"and now?": ["a"] * 4}) as server:
        bound_model = bind(client(server, name), [look])
        for max_tokens in (100, 200, 300, None):
            await say(bound_model, messages, streams=streams, max_tokens=max_tokens)

    first, second, third, other = encoders
    assert first is threading.current_thread()
    assert threading.current_thread() not in (second, third)
    assert other is threading.current_thread(), "a request of another kind"
    assert transformed_lengths == ([] if name == "anthropic" else [0] * 4)


async def test_a_short_conversation_is_left_to_the_client(
    encoders: list[threading.Thread], transformed_lengths: list[int]
) -> None:
    """A thread would take longer."""
    async with provider({"and now?": ["a"] * 2}) as server:
        bound_model = bind(server.openai())
        for _ in range(2):
            await say(bound_model, conversation(4), streams=True)

    assert encoders == [threading.current_thread()] * 2
    assert transformed_lengths == [6] * 2


async def test_callbacks_see_the_messages_of_a_long_conversation(
    transformed_lengths: list[int],
) -> None:
    """Callbacks take the public way; the SDK of OpenAI does not see the messages there either."""
    counts: list[int] = []

    class Listener(AsyncCallbackHandler):
        async def on_chat_model_start(self, serialized: Any, messages: list[list[BaseMessage]], **_: Any) -> None:
            counts.append(len(messages[0]))

    messages = conversation(LONG)
    async with provider({"and now?": ["a"]}) as server:
        assert await say(bind(server.openai(callbacks=[Listener()])), messages, streams=True) == "a"
        assert len(server.bodies[0]["messages"]) == len(messages)

    assert counts == [len(messages)]
    assert transformed_lengths == [0]


async def test_the_extra_body_of_the_owner_is_sent() -> None:
    """Keys that are in `extra_body` already stay there, and go before ours."""
    own_messages = [{"role": "user", "content": "and now?"}]
    async with provider({"and now?": ["a"] * 2}) as server:
        for extra in ({"top_k": 3}, {"messages": own_messages}):
            await say(bind(server.openai(extra_body=extra)), conversation(LONG), streams=True)

    assert server.bodies[0]["top_k"] == 3
    assert len(server.bodies[0]["messages"]) > LONG
    assert server.bodies[1]["messages"] == own_messages


async def test_a_message_that_cannot_be_encoded_fails_as_in_a_short_conversation() -> None:
    """The client's own error comes before anything is sent, also after an encoding in a thread."""
    messages = conversation(LONG)
    async with provider({"and now?": ["a"]}) as server:
        bound_model = bind(server.openai())
        await say(bound_model, messages, streams=True)

        class Strange(BaseMessage):
            type: Any = "strange"

        failures, before = [], list[list[BaseMessage]]([[], messages])
        for messages_before in before:
            with pytest.raises((ModelFailed, TypeError)) as failure:
                await say(bound_model, [*messages_before, Strange(content="x")], streams=True)
            failures.append((type(failure.value), str(failure.value)))

        assert failures[0] == failures[1]
        assert server.count == 1
