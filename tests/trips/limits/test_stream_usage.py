"""OpenAI's clients ask for the usage of a stream where the endpoint allows that, and only there."""

from __future__ import annotations

from typing import Any

import pytest
from langchain_core.tools import tool

from ramet import AgentRuntime, Limits, Session
from ramet.core.events import ModelAsked, ModelRetried
from ramet.core.outcome import Status
from ramet.models.rate_limit import RetryPolicy
from tests.support.providers import Call, Fail, Provider, provider
from tests.trips.kits.sessions import has_no_reservation, of_kind, run_of, session_events, specialist_call

LIMITS = Limits(tokens=100_000, model_calls=20)
UNKNOWN = "Unrecognized request argument supplied: stream_options"


def asked_usage(server: Provider) -> list[bool]:
    """Return for each request whether it asked for usage."""
    return ["stream_options" in body for body in server.bodies]


def runtime_without_backoff(attempts: int = 1) -> AgentRuntime:
    """A runtime that retries at once, or not at all."""
    return AgentRuntime(retry=RetryPolicy(attempts=attempts, base_s=0))


@tool
def look() -> str:
    """Look."""
    return "seen"


@pytest.mark.parametrize("more", [{}, {"streaming": True}, {"streaming": False}], ids=str)
async def test_a_request_to_the_responses_api_does_not_ask_for_usage(more: dict[str, Any]) -> None:
    """The Responses API always reports usage, and its client has no such argument."""
    async with provider([Call("look"), "Hello."]) as server:
        model = server.openai(use_responses_api=True, **more)
        async with Session(model, [look], runtime=runtime_without_backoff(), limits=LIMITS) as session:
            result = await session.ask("Go.")

    assert (result.status, result.value) == (Status.COMPLETED, "Hello.")
    assert not result.usage.estimated
    assert result.usage.tokens > 0
    assert not any("stream_options" in body or "stream_usage" in body for body in server.bodies)
    assert all(request.path.endswith("/responses") for request in server.requests)


async def test_usage_is_requested_if_a_client_chooses_chat_completions() -> None:
    """Some clients choose the API by the request: the same model uses Chat Completions without tools."""
    async with provider(["one", "two"]) as server:
        paths = []
        for tools in ([], [look]):
            async with Session(
                server.openai("gpt-6-mini"), tools, spawn=False, runtime=runtime_without_backoff()
            ) as session:
                result = await session.ask("Go.")
                assert (result.status, result.usage.estimated) == (Status.COMPLETED, False)
                paths.append(server.requests[-1].path.rpartition("/")[2])

    assert paths == ["completions", "responses"]
    assert asked_usage(server) == [True, False]


async def test_chat_completions_ask_for_usage() -> None:
    """An answer without usage would count as all that was reserved."""
    async with provider(["Hello."]) as server:
        async with Session(server.openai(), runtime=runtime_without_backoff(), limits=LIMITS) as session:
            result = await session.ask("Go.")

    assert (result.value, result.usage.estimated, asked_usage(server)) == ("Hello.", False, [True])


@pytest.mark.parametrize("refusal", [UNKNOWN, "Bad Request"])
async def test_an_endpoint_that_refuses_usage_is_not_asked_for_it_again(refusal: str) -> None:
    """The request is repeated without the field, as a call of its own.

    No later request to that endpoint asks for usage.
    """
    async with provider(["one", "two", "three"]) as server:
        server.refusals["stream_options"] = refusal
        model = server.openai()
        async with Session(model, runtime=runtime_without_backoff(), limits=LIMITS) as session:
            first = await session.ask("Go.")
            retried = of_kind(session_events(session), ModelRetried)
            second = await session.ask("Go on.")
            model_requests = of_kind(session_events(session), ModelAsked)
            assert has_no_reservation(session)
        # Another client for the same model at the same endpoint, in the same process.
        second_model = server.openai(base_url=model.openai_api_base)
        async with Session(second_model, runtime=runtime_without_backoff(), limits=LIMITS) as session:
            third = await session.ask("Go.")

    assert [each.value for each in (first, second, third)] == ["one", "two", "three"]
    assert asked_usage(server) == [True, False, False, False]
    assert (first.usage.model_calls, second.usage.model_calls, third.usage.model_calls) == (2, 3, 1)
    assert len(model_requests) == 3
    assert [(each.wait_s, "HTTP 400" in each.reason) for each in retried] == [(0, True)]
    assert first.usage.estimated  # Its answer came without usage.


