"""Each model keeps the same promises: the scripted one, and the real clients of three providers over HTTP."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Any, NamedTuple

import pytest
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.messages.ai import UsageMetadata
from langchain_core.tools import BaseTool, tool

from ramet.core.errors import ModelFailed
from ramet.models.call import Bound, bind, complete, merge, stream_reply
from ramet.models.retries import no_retries_value
from ramet.models.scripted.model import Call, Cut, Fail, Hang, Say, Script, ScriptedModel
from tests.support.providers import provider

ASKED: list[BaseMessage] = [SystemMessage("You are careful."), HumanMessage("What failed?")]


@tool
def grep(pattern: str, path: str = ".") -> str:
    """Search files for a pattern."""
    return f"{path}: {pattern}"


@tool
def read(path: str) -> str:
    """Read a file."""
    return path


class Case(NamedTuple):
    """Model that plays a script, with what it knows of the requests that reached it."""

    model: BaseChatModel
    requests: Callable[[], int]
    tools_seen: Callable[[], list[str]]  #: names of the tools in the latest request
    max_tokens_seen: Callable[[], int | None]


Play = Callable[[Script], contextlib.AbstractAsyncContextManager[Case]]


@contextlib.asynccontextmanager
async def scripted(script: Script) -> AsyncIterator[Case]:
    model = ScriptedModel(script)
    yield Case(
        model,
        lambda: len(model.requests),
        lambda: list(model.requests[-1].tools),
        lambda: model.requests[-1].max_tokens,
    )


@contextlib.asynccontextmanager
async def anthropic(script: Script, **fields: Any) -> AsyncIterator[Case]:
    async with provider(script) as server:
        yield Case(
            server.anthropic(max_retries=0, **fields),
            lambda: server.count,
            lambda: [tool["name"] for tool in server.bodies[-1].get("tools", [])],
            lambda: server.bodies[-1].get("max_tokens"),
        )


@contextlib.asynccontextmanager
async def openai(script: Script, **fields: Any) -> AsyncIterator[Case]:
    async with provider(script) as server:
        yield Case(
            server.openai(max_retries=0, **fields),
            lambda: server.count,
            lambda: [tool["function"]["name"] for tool in server.bodies[-1].get("tools", [])],
            lambda: server.bodies[-1].get("max_completion_tokens"),
        )


@contextlib.asynccontextmanager
async def gemini(script: Script) -> AsyncIterator[Case]:
    google = pytest.importorskip("langchain_google_genai", reason="the extra ramet[google] is not installed")
    async with provider(script) as server:
        model = google.ChatGoogleGenerativeAI(
            model="gemini-3-pro",
            base_url=server.url,
            api_key="test",
            max_retries=no_retries_value(google.ChatGoogleGenerativeAI),
        )
        try:
            yield Case(
                model,
                lambda: server.count,
                lambda: [each["name"] for tool in server.bodies[-1]["tools"] for each in tool["functionDeclarations"]],
                lambda: server.bodies[-1]["generationConfig"].get("maxOutputTokens"),
            )
        finally:
            await model.client.aio.aclose()


# With a callback on the model, requests go LangChain's public way instead of straight to the model.
PLAYS: dict[str, Play] = {
    "scripted": scripted,
    "anthropic": anthropic,
    "openai": openai,
    "gemini": gemini,
    "anthropic heard": partial(anthropic, callbacks=[BaseCallbackHandler()]),
    "openai heard": partial(openai, callbacks=[BaseCallbackHandler()]),
}


@pytest.fixture(params=PLAYS)
def play(request: pytest.FixtureRequest) -> Play:
    """Way to play a script: by the scripted model, or over HTTP to a real client."""
    return PLAYS[request.param]


Asking = Callable[..., "asyncio.Future[AIMessage]"]


async def streamed(
    bound: Bound | BaseChatModel, messages: list[BaseMessage] = ASKED, max_tokens: int | None = None
) -> AIMessage:
    """Return the reply to a streaming request."""
    return merge([chunk async for chunk in stream_reply(bound, messages, max_tokens=max_tokens)])


async def whole(
    bound: Bound | BaseChatModel, messages: list[BaseMessage] = ASKED, max_tokens: int | None = None
) -> AIMessage:
    """Return the reply to a request without streaming."""
    return await complete(bound, messages, max_tokens=max_tokens)


both_ways = pytest.mark.parametrize("reply_of", [streamed, whole])


async def test_text_arrives_in_pieces_that_make_up_the_whole(play: Play) -> None:
    """A stream has more than one piece, and its text is neither cut nor doubled."""
    async with play(["The payment service ran out of connections."]) as case:
        chunks = [chunk async for chunk in stream_reply(case.model, ASKED)]

    texts = [str(chunk.text) for chunk in chunks if chunk.text]
    assert len(texts) > 1
    assert "".join(texts) == "The payment service ran out of connections."
    assert all(isinstance(chunk, AIMessageChunk) for chunk in chunks)
    reply = merge(chunks)
    assert type(reply) is AIMessage
    assert str(reply.text) == "The payment service ran out of connections."


@both_ways
async def test_a_tool_call_arrives_with_its_arguments(play: Play, reply_of: Asking) -> None:
    """Name, arguments and id of a call are those that the model sent."""
    async with play([Call("grep", {"pattern": "ERROR", "path": "logs"}, id="call_7")]) as case:
        reply = await reply_of(bind(case.model, [grep]))

    assert [(call["name"], call["args"], call["id"]) for call in reply.tool_calls] == [
        ("grep", {"pattern": "ERROR", "path": "logs"}, "call_7")
    ]
    assert reply.invalid_tool_calls == []


@both_ways
async def test_calls_of_one_reply_keep_their_order(play: Play, reply_of: Asking) -> None:
    """Two calls of a reply arrive as two calls, in order."""
    calls = [Call("read", {"path": "a"}, id="call_a"), Call("read", {"path": "b"}, id="call_b")]
    async with play([calls]) as case:
        reply = await reply_of(bind(case.model, [read]))

    assert [(call["id"], call["args"]) for call in reply.tool_calls] == [
        ("call_a", {"path": "a"}),
        ("call_b", {"path": "b"}),
    ]


async def test_arguments_that_are_no_json_make_an_invalid_call(play: Play) -> None:
    """Arguments that were cut off are never used as if they were whole. Those of Gemini are objects, not text."""
    if play is gemini:
        return
    cut_short = AIMessage(
        "",
        invalid_tool_calls=[
            {"type": "invalid_tool_call", "name": "read", "args": '{"path": "/var/lo', "id": "c1", "error": None}
        ],
    )
    async with play([cut_short]) as case:
        reply = await streamed(bind(case.model, [read]))

    assert reply.tool_calls == []
    assert [(call["name"], call["args"], call["id"]) for call in reply.invalid_tool_calls] == [
        ("read", '{"path": "/var/lo', "c1")
    ]


@both_ways
async def test_usage_is_as_the_provider_reported(play: Play, reply_of: Asking) -> None:
    """Input, output and cached tokens are in the usage of the reply."""
    used = UsageMetadata(input_tokens=120, output_tokens=30, total_tokens=150, input_token_details={"cache_read": 100})
    async with play([Say("Done.", usage=used)]) as case:
        reply = await reply_of(case.model)

    assert reply.usage_metadata is not None
    assert reply.usage_metadata["input_tokens"] == 120
    assert reply.usage_metadata["output_tokens"] == 30
    assert reply.usage_metadata["total_tokens"] == 150
    assert reply.usage_metadata["input_token_details"]["cache_read"] == 100


@both_ways
async def test_the_model_sees_its_bound_tools(play: Play, reply_of: Asking) -> None:
    """Both tools are in the request, and the binding shows that tools were offered."""
    tools: list[BaseTool] = [grep, read]
    async with play(["Nothing to do."]) as case:
        bound = bind(case.model, tools)
        await reply_of(bound)

        assert bound.has_tools
        assert case.tools_seen() == ["grep", "read"]


@both_ways
async def test_the_cap_on_the_output_is_in_the_request(play: Play, reply_of: Asking) -> None:
    """`max_tokens` is in the request, and the tools stay in it."""
    async with play(["Short."]) as case:
        await reply_of(bind(case.model, [grep]), max_tokens=77)

        assert case.max_tokens_seen() == 77
        assert case.tools_seen() == ["grep"]


@both_ways
async def test_an_answered_call_can_be_in_the_next_request(play: Play, reply_of: Asking) -> None:
    """A reply with a tool's result is accepted as the history of the next request."""
    async with play([Call("grep", {"pattern": "x"}, id="call_1"), "Found."]) as case:
        bound = bind(case.model, [grep])
        first = await reply_of(bound)
        second = await reply_of(bound, [*ASKED, first, ToolMessage("logs:3", tool_call_id="call_1")])

    assert str(second.text) == "Found."


