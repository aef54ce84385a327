"""Budgets are conserved: reserve before a call, settle after it, refund on every exit, whatever runs concurrently."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import BaseMessage, ToolMessage
from langchain_core.tools import tool

from ramet.agent.definition import Agent
from ramet.core.errors import InvalidValue, SpawnRefused
from ramet.core.events import BudgetRefused, ClampEvent, MessageDiscarded, ModelAsked, RunEnded, RunSpawned
from ramet.core.limits import Limits, SpawnLimits
from ramet.core.outcome import Status
from ramet.host.runtime import AgentRuntime
from ramet.host.session import Session
from ramet.models.prices import Price
from ramet.models.rate_limit import RetryPolicy
from ramet.models.scripted.dialogue import ReplyStep
from ramet.models.scripted.model import Call, Cut, Fail, Hang, Say, ScriptedModel
from ramet.tools.spawn_request import SpawnRequest
from tests.support.providers import Provider, provider
from tests.support.waiting import eventually
from tests.trips.kits.sessions import (
    WIDE_LIMITS,
    Gate,
    answers,
    background_call,
    brief_of,
    has_no_reservation,
    is_tree_idle,
    newest_human,
    of_kind,
    run_of,
    session_events,
    specialist_call,
    typed_texts,
)


def runtime_without_backoff(**more: Any) -> AgentRuntime:
    """A runtime that retries at once."""
    return AgentRuntime(retry=RetryPolicy(attempts=3, base_s=0), grace_s=0.05, **more)


def client_of(server: Provider, which: str) -> BaseChatModel:
    """Return a client of the test's provider, of Anthropic's or of OpenAI's package."""
    return server.anthropic() if which == "anthropic" else server.openai()


# --- model calls


def fan_out(children: int) -> Any:
    """Return the replies of a root that spawns many children in one reply and then sums up.

    Each child answers at once.
    """

    def answer(messages: list[BaseMessage]) -> ReplyStep:
        if brief_of(messages) != "Go.":
            return "found something"
        if any(isinstance(message, ToolMessage) for message in messages):
            return "the root's last word"
        return [specialist_call(f"part {number}") for number in range(children)]

    return answer


@pytest.mark.parametrize(
    ("children", "which"), [(100, "anthropic"), pytest.param(1_000, "openai", marks=pytest.mark.larger)]
)
async def test_a_limit_of_five_calls_sends_five_requests(children: int, which: str) -> None:
    """Many concurrent children send exactly 5 HTTP requests, and the last one is the root's last answer."""
    async with provider(fan_out(children)) as server:
        async with Session(client_of(server, which), limits=Limits(model_calls=5), spawn_limits=WIDE_LIMITS) as session:
            result = await session.ask("Go.")
            ends = [event.result.status for event in of_kind(session_events(session), RunEnded)]
            is_held = has_no_reservation(session)

    assert server.count == 5
    assert result.status is Status.BUDGET_EXHAUSTED
    assert result.partial == "the root's last word"
    assert result.error is not None
    assert result.error.scope == "main"
    assert result.usage_subtree.model_calls == 5
    assert "used up" in str(server.bodies[-1]["messages"][-1])
    assert sorted(ends) == sorted([Status.COMPLETED] * 3 + [Status.BUDGET_EXHAUSTED] * (children - 3))
    assert is_held


async def test_a_child_without_calls_left_is_reported_as_a_failure() -> None:
    """The parent reads the used up budget as the reason. Children that had a call left report their results."""
    model = ScriptedModel(fan_out(5))
    async with Session(model, limits=Limits(model_calls=4), spawn_limits=WIDE_LIMITS) as session:
        await session.ask("Go.")

        reports = list(answers(session.messages).values())

    assert reports.count("found something") == 2
    refusals = [text for text in reports if text != "found something"]
    assert all("did not finish: budget_exhausted (budget of main: model_calls" in text for text in refusals)
    assert len(refusals) == 3


