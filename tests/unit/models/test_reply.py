"""One request to a model: callbacks, limits and errors."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from langchain_core.caches import InMemoryCache
from langchain_core.callbacks import AsyncCallbackHandler, get_usage_metadata_callback
from langchain_core.globals import set_llm_cache
from langchain_core.language_models import BaseChatModel, FakeListChatModel, GenericFakeChatModel, LanguageModelInput
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage
from langchain_core.outputs import ChatGenerationChunk, ChatResult, LLMResult
from langchain_core.rate_limiters import BaseRateLimiter
from langchain_core.runnables import Runnable, RunnableLambda
from langchain_core.tools import tool

from ramet.core.errors import Denied, InvalidValue, ModelFailed
from ramet.models.call import bind, can_stream, complete, merge, output_limit, stream_reply
from ramet.models.scripted.model import Fail, ScriptedModel
from tests.support.plain_models import Async, Plain, Streaming

HI: list[BaseMessage] = [HumanMessage("hi")]


@tool
def grep(pattern: str) -> str:
    """Search."""
    return pattern


async def stream(model: BaseChatModel) -> AIMessage:
    return merge([chunk async for chunk in stream_reply(model, HI)])


class Listener(AsyncCallbackHandler):
    """Callback that keeps the text of every reply."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    async def on_llm_end(self, response: LLMResult, **kwargs: Any) -> None:
        self.texts.append(response.generations[0][0].text)


@pytest.fixture
def global_cache() -> Iterator[None]:
    set_llm_cache(InMemoryCache())
    yield
    set_llm_cache(None)


async def test_a_model_that_can_only_generate_is_asked() -> None:
    """The simplest model works, in a thread where it is synchronous."""
    for model in (Plain(), Async()):
        assert (await complete(model, HI)).content == "plain"
        assert not can_stream(model)


async def test_a_stream_keeps_the_metadata_of_its_chunks() -> None:
    """Generation info of the chunks is metadata of the reply, as with LangChain's own `astream`."""
    reply = await stream(Streaming())

    assert reply.content == "in pieces"
    assert reply.response_metadata["finish_reason"].startswith("stop")


async def test_callbacks_of_the_model_see_each_reply() -> None:
    """A callback on the model is called, with a streamed reply and with a whole one."""
    listener = Listener()

    await complete(Async(callbacks=[listener]), HI)
    await stream(Streaming(callbacks=[listener]))

    assert listener.texts == ["plain", "in pieces"]


async def test_callbacks_around_the_call_see_the_reply() -> None:
    """The callbacks of a chain see a session that runs inside it."""
    listener = Listener()

    async def step(_: object) -> str:
        return str((await complete(Async(), HI)).content)

    await RunnableLambda(step).ainvoke("x", config={"callbacks": [listener]})

    assert listener.texts == ["plain"]


async def test_context_callbacks_count_usage() -> None:
    """LangChain's usage callback works around our calls."""
    with get_usage_metadata_callback() as usage:
        await complete(ScriptedModel(["hello"]), HI)

    assert usage.usage_metadata["scripted"]["output_tokens"] > 0


async def test_the_global_cache_answers_the_second_request(global_cache: None) -> None:
    """A cache that a user switched on is used."""
    model = Async()

    await complete(model, HI)
    await complete(model, HI)

    assert len(model.request_arguments) == 1


async def test_a_rate_limiter_is_asked_first() -> None:
    """A rate limiter on the model limits us, too."""

    class Limiter(BaseRateLimiter):
        passed = 0

        def acquire(self, *, blocking: bool = True) -> bool:
            return True

        async def aacquire(self, *, blocking: bool = True) -> bool:
            self.passed += 1
            return True

    limiter = Limiter()

    await complete(Async(rate_limiter=limiter), HI)
    await stream(Streaming(rate_limiter=limiter))

    assert limiter.passed == 2


async def test_an_overridden_public_method_is_called() -> None:
    """A model that overrides `ainvoke` expects calls of it."""

    class Wrapper(Async):
        async def ainvoke(self, input: LanguageModelInput, *args: Any, **kwargs: Any) -> AIMessage:
            return AIMessage("wrapped")

    assert (await complete(Wrapper(), HI)).content == "wrapped"


async def test_fakes_of_langchain_are_not_streamed() -> None:
    """LangChain's fakes lose tool calls when they stream."""
    call = AIMessage("", tool_calls=[{"name": "grep", "args": {"pattern": "x"}, "id": "1"}])
    fake = GenericFakeChatModel(messages=iter([call]))

    reply = await complete(bind(fake, [grep]), HI)

    assert not can_stream(fake)
    assert not can_stream(FakeListChatModel(responses=["a"]))
    assert reply.tool_calls[0]["name"] == "grep"


@pytest.mark.parametrize("off", [{"disable_streaming": True}, {"disable_streaming": "tool_calling"}])
def test_streaming_stays_off_where_it_was_switched_off(off: dict[str, Any]) -> None:
    """The owner decides with `disable_streaming`."""
    assert can_stream(Streaming())
    assert not can_stream(Streaming(**off))
    assert not can_stream(ScriptedModel(["x"], streaming=False))