async def test_a_refusal_of_usage_holds_for_one_model_at_one_endpoint() -> None:
    """Another endpoint, or another model at the same endpoint, is still asked for usage."""
    async with provider(["one", "two", "three"]) as server:
        server.refusals["stream_options"] = UNKNOWN
        model = server.openai()
        async with Session(model, runtime=runtime_without_backoff()) as session:
            await session.ask("Go.")
        server.refusals.clear()
        others = [server.openai(), server.openai("gpt-5.4-nano", base_url=model.openai_api_base)]
        for other in others:
            async with Session(other, runtime=runtime_without_backoff()) as session:
                await session.ask("Go.")

    assert asked_usage(server) == [True, False, True, True]


async def test_a_request_refused_for_another_reason_is_sent_twice_at_most() -> None:
    """The endpoint does not say what it refuses: the field is left out once, and the refusal is not remembered."""
    async with provider(lambda messages: Fail(400)) as server:
        async with Session(server.openai(), runtime=runtime_without_backoff(), limits=LIMITS) as session:
            result = await session.ask("Go.")
            second_result = await session.ask("Again.")
            spent = run_of(session, "main").context.budget.spent_amount("model_calls")

    assert [result.status, second_result.status] == [Status.FAILED, Status.FAILED]
    assert asked_usage(server) == [True, False, True, False]
    assert spent == 4


async def test_a_retry_does_not_bring_the_refused_field_back() -> None:
    """A later attempt of the same call, after an unrelated failure, leaves the field out, too."""
    async with provider([Fail(500), "there"]) as server:
        server.refusals["stream_options"] = "Bad Request"
        async with Session(server.openai(), runtime=runtime_without_backoff(2), limits=LIMITS) as session:
            result = await session.ask("Go.")

    assert (result.value, result.usage.model_calls) == ("there", 3)
    assert asked_usage(server) == [True, False, False]


async def test_an_endpoint_that_reported_usage_once_keeps_the_field() -> None:
    """A later refusal has another reason, and the request is not repeated."""
    async with provider(["Hello.", Fail(400)]) as server:
        async with Session(server.openai(), runtime=runtime_without_backoff(), limits=LIMITS) as session:
            await session.ask("Go.")
            result = await session.ask("Go on.")

    assert result.status is Status.FAILED
    assert asked_usage(server) == [True, True]


async def test_a_repeated_request_without_the_field_costs_a_call() -> None:
    """One of two calls is kept for the last answer, so the repeated request is the last answer."""
    async with provider(["what I know", "too much"]) as server:
        server.refusals["stream_options"] = UNKNOWN
        limits = Limits(model_calls=2)
        async with Session(server.openai(), runtime=runtime_without_backoff(), limits=limits) as session:
            result = await session.ask("Go.")

    assert server.count == 2
    assert (result.status, result.partial) == (Status.BUDGET_EXHAUSTED, "what I know")


async def test_concurrent_children_at_a_refusing_endpoint_lose_no_call() -> None:
    """Concurrent children of an endpoint that refuses usage all get their answers."""
    children = 20

    def answer(messages: Any) -> Any:
        if any("part" in str(each.text) for each in messages if each.type == "human"):
            return "found"
        if any(each.type == "tool" for each in messages):
            return "all found"
        return [specialist_call(f"part {number}") for number in range(children)]

    async with provider(answer) as server:
        server.refusals["stream_options"] = UNKNOWN
        async with Session(
            server.openai(), runtime=runtime_without_backoff(), limits=Limits(model_calls=100)
        ) as session:
            result = await session.ask("Go.")

    assert result.value == "all found"
    assert result.usage_subtree.model_calls == server.count
    assert asked_usage(server).count(True) == 1  # The root was there first: the children found it remembered.