@pytest.mark.parametrize("which", ["anthropic", "openai"])
async def test_each_attempt_counts_as_a_call(which: str) -> None:
    """A 429, a 500 and an answer are three HTTP requests and three calls: the client's own retries are off."""
    async with provider([Fail(429, retry_after_s=0), Fail(500), "there"]) as server:
        async with Session(client_of(server, which), runtime=runtime_without_backoff()) as session:
            result = await session.ask("Go.")

    assert (result.value, server.count, result.usage.model_calls) == ("there", 3, 3)


async def test_a_retry_does_not_use_the_call_for_the_last_answer() -> None:
    """One of two calls is kept for the last answer, so a failure is followed by the last answer and not by a retry."""
    async with provider([Fail(429, retry_after_s=0), "what I know", "too much"]) as server:
        async with Session(
            server.anthropic(), limits=Limits(model_calls=2), runtime=runtime_without_backoff()
        ) as session:
            result = await session.ask("Go.")

    assert server.count == 2
    assert (result.status, result.partial) == (Status.BUDGET_EXHAUSTED, "what I know")


async def test_the_only_call_is_used_for_the_last_answer() -> None:
    """A limit of one call leaves that call for the last answer."""
    async with provider(["all I can say", "too much"]) as server:
        async with Session(server.anthropic(), limits=Limits(model_calls=1)) as session:
            result = await session.ask("Go.")

    assert server.count == 1
    assert (result.status, result.partial) == (Status.BUDGET_EXHAUSTED, "all I can say")


async def test_a_limit_of_zero_calls_sends_no_request() -> None:
    """The turn ends as `budget_exhausted`."""
    async with provider(["too much"]) as server:
        async with Session(server.anthropic(), limits=Limits(model_calls=0)) as session:
            result = await session.ask("Go.")

    assert (server.count, result.status, result.partial) == (0, Status.BUDGET_EXHAUSTED, "")


async def test_a_prompt_does_not_refill_a_session_s_budget() -> None:
    """A prompt after the budget is used up ends without a request."""
    async with provider(["one", "two", "three"]) as server:
        async with Session(server.anthropic(), limits=Limits(model_calls=2)) as session:
            first = await session.ask("Go.")
            second = await session.ask("Go on.")
            third = await session.ask("Go on.")

    assert [each.status for each in (first, second, third)] == [
        Status.COMPLETED,
        Status.BUDGET_EXHAUSTED,
        Status.BUDGET_EXHAUSTED,
    ]
    assert (second.partial, third.partial) == ("two", "")
    assert server.count == 2


async def test_a_last_answer_that_calls_tools_leaves_a_valid_history() -> None:
    """The tool calls of a last answer are dropped, and only its text stays in the history."""

    @tool
    def look() -> str:
        """Look."""
        return "seen"

    calls: list[ReplyStep] = [[Call("look"), Call("look")], Call("look"), "answered"]
    async with provider(calls) as server:
        async with Session(server.anthropic(), [look], limits=Limits(tool_calls=1)) as session:
            result = await session.ask("Go.")
            await session.ask("Again.")

    assert result.status is Status.BUDGET_EXHAUSTED
    blocks = [
        block for message in server.bodies[-1]["messages"] for block in message["content"] if isinstance(block, dict)
    ]
    requested_ids = [block["id"] for block in blocks if block["type"] == "tool_use"]
    answered_ids = [block["tool_use_id"] for block in blocks if block["type"] == "tool_result"]
    assert requested_ids == answered_ids


# --- tokens


async def test_a_call_whose_bound_does_not_fit_is_not_started() -> None:
    """No request is sent that could cost more tokens than are left. The refusal names the resource."""
    async with provider(["a last word"]) as server:
        async with Session(server.anthropic(), limits=Limits(tokens=1_000), spawn=False) as session:
            result = await session.ask("word " * 1_000)
            refusals = of_kind(session_events(session), BudgetRefused)
            model_requests = of_kind(session_events(session), ModelAsked)

    assert result.status is Status.BUDGET_EXHAUSTED
    assert refusals[0].resource == "tokens"
    assert refusals[0].asked > 1_000
    assert sum(event.reserved_tokens for event in model_requests) <= 1_000
    assert not any("word " * 1_000 in str(body) for body in server.bodies)


