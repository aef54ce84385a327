"""OpenAI's clients are asked for the usage of a stream where that is possible, and only there."""

from __future__ import annotations

from typing import Any

import pytest
from langchain_core.tools import tool

from ramet import AgentRuntime, Limits, Session
from ramet.core.events import ModelAsked, ModelRetried
from ramet.core.outcome import Status
from ramet.models.rate_limit import RetryPolicy
from tests.support.providers import Call, Fail, Provider, provider
from tests.trips.kits.sessions import fresh, kept, nothing_is_held, of_kind, run_of

LIMITS = Limits(tokens=100_000, model_calls=20)
UNKNOWN = "Unrecognized request argument supplied: stream_options"


def asked_usage(server: Provider) -> list[bool]:
    """Of each request, whether it asked for usage."""
    return ["stream_options" in body for body in server.bodies]


def impatient(attempts: int = 1) -> AgentRuntime:
    """A runtime that asks again at once, or not at all."""
    return AgentRuntime(retry=RetryPolicy(attempts=attempts, base_s=0))


@tool
def look() -> str:
    """Look."""
    return "seen"


@pytest.mark.parametrize("more", [{}, {"streaming": True}, {"streaming": False}], ids=str)
async def test_the_responses_api_is_never_told_of_stream_usage(more: dict[str, Any]) -> None:
    """It reports usage anyway, and its client has no such argument."""
    async with provider([Call("look"), "Hello."]) as server:
        model = server.openai(use_responses_api=True, **more)
        async with Session(model, [look], runtime=impatient(), limits=LIMITS) as session:
            result = await session.ask("Go.")

    assert (result.status, result.value) == (Status.COMPLETED, "Hello.")
    assert not result.usage.estimated
    assert result.usage.tokens > 0
    assert not any("stream_options" in body or "stream_usage" in body for body in server.bodies)
    assert all(request.path.endswith("/responses") for request in server.requests)


async def test_the_responses_api_of_some_models_only_with_tools() -> None:
    """A client may choose the API by what goes with a request: without tools the same model has Chat Completions."""
    async with provider(["one", "two"]) as server:
        paths = []
        for tools in ([], [look]):
            async with Session(server.openai("gpt-6-mini"), tools, spawn=False, runtime=impatient()) as session:
                result = await session.ask("Go.")
                assert (result.status, result.usage.estimated) == (Status.COMPLETED, False)
                paths.append(server.requests[-1].path.rpartition("/")[2])

    assert paths == ["completions", "responses"]
    assert asked_usage(server) == [True, False]


async def test_chat_completions_are_asked_for_usage() -> None:
    """Without it every answer would be counted as all that was reserved."""
    async with provider(["Hello."]) as server:
        async with Session(server.openai(), runtime=impatient(), limits=LIMITS) as session:
            result = await session.ask("Go.")

    assert (result.value, result.usage.estimated, asked_usage(server)) == ("Hello.", False, [True])


@pytest.mark.parametrize("refusal", [UNKNOWN, "Bad Request"])
async def test_an_endpoint_that_refuses_is_asked_once_without(refusal: str) -> None:
    """The request is made again without, as a call of its own; from then on nobody asks that endpoint for usage."""
    async with provider(["one", "two", "three"]) as server:
        server.refusals["stream_options"] = refusal
        model = server.openai()
        async with Session(model, runtime=impatient(), limits=LIMITS) as session:
            first = await session.ask("Go.")
            retried = of_kind(kept(session), ModelRetried)
            second = await session.ask("Go on.")
            asked = of_kind(kept(session), ModelAsked)
            assert nothing_is_held(session)
        # Another client for the same model at the same endpoint, in the same process.
        again = server.openai(base_url=model.openai_api_base)
        async with Session(again, runtime=impatient(), limits=LIMITS) as session:
            third = await session.ask("Go.")

    assert [each.value for each in (first, second, third)] == ["one", "two", "three"]
    assert asked_usage(server) == [True, False, False, False]
    assert (first.usage.model_calls, second.usage.model_calls, third.usage.model_calls) == (2, 3, 1)
    assert len(asked) == 3
    assert [(each.wait_s, "HTTP 400" in each.reason) for each in retried] == [(0, True)]
    assert first.usage.estimated  # Its answer came without usage.