@both_ways
@pytest.mark.parametrize(
    ("status", "retryable"),
    [(400, False), (401, False), (403, False), (404, False), (500, True), (503, True), (529, True)],
)
async def test_a_refusal_has_its_status_and_whether_to_retry(
    play: Play, reply_of: Asking, status: int, retryable: bool
) -> None:
    """Overload and server errors may be retried; a bad request or key may not. The client itself retries nothing."""
    async with play([Fail(status), "Should not be reached."]) as case:
        with pytest.raises(ModelFailed) as failure:
            await reply_of(case.model)

        assert (failure.value.status, failure.value.retryable) == (status, retryable)
        assert case.requests() == 1


@both_ways
async def test_a_429_tells_how_long_to_wait(play: Play, reply_of: Asking) -> None:
    """Retry-After is in the error of the model."""
    async with play([Fail(429, retry_after_s=7)]) as case:
        with pytest.raises(ModelFailed) as failure:
            await reply_of(case.model)

    assert (failure.value.status, failure.value.retryable, failure.value.retry_after_s) == (429, True, 7)


@both_ways
async def test_a_cut_reply_is_a_failure_that_may_be_retried(play: Play, reply_of: Asking) -> None:
    """Text before the cut is never used as the reply."""
    async with play([Cut(after_chars=10)]) as case:
        with pytest.raises(ModelFailed) as failure:
            await reply_of(case.model)

    assert failure.value.retryable