@pytest.mark.parametrize("which", ["anthropic", "openai"])
async def test_the_maximum_of_a_reply_fits_into_the_budget(which: str) -> None:
    """The request tells the provider how many tokens still fit: input and reply together stay within the limit."""
    async with provider(["fine"]) as server:
        async with Session(client_of(server, which), limits=Limits(tokens=3_000), spawn=False) as session:
            await session.ask("Go.")
            (request,) = of_kind(session_events(session), ModelAsked)

    max_tokens = server.bodies[0].get("max_tokens") or server.bodies[0]["max_completion_tokens"]
    assert 16 <= max_tokens < 3_000
    assert request.reserved_tokens <= 3_000 - 300  # a tenth is kept for the last word


async def test_a_turn_returns_the_tokens_that_it_did_not_use() -> None:
    """The settlement uses the provider's own count, with input and cache reads. The rest is free again."""
    usage = {"input_tokens": 70, "output_tokens": 30, "total_tokens": 100, "input_token_details": {"cache_read": 40}}
    model = ScriptedModel([Say("fine", usage=usage)])  # type: ignore[arg-type]  # a plain dict is as good
    async with Session(model, limits=Limits(tokens=20_000), spawn=False) as session:
        result = await session.ask("Go.")
        budget = run_of(session, "main").context.budget

    assert (result.usage.tokens, result.usage.cache_read_tokens) == (100, 40)
    assert (budget.spent_amount("tokens"), budget.reserved_amount("tokens")) == (100, 0)
    assert budget.remaining("tokens", is_final_answer=True) == 20_000 - 100


async def test_a_refused_request_costs_a_call_and_no_tokens() -> None:
    """A provider that answers HTTP 400 did no work, so the reserved tokens are refunded."""
    async with provider([Fail(400)]) as server:
        async with Session(server.anthropic(), limits=Limits(tokens=10_000, model_calls=5)) as session:
            result = await session.ask("Go.")
            budget = run_of(session, "main").context.budget

    assert result.status is Status.FAILED
    assert (budget.spent_amount("tokens"), budget.spent_amount("model_calls"), budget.reserved_amount("tokens")) == (
        0,
        1,
        0,
    )
    assert not result.usage.estimated


@pytest.mark.parametrize("which", ["anthropic", "openai"])
async def test_a_cut_stream_is_settled_at_its_reservation(which: str) -> None:
    """The cost of a stream that was cut is unknown: all that was reserved counts, and is marked as an estimate."""
    async with provider([Cut(6, "half a word")] * 3) as server:
        async with Session(
            client_of(server, which), limits=Limits(tokens=50_000), runtime=runtime_without_backoff()
        ) as session:
            result = await session.ask("Go.")
            reserved = [event.reserved_tokens for event in of_kind(session_events(session), ModelAsked)]
            discarded = of_kind(session_events(session), MessageDiscarded)
            budget = run_of(session, "main").context.budget

    assert result.status is not Status.COMPLETED
    assert result.usage.estimated
    assert (budget.spent_amount("tokens"), budget.reserved_amount("tokens")) == (sum(reserved), 0)
    assert result.usage.tokens == sum(reserved)
    assert len(discarded) == len(reserved) == server.count


async def test_a_call_cancelled_in_mid_stream_is_settled_at_its_reservation() -> None:
    """Cancelling refunds nothing that may have been used."""
    async with provider([Hang(6, "half a word")]) as server:
        async with Session(
            server.anthropic(), limits=Limits(tokens=10_000), runtime=runtime_without_backoff()
        ) as session:
            turn = asyncio.create_task(session.ask("Go."))
            await eventually(lambda: run_of(session, "main").activity.streamed_text)

            await session.interrupt()

            result = await turn
            (request,) = of_kind(session_events(session), ModelAsked)
            budget = run_of(session, "main").context.budget
        await server.client_left.wait()

    assert (result.usage.estimated, result.usage.tokens) == (True, request.reserved_tokens)
    assert (budget.spent_amount("tokens"), budget.reserved_amount("tokens")) == (request.reserved_tokens, 0)