async def test_what_one_endpoint_refuses_another_is_asked_for() -> None:
    """What is remembered is remembered of one model at one endpoint."""
    async with provider(["one", "two", "three"]) as server:
        server.refusals["stream_options"] = UNKNOWN
        model = server.openai()
        async with Session(model, runtime=impatient()) as session:
            await session.ask("Go.")
        server.refusals.clear()
        others = [server.openai(), server.openai("gpt-5.4-nano", base_url=model.openai_api_base)]
        for other in others:
            async with Session(other, runtime=impatient()) as session:
                await session.ask("Go.")

    assert asked_usage(server) == [True, False, True, True]


async def test_a_request_that_is_refused_for_another_reason_is_asked_twice_at_most() -> None:
    """Where the endpoint does not say what it refuses, usage is left out once; nothing is remembered of it."""
    async with provider(lambda messages: Fail(400)) as server:
        async with Session(server.openai(), runtime=impatient(), limits=LIMITS) as session:
            result = await session.ask("Go.")
            again = await session.ask("Again.")
            spent = run_of(session, "main").context.budget.spent("model_calls")

    assert [result.status, again.status] == [Status.FAILED, Status.FAILED]
    assert asked_usage(server) == [True, False, True, False]
    assert spent == 4


async def test_later_attempts_of_the_call_are_made_without_as_well() -> None:
    """An attempt that fails for another reason does not bring the refused field back."""
    async with provider([Fail(500), "there"]) as server:
        server.refusals["stream_options"] = "Bad Request"
        async with Session(server.openai(), runtime=impatient(2), limits=LIMITS) as session:
            result = await session.ask("Go.")

    assert (result.value, result.usage.model_calls) == ("there", 3)
    assert asked_usage(server) == [True, False, False]


async def test_an_endpoint_that_gave_usage_once_is_not_suspected() -> None:
    """A refusal after that has another reason, and is not asked again."""
    async with provider(["Hello.", Fail(400)]) as server:
        async with Session(server.openai(), runtime=impatient(), limits=LIMITS) as session:
            await session.ask("Go.")
            result = await session.ask("Go on.")

    assert result.status is Status.FAILED
    assert asked_usage(server) == [True, True]


async def test_being_asked_without_costs_a_call_of_the_budget() -> None:
    """Each request counts: with two calls, one of them kept for the last word, the second is the last word."""
    async with provider(["what I know", "too much"]) as server:
        server.refusals["stream_options"] = UNKNOWN
        limits = Limits(model_calls=2)
        async with Session(server.openai(), runtime=impatient(), limits=limits) as session:
            result = await session.ask("Go.")

    assert server.count == 2
    assert (result.status, result.partial) == (Status.BUDGET_EXHAUSTED, "what I know")


async def test_many_at_once_are_each_asked_once_without() -> None:
    """Children that ask a refusing endpoint at the same time all get their answers, and no call is lost."""
    children = 20

    def answer(messages: Any) -> Any:
        if any("part" in str(each.text) for each in messages if each.type == "human"):
            return "found"
        if any(each.type == "tool" for each in messages):
            return "all found"
        return [fresh(f"part {number}") for number in range(children)]

    async with provider(answer) as server:
        server.refusals["stream_options"] = UNKNOWN
        async with Session(server.openai(), runtime=impatient(), limits=Limits(model_calls=100)) as session:
            result = await session.ask("Go.")

    assert result.value == "all found"
    assert result.usage_subtree.model_calls == server.count
    assert asked_usage(server).count(True) == 1  # The root was there first: the children found it remembered.
