"""Requests over HTTP: their failures, and that a broken one never counts as a reply."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable
from typing import Protocol

import pytest
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage
from langchain_core.tools import tool

from ramet.core.errors import ModelFailed
from ramet.models.call import Bound, bind, complete, merge, stream_reply
from ramet.models.errors import is_overflow
from ramet.models.scripted.model import Call, Hang
from tests.support.providers import Endless, Fail, IncompleteStream, StreamError, provider

HI: list[BaseMessage] = [HumanMessage("hi")]


@tool
def grep(pattern: str) -> str:
    """Search."""
    return pattern


class ReplyFunction(Protocol):
    """Way of requesting a reply."""

    __name__: str

    def __call__(self, model: BaseChatModel | Bound) -> Awaitable[AIMessage]: ...


async def whole_reply(model: BaseChatModel | Bound) -> AIMessage:
    return await complete(model, HI)


async def streamed_reply(model: BaseChatModel | Bound) -> AIMessage:
    return merge([chunk async for chunk in stream_reply(model, HI)])


@pytest.mark.parametrize("kind", ["anthropic", "openai"])
async def test_a_stream_that_ends_normally_but_too_early_is_a_failure(kind: str) -> None:
    """The SDKs take the end of the connection for the end of the reply: we do not."""
    async with provider([IncompleteStream(after_chars=10)]) as server:
        with pytest.raises(ModelFailed, match="before the reply was complete") as failure:
            await streamed_reply(getattr(server, kind)(max_retries=0))

    assert failure.value.retryable


@pytest.mark.parametrize("kind", ["anthropic", "openai"])
@pytest.mark.parametrize(("error", "retryable"), [("overloaded_error", True), ("invalid_request_error", False)])
async def test_an_error_in_mid_stream_is_read_from_its_body(kind: str, error: str, retryable: bool) -> None:
    """The status was 200 long before, and means nothing."""
    async with provider([StreamError(after_chars=10, error=error)]) as server:
        with pytest.raises(ModelFailed) as failure:
            await streamed_reply(getattr(server, kind)(max_retries=0))

    assert failure.value.retryable is retryable
    assert failure.value.status != 200


@pytest.mark.parametrize("kind", ["anthropic", "openai"])
async def test_tool_arguments_above_the_limit_are_a_failure(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model that writes arguments without end is stopped, streamed or not; asking again would not help."""
    monkeypatch.setattr("ramet.models.chunks.MAX_ARGUMENT_BYTES", 10_000)
    async with provider([Call("grep", {"pattern": "x" * 20_000})] * 2) as server:
        bound_model = bind(getattr(server, kind)(max_retries=0), [grep])
        for reply in (whole_reply(bound_model), streamed_reply(bound_model)):
            with pytest.raises(ModelFailed, match="arguments") as failure:
                await reply
            assert not failure.value.retryable


@pytest.mark.parametrize("kind", ["anthropic", "openai"])
async def test_a_reply_without_end_is_a_failure(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A provider that ignores the limit of its output fills no memory: its connection is closed."""
    monkeypatch.setattr("ramet.models.chunks.MAX_REPLY_SIZE", 20_000)
    async with provider([Endless(), "x" * 20_000]) as server:
        for streams in (True, False):
            model = getattr(server, kind)(max_retries=0)
            with pytest.raises(ModelFailed, match="over 20,000 characters") as failure:
                await (streamed_reply if streams else whole_reply)(model)
            assert not failure.value.retryable
            await server.client_left.wait()


@pytest.mark.parametrize("kind", ["anthropic", "openai"])
async def test_the_connection_is_closed_when_the_reader_is_cancelled(kind: str) -> None:
    """The provider sees that nobody reads any more, and stops billing."""
    async with provider([Hang(after_chars=10)]) as server:
        stream = stream_reply(getattr(server, kind)(max_retries=0), HI)
        async with contextlib.aclosing(stream):
            await anext(stream)
        await server.client_left.wait()


async def test_openai_is_asked_for_usage_at_every_address() -> None:
    """ChatOpenAI omits usage for other addresses than OpenAI's; a budget needs it, except where it was switched off."""
    async with provider(["a", "b"]) as server:
        counted_reply = await streamed_reply(server.openai())
        uncounted = await streamed_reply(server.openai(stream_usage=False))

        assert counted_reply.usage_metadata is not None
        assert uncounted.usage_metadata is None
        assert [body.get("stream_options") for body in server.bodies] == [{"include_usage": True}, None]


@pytest.mark.parametrize("kind", ["anthropic", "openai"])
async def test_a_request_that_is_too_long_differs_from_a_wrong_one(kind: str) -> None:
    """Compaction helps only with the first."""
    async with provider([Fail("prompt is too long: 1000001 tokens"), Fail("no such field")]) as server:
        model = getattr(server, kind)(max_retries=0)
        failures = []
        for _ in range(2):
            with pytest.raises(ModelFailed) as failure:
                await whole_reply(model)
            failures.append(failure.value)

    assert [is_overflow(failure) for failure in failures] == [True, False]
    assert not any(failure.retryable for failure in failures)


@pytest.mark.parametrize("read_reply", [whole_reply, streamed_reply])
async def test_a_refused_connection_is_a_failure_that_may_pass(read_reply: ReplyFunction) -> None:
    """A refused connection is worth another try."""
    async with provider([]) as server:
        nowhere = f"http://127.0.0.1:1/{read_reply.__name__}"  # the SDKs cache clients by address, closed ones included
        models = [server.anthropic(max_retries=0, base_url=nowhere), server.openai(max_retries=0, base_url=nowhere)]
        for model in models:
            with pytest.raises(ModelFailed) as failure:
                await read_reply(model)
            assert (failure.value.status, failure.value.retryable) == (None, True)