# --- money


async def test_money_is_counted_by_the_price_table() -> None:
    """Users can add prices. The cost of a call is reserved before it and settled after it."""
    usage = {"input_tokens": 1_000, "output_tokens": 500, "total_tokens": 1_500}
    model = ScriptedModel([Say("fine", usage=usage)])  # type: ignore[arg-type]  # a plain dict is as good
    runtime = runtime_without_backoff(prices={"scripted": Price(input=2.0, output=10.0)})
    async with Session(model, limits=Limits(usd=1.0), runtime=runtime) as session:
        result = await session.ask("Go.")
        budget = run_of(session, "main").context.budget

    assert result.usage.usd == pytest.approx(1_000 * 2e-6 + 500 * 10e-6)
    assert budget.spent_amount("usd") == pytest.approx(result.usage.usd)
    assert budget.reserved_amount("usd") == 0


async def test_a_money_limit_requires_a_price_of_the_model() -> None:
    """A model without a known price is not asked if money is limited."""
    model = ScriptedModel(["too much"], model_name="nobody-knows")
    async with Session(model, limits=Limits(usd=1.0)) as session:
        result = await session.ask("Go.")

    assert (result.status, model.requests) == (Status.FAILED, [])
    assert result.error is not None
    assert "price" in result.error.message


async def test_a_call_that_could_exceed_the_money_limit_is_not_started() -> None:
    """A limit of a hundredth of a cent stops every request that could cost more."""
    runtime = runtime_without_backoff(prices={"claude-sonnet-5-5": Price(input=3.0, output=15.0)})
    async with provider(["too much"]) as server:
        async with Session(server.anthropic(), limits=Limits(usd=0.0001), runtime=runtime) as session:
            result = await session.ask("Go.")

    assert (server.count, result.status) == (0, Status.BUDGET_EXHAUSTED)


# --- slices


def agent_with_limits(name: str = "limited", **limits: Any) -> Agent:
    return Agent(name=name, description="Has limits.", instructions=f"You are {name}.", limits=Limits(**limits))


def call_of_type(kind: str, prompt: str = "work", **more: Any) -> Call:
    return Call("Agent", {"prompt": prompt, "subagent_type": kind, **more})


async def test_a_child_s_own_limit_ends_the_child_only() -> None:
    """The error names the child's scope. The parent reads the child's partial result and continues."""
    look = Gate("look")
    look.open.set()
    model = ScriptedModel(
        {"You are limited": [Call("look"), Call("look"), "what I found"], "": [call_of_type("limited"), "went on"]}
    )
    async with Session(
        model, [look.tool], agents=[agent_with_limits(model_calls=2)], limits=Limits(model_calls=10)
    ) as session:
        result = await session.ask("Go.")
        (end,) = of_kind(session_events(session), RunEnded)
        budget = run_of(session, "main").context.budget

    assert result.value == "went on"
    assert end.result.status is Status.BUDGET_EXHAUSTED
    assert end.result.error is not None
    assert end.result.error.scope == "main/1"
    assert end.result.usage.model_calls == 2
    assert budget.spent_amount("model_calls") == 4


async def test_a_child_returns_what_it_did_not_spend() -> None:
    """A slice is lent: the rest is free for the parent once the child has ended."""
    model = ScriptedModel({"You are limited": ["done"], "": [call_of_type("limited"), "ok"]})
    limits = Limits(model_calls=20, tool_calls=20)
    async with Session(model, agents=[agent_with_limits(model_calls=15, tool_calls=15)], limits=limits) as session:
        await session.ask("Go.")
        budget = run_of(session, "main").context.budget

        remaining = [budget.remaining("model_calls", is_final_answer=True), budget.remaining("tool_calls")]

    assert remaining == [20 - 3, 20 - 1]
    assert has_no_reservation(session)