async def test_a_model_without_bind_tools_is_asked_without_tools() -> None:
    """The model can still answer; the binding says that no tools were offered."""
    bound_model = bind(Async(), [grep])

    assert not bound_model.has_tools
    assert (await complete(bound_model, HI)).content == "plain"


async def test_a_model_may_answer_bind_tools_with_itself() -> None:
    """Fakes that are written by hand do so."""

    class Same(Async):
        def bind_tools(self, tools: Any, **kwargs: Any) -> Runnable[LanguageModelInput, AIMessage]:
            return self

    bound_model = bind(Same(), [grep])

    assert bound_model.has_tools
    assert (await complete(bound_model, HI)).content == "plain"


async def test_bind_tools_may_return_any_runnable() -> None:
    """The runnable is asked, streamed or not."""

    class Odd(Streaming):
        def bind_tools(self, tools: Any, **kwargs: Any) -> Runnable[LanguageModelInput, AIMessage]:
            return self | RunnableLambda(lambda reply: AIMessage(f"odd {reply.content}"))

    bound_model = bind(Odd(), [grep])

    assert (await complete(bound_model, HI)).content == "odd plain"
    assert merge([chunk async for chunk in stream_reply(bound_model, HI)]).content == "odd in pieces"


async def test_an_answer_that_is_no_message_is_a_failure() -> None:
    """Text in place of a message is not returned."""

    class Text(Async):
        def bind_tools(self, tools: Any, **kwargs: Any) -> Runnable[LanguageModelInput, AIMessage]:
            return self | RunnableLambda(lambda reply: reply.content)

    with pytest.raises(ModelFailed, match="not an AIMessage"):
        await complete(bind(Text(), [grep]), HI)


class Capped(Async):
    max_tokens: int | None = 50


class CappedByField(Async):
    max_output_tokens: int | None = None


async def test_a_limit_of_output_never_raises_the_models_own() -> None:
    """The lower of both counts, and a model without such a field is left alone."""
    capped, free = Capped(), Async()

    await complete(capped, HI, max_tokens=20)
    await complete(capped, HI, max_tokens=1_000)
    await complete(free, HI, max_tokens=20)

    assert capped.request_arguments == [{"max_tokens": 20}, {}]
    assert free.request_arguments == [{}]
    assert (output_limit(capped), output_limit(free)) == (50, None)


async def test_a_limit_that_is_a_field_is_set_on_a_copy() -> None:
    """Models that take no such keyword are copied with it, and never changed."""
    caps: list[int | None] = []

    class Seen(CappedByField):
        async def _agenerate(self, *args: Any, **kwargs: Any) -> ChatResult:
            caps.append(self.max_output_tokens)
            return await super()._agenerate(*args, **kwargs)

    model = Seen()
    await complete(model, HI, max_tokens=20)

    assert caps == [20]
    assert model.max_output_tokens is None


async def test_a_limit_below_one_is_refused() -> None:
    """A reply has one token at least."""
    with pytest.raises(InvalidValue, match="max_tokens"):
        await complete(Capped(), HI, max_tokens=0)


async def test_an_error_of_the_models_code_is_not_retryable() -> None:
    """The failure says what went wrong, and keeps the cause."""

    class Broken(Async):
        async def _agenerate(self, *args: Any, **kwargs: Any) -> ChatResult:
            raise KeyError("choices")

    with pytest.raises(ModelFailed, match="KeyError: 'choices'") as failure:
        await complete(Broken(), HI)

    assert not failure.value.retryable
    assert isinstance(failure.value.__cause__, KeyError)


async def test_our_own_refusals_are_raised_unchanged() -> None:
    """A gateway behind the model may refuse: that is no failure of a provider."""
    with pytest.raises(Denied):
        await complete(ScriptedModel([Fail(Denied("a call", "no"))]), HI)


async def test_a_suppressed_cancellation_is_found() -> None:
    """`asyncio.wait_for` of Python 3.11 may return its result to a cancelled task, which then continues."""
    request_seen, may_answer = asyncio.Event(), asyncio.Event()

    class Deaf(Streaming):
        async def _deafly(self) -> None:
            request_seen.set()
            with contextlib.suppress(asyncio.CancelledError):
                await may_answer.wait()

        async def _agenerate(self, *args: Any, **kwargs: Any) -> ChatResult:
            await self._deafly()
            return await super()._agenerate(*args, **kwargs)

        async def _astream(self, *args: Any, **kwargs: Any) -> AsyncIterator[ChatGenerationChunk]:
            await self._deafly()
            async for chunk in super()._astream(*args, **kwargs):
                yield chunk

    for request in (complete(Deaf(), HI), stream(Deaf())):
        request_seen.clear()
        asking = asyncio.ensure_future(request)
        await request_seen.wait()
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
