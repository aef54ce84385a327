"""Models with their own retries, which are switched off: the HTTP requests at the server are counted."""

from __future__ import annotations

from typing import Any

import pytest
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import HumanMessage

from ramet.core.errors import ModelFailed
from ramet.models.call import complete, stream_reply
from ramet.models.retries import without_retries
from tests.support.plain_models import Async
from tests.support.providers import Fail, Provider, provider

# The SDKs wait as long as they are told: a millisecond keeps the test from sleeping.
FAILING = [Fail(500, retry_after_s=0.001)] * 20

kinds = pytest.mark.parametrize("kind", ["anthropic", "openai"])


async def requests_of(server: Provider, model: BaseChatModel) -> tuple[int, int]:
    """Return the number of HTTP requests of one call, whole and streamed."""
    before = server.count
    with pytest.raises(ModelFailed):
        await complete(model, [HumanMessage("hi")])
    between = server.count
    with pytest.raises(ModelFailed):
        async for _ in stream_reply(model, [HumanMessage("hi")]):
            pass
    return between - before, server.count - between


@kinds
async def test_a_copy_asks_once_and_the_original_is_not_changed(kind: str) -> None:
    """The user's model still retries for the user with three requests per call; ours makes one."""
    async with provider(FAILING) as server:
        model = getattr(server, kind)()
        copy, copy_count = without_retries(model)
        server.adopt(copy)

        assert copy_count == 1
        assert copy is not model
        assert await requests_of(server, copy) == (1, 1)
        assert await requests_of(server, model) == (3, 3)


@kinds
async def test_a_used_model_is_copied_too(kind: str) -> None:
    """The copy of a model with a client has its own client, over the same connections."""
    async with provider(FAILING) as server:
        model = getattr(server, kind)()
        await requests_of(server, model)

        copy = without_retries(model).model

        assert await requests_of(server, copy) == (1, 1)
        name = "_async_client" if kind == "anthropic" else "root_async_client"
        assert getattr(copy, name)._client is getattr(model, name)._client
        assert getattr(model, name).max_retries == 2
        synchronous = "_client" if kind == "anthropic" else "root_client"
        assert (getattr(copy, synchronous).max_retries, getattr(model, synchronous).max_retries) == (0, 2)


@kinds
def test_a_copy_differs_only_in_its_retries(kind: str) -> None:
    """Model, temperature, callbacks and keys are the user's."""
    settings: dict[str, Any] = {"temperature": 0.5, "max_tokens": 99, "tags": ["a"]}
    model = {"anthropic": anthropic, "openai": openai}[kind](**settings)

    copy = without_retries(model).model

    assert type(copy) is type(model)
    for field in type(model).model_fields:
        if field not in ("max_retries", "client", "async_client", "root_client", "root_async_client"):
            assert getattr(copy, field) == getattr(model, field), field


def anthropic(**fields: Any) -> BaseChatModel:
    from langchain_anthropic import ChatAnthropic

    return ChatAnthropic(**{"model": "claude-sonnet-4-5", "api_key": "k", **fields})


def openai(**fields: Any) -> BaseChatModel:
    from langchain_openai import ChatOpenAI

    return ChatOpenAI(**{"model": "gpt-4o", "api_key": "k", **fields})


@pytest.mark.parametrize("make", [anthropic, openai])
def test_a_model_with_retries_off_is_returned_itself(make: Any) -> None:
    """A model with retries off needs no change."""
    model = make(max_retries=0)

    assert without_retries(model) == (model, 1)
    assert without_retries(model).model is model


def test_a_model_without_retries_is_returned_itself() -> None:
    """Most models have none."""
    model = Async()

    assert without_retries(model).model is model
    assert without_retries(model).requests == 1


def test_retries_are_charged_where_no_copy_is_safe() -> None:
    """A model with unknown retries stays unchanged, and counts as many calls as it may make."""

    class Stubborn(Async):
        max_retries: int = 5

    model = Stubborn()

    assert without_retries(model).model is model
    assert without_retries(model).requests == 6


def test_google_counts_attempts() -> None:
    """Google takes 0 as the default number and 1 as once; its clients receive the number with each call."""
    google = type("ChatGoogleGenerativeAI", (Async,), {"__module__": "langchain_google_genai.chat_models"})
    google = type(
        "Google",
        (google,),
        {"__module__": google.__module__, "__annotations__": {"max_retries": int}, "max_retries": 6},
    )
    model = google()

    copy, copy_count = without_retries(model)

    assert (copy.max_retries, copy_count) == (1, 1)  # type: ignore[attr-defined]
    assert model.max_retries == 6