@pytest.mark.parametrize(
    ("limits", "parent", "field"),
    [
        (Limits(model_calls=50), Limits(model_calls=20), "model_calls"),
        (Limits(tokens=50_000), Limits(tokens=20_000), "tokens"),
        (Limits(tool_calls=50), Limits(tool_calls=20), "tool_calls"),
        (Limits(agents=50), Limits(agents=20), "agents"),
        (Limits(usd=5.0), Limits(usd=2.0), "usd"),
        (Limits(seconds=50), Limits(seconds=20), "seconds"),
    ],
    ids=["model_calls", "tokens", "tool_calls", "agents", "usd", "seconds"],
)
async def test_a_limit_above_the_parent_s_is_clamped_with_an_event(limits: Limits, parent: Limits, field: str) -> None:
    """Limits never widen: the child gets the parent's limit, and a ClampEvent names both."""
    model = ScriptedModel({"You are limited": ["done"], "": [call_of_type("limited"), "ok"]})
    agent = Agent(name="limited", description="Has limits.", instructions="You are limited.", limits=limits)
    async with Session(model, agents=[agent], limits=parent, runtime=runtime_without_backoff()) as session:
        await session.ask("Go.")
        (clamp,) = of_kind(session_events(session), ClampEvent)
        (end,) = of_kind(session_events(session), RunEnded)
        child = run_of(session, "main/1")

    assert (clamp.field, clamp.asked, clamp.given) == (
        f"limits.{field}",
        getattr(limits, field),
        getattr(parent, field),
    )
    assert clamp.path == "main/1"
    assert end.result.value == "done"
    wide = child.limits.seconds if field == "seconds" else child.context.budget.limit(field)
    assert wide == getattr(parent, field)


async def test_a_slice_that_is_not_free_now_is_refused() -> None:
    """A slice within the parent's limit, but not free at the moment, raises SpawnRefused with what is free."""
    async with Session(ScriptedModel(["ok"]), limits=Limits(tool_calls=10)) as session:
        waits = Agent(name="waits", limits=Limits(tool_calls=8), function=asyncio.Event().wait)
        first = await session.spawn(SpawnRequest(agent=waits))

        with pytest.raises(SpawnRefused) as refusal:
            await session.spawn(SpawnRequest(agent=waits))

        assert (refusal.value.limit, refusal.value.free) == ("budget tool_calls", 2)
        assert len(of_kind(session_events(session), RunSpawned)) == 2
        await first.cancel()
        second = await session.spawn(SpawnRequest(agent=waits))
        await second.cancel()
        assert has_no_reservation(session)
        assert run_of(session, "main").context.budget.remaining("tool_calls") == 10


async def test_a_result_has_the_usage_of_the_run_and_of_its_subtree() -> None:
    """Each result has the usage of its run alone, and of its run with all runs below."""
    model = ScriptedModel(
        {
            "leaf": ["found"],
            "middle": [specialist_call("leaf", "leaf"), "ok"],
            "": [specialist_call("middle", "middle"), "ok"],
        }
    )
    async with Session(model) as session:
        await session.ask("Go.")
        results = {event.path: event.result for event in of_kind(session_events(session), RunEnded)}
        assert session.result is not None
        results["main"] = session.result

    calls = {path: (each.usage.model_calls, each.usage_subtree.model_calls) for path, each in results.items()}
    agent_counts = {path: each.usage_subtree.agents for path, each in results.items()}
    assert calls == {"main/middle/leaf": (1, 1), "main/middle": (2, 3), "main": (2, 5)}
    assert agent_counts == {"main/middle/leaf": 0, "main/middle": 1, "main": 2}
    assert results["main"].usage_subtree.tokens == sum(each.usage.tokens for each in results.values())