async def test_the_text_before_a_cut_is_streamed(play: Play) -> None:
    """A reader receives the text up to the cut, then the failure."""
    seen: list[str] = []

    async def listen(model: BaseChatModel) -> None:
        async for chunk in stream_reply(model, ASKED):
            seen.append(str(chunk.text))

    async with play([Cut(after_chars=10, text="Everything is fine, except")]) as case:
        with pytest.raises(ModelFailed):
            await listen(case.model)

    assert "".join(seen) == "Everything"


async def test_a_cancellation_in_mid_stream_stays_a_cancellation(play: Play) -> None:
    """A cancelled reader gets CancelledError, not a failure of the provider."""
    begun = asyncio.Event()

    async def listen(model: BaseChatModel) -> None:
        async for chunk in stream_reply(model, ASKED):
            if chunk.text:
                begun.set()

    async with play([Hang(after_chars=10)]) as case:
        listening = asyncio.create_task(listen(case.model))
        await begun.wait()
        listening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await listening


async def test_a_reader_who_leaves_early_closes_the_stream(play: Play) -> None:
    """The next request is answered after a reader left in mid-stream."""
    async with play([Hang(after_chars=10), "Still there."]) as case:
        async with contextlib.aclosing(stream_reply(case.model, ASKED)) as chunks:
            async for _ in chunks:
                break

        assert str((await whole(case.model)).text) == "Still there."


async def test_concurrent_requests_each_get_their_own_reply(play: Play) -> None:
    """Twenty concurrent requests each get the reply to their own message."""

    def echo(messages: list[BaseMessage]) -> str:
        return f"You said: {messages[-1].content}"

    async with play(echo) as case:
        replies = await asyncio.gather(*(streamed(case.model, [HumanMessage(f"number {n}")]) for n in range(20)))

        assert [str(reply.text) for reply in replies] == [f"You said: number {n}" for n in range(20)]
        assert case.requests() == 20