async def test_a_detached_child_has_a_budget_of_its_own() -> None:
    """The parent gives that budget away permanently.

    A detached child without a figure for each limited resource is refused.
    """
    gate = Gate()
    model = ScriptedModel({"alone": [Call("gate"), "done alone"], "": ["ok"]})
    async with Session(model, [gate.tool], limits=Limits(model_calls=10)) as session:
        request = SpawnRequest(prompt="alone", mode="fresh", detached=True)
        with pytest.raises(InvalidValue, match=r"limits\.model_calls"):
            await session.spawn(request)
        assert has_no_reservation(session)

        handle = await session.spawn(
            SpawnRequest(prompt="alone", mode="fresh", detached=True, limits=Limits(model_calls=4))
        )

        budget = run_of(session, "main").context.budget
        assert (budget.spent_amount("model_calls"), budget.reserved_amount("model_calls")) == (4, 0)
        gate.open.set()
        assert (await handle.result()).value == "done alone"
        assert budget.spent_amount("model_calls") == 4


# --- exact counts


async def test_a_limit_of_tool_calls_is_exact() -> None:
    """Ten calls in one reply under a limit of 3: three run, seven are refused, and the last answer follows."""
    look = Gate("look")
    look.open.set()
    model = ScriptedModel([[Call("look") for _ in range(10)], "what I saw", "too much"])
    async with Session(model, [look.tool], limits=Limits(tool_calls=3)) as session:
        result = await session.ask("Go.")
        refusals = [text for text in answers(session.messages).values() if "budget of main: tool_calls" in text]

    assert (look.calls, len(refusals)) == (3, 7)
    assert (result.status, result.partial) == (Status.BUDGET_EXHAUSTED, "what I saw")
    assert result.usage.tool_calls == 3
    assert len(model.requests) == 2


async def test_a_limit_of_tool_calls_is_exact_across_a_tree() -> None:
    """Children of one tree make their calls concurrently and never exceed the limit."""
    look = Gate("look")
    look.open.set()

    def answer(messages: list[BaseMessage]) -> ReplyStep:
        if brief_of(messages) == "Go.":
            tools = any(isinstance(message, ToolMessage) for message in messages)
            return "ok" if tools else [specialist_call(f"part {number}") for number in range(20)]
        return "seen" if isinstance(messages[-1], ToolMessage) else Call("look")

    model = ScriptedModel(answer)
    async with Session(model, [look.tool], limits=Limits(tool_calls=25), spawn_limits=WIDE_LIMITS) as session:
        result = await session.ask("Go.")

    assert look.calls == 5  # 20 of the 25 are the root's own calls of Agent.
    assert result.usage_subtree.tool_calls == 25
    assert has_no_reservation(session)


async def test_a_limit_of_agents_is_exact_for_concurrent_spawns() -> None:
    """100 concurrent spawns under a budget of 10 agents: 10 start, and 90 are refused with what is free."""

    async def work() -> int:
        await asyncio.sleep(0)
        return 1

    async with Session(ScriptedModel(["ok"]), limits=Limits(agents=10), spawn_limits=WIDE_LIMITS) as session:
        spawns = [session.spawn(SpawnRequest(agent=work)) for _ in range(100)]

        results = await asyncio.gather(*spawns, return_exceptions=True)

        refusals = [each for each in results if isinstance(each, SpawnRefused)]
        handles = [each for each in results if not isinstance(each, BaseException)]
        assert (len(handles), len(refusals)) == (10, 90)
        assert {(each.limit, each.free) for each in refusals} == {("budget agents", 0)}
        await asyncio.gather(*(handle.result() for handle in handles))
        assert run_of(session, "main").context.budget.spent_amount("agents") == 10
        assert has_no_reservation(session)


async def test_a_limit_of_agents_is_exact_for_spawns_of_a_model() -> None:
    """A model asks for 100 children in one reply: the 90 refusals are tool results, and the turn continues."""
    model = ScriptedModel(fan_out(100))
    async with Session(model, limits=Limits(agents=10), spawn_limits=WIDE_LIMITS) as session:
        result = await session.ask("Go.")
        reports = list(answers(session.messages).values())

    assert reports.count("found something") == 10
    assert sum("spawn refused (budget agents)" in text for text in reports) == 90
    assert result.status is Status.COMPLETED
    assert result.usage_subtree.agents == 10


@pytest.mark.parametrize(("limits", "run_count"), [({"runs": 10}, 9), ({"children": 10}, 10)])
async def test_limits_of_living_runs_are_exact(limits: dict[str, int], run_count: int) -> None:
    """100 concurrent spawns start exactly as many runs as there is room for.

    The end of a run makes room for one more.
    """
    model = ScriptedModel(["ok"])
    async with Session(model, spawn_limits=SpawnLimits(when_full="refuse", **limits)) as session:
        request = SpawnRequest(agent=asyncio.Event().wait)
        results = await asyncio.gather(*(session.spawn(request) for _ in range(100)), return_exceptions=True)

        living = [each for each in results if not isinstance(each, BaseException)]
        assert len(living) == run_count
        await living[0].cancel()
        second_handle = await session.spawn(request)
        with pytest.raises(SpawnRefused) as refusal:
            await session.spawn(request)
        assert (refusal.value.limit, refusal.value.free) == (next(iter(limits)), 0)
        await second_handle.cancel()


async def test_nothing_stays_reserved_when_children_end_in_any_way() -> None:
    """Success, failure, refusal, a cut stream and a cancel leave nothing held in any scope."""
    gate = Gate()
    agents = [agent_with_limits(f"kind-{number}", tokens=30_000, model_calls=8, tool_calls=5) for number in range(5)]
    script: dict[str, Any] = {
        "kind-0": ["fine"],
        "kind-1": [Fail("no use")],
        "kind-2": [Cut(3, "cut off")] * 3,
        "kind-3": [Call("gate"), "never"],
        "kind-4": [call_of_type("kind-0", "below"), Call("nonsense"), ""] + [""] * 3,
        "": [[call_of_type(each.name, name=each.name, run_in_background=True) for each in agents], *["noted"] * 9],
    }
    limits = Limits(tokens=900_000, model_calls=60, tool_calls=60, agents=20, usd=None)
    async with Session(
        ScriptedModel(script), [gate.tool], agents=agents, limits=limits, runtime=runtime_without_backoff()
    ) as session:
        await session.ask("Go.")
        await gate.entered.wait()
        await session.handle("kind-3").cancel()
        await eventually(lambda: is_tree_idle(session))

        assert has_no_reservation(session)
        ends = {event.path: event.result.status for event in of_kind(session_events(session), RunEnded)}
        assert ends == {
            "main/kind-0": Status.COMPLETED,
            "main/kind-1": Status.FAILED,
            "main/kind-2": Status.FAILED,
            "main/kind-3": Status.CANCELLED,
            "main/kind-4": Status.FAILED,
            "main/kind-4/1": Status.COMPLETED,
        }
        root = run_of(session, "main")
        assert root.context.budget.spent_amount("tokens") == root.subtree.tokens
        assert root.context.budget.spent_amount("model_calls") == root.subtree.model_calls
        assert root.context.budget.spent_amount("tool_calls") == root.subtree.tool_calls
        assert root.context.budget.spent_amount("agents") == root.subtree.agents == 6


async def test_background_children_cannot_use_their_parent_s_last_answer() -> None:
    """The call for the owner's last answer is kept: the children use up the rest before the root ends."""

    def answer(messages: list[BaseMessage]) -> ReplyStep:
        if brief_of(messages) == "Go.":
            if newest_human(messages).startswith("Your budget"):
                return "summed up"
            return (
                [background_call("part", f"part-{n}") for n in range(3)]
                if len(messages) == 1
                else Call("TaskOutput", {"task_id": "part-0"})
            )
        return Call("ListAgents")

    model = ScriptedModel(answer)
    async with Session(model, limits=Limits(model_calls=12)) as session:
        result = await session.ask("Go.")

    assert (result.status, result.partial) == (Status.BUDGET_EXHAUSTED, "summed up")
    assert len(model.requests) == 12
    assert typed_texts(session.messages)[-1] == ("ai", "summed up")
