"""The gateway: reserve, wait, ask, retry and settle; a run pays for what the provider was asked."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest
from langchain_core.language_models import BaseChatModel, GenericFakeChatModel
from langchain_core.messages import AIMessage, AIMessageChunk, HumanMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.tools import tool

from ramet.concurrency.clock import FakeClock
from ramet.core.budget import Budget
from ramet.core.errors import BudgetExceeded, ModelFailed, Unknown
from ramet.core.events import Event, MessageDiscarded, ModelAsked, ModelRetried
from ramet.core.limits import RESOURCES, Limits
from ramet.host.charging import DEFAULT_OUTPUT_TOKENS
from ramet.host.gateway import Gateway
from ramet.models.messages import input_bound
from ramet.models.prices import Price, max_usd
from ramet.models.rate_limit import RetryPolicy
from ramet.models.scripted.model import Cut, Fail, Hang, Say, ScriptedModel
from ramet.tools.context import ToolUseContext
from ramet.tools.model_request import ForeignRequest, ModelRequest
from tests.support.context import make_context
from tests.support.providers import provider
from tests.support.waiting import eventually
from tests.trips.kits.sessions import of_kind


class GatewayRun:
    """A run that asks through a gateway of its own."""

    def __init__(
        self,
        limits: Limits = Limits(),  # noqa: B008 - immutable
        *,
        attempts: int = 3,
        clock: FakeClock | None = None,
        prices: Mapping[str, Price] | None = None,
    ) -> None:
        self.clock = clock or FakeClock()
        retry = RetryPolicy(attempts=attempts, base_s=0 if clock is None else 1.0)
        self.gateway = Gateway(self.clock, retry=retry, prices=prices)
        self.events: list[Event] = []
        self.budget = Budget(limits, scope="main")
        self.context: ToolUseContext = make_context(budget=self.budget, record=self._keep)

    def _keep(self, event: Event) -> Event:
        self.events.append(event)
        return event

    async def ask(self, model: BaseChatModel, **request: Any) -> list[AIMessageChunk | AIMessage]:
        model_request = ModelRequest(messages=[HumanMessage("hello")], step=self.context.next_step(), **request)
        return [piece async for piece in self.gateway.port(model).ask(self.context, model_request)]

    @property
    def reserved_amounts(self) -> dict[str, float]:
        return {resource: self.budget.reserved_amount(resource) for resource in RESOURCES}


NOTHING: dict[str, float] = dict.fromkeys(RESOURCES, 0)


async def test_chunks_come_before_the_whole_message() -> None:
    """Chunks are provisional; the message that follows counts."""
    *chunks, message = await GatewayRun().ask(ScriptedModel(["one two"]))

    assert all(isinstance(chunk, AIMessageChunk) for chunk in chunks)
    assert type(message) is AIMessage
    assert (message.text, "".join(chunk.text for chunk in chunks)) == ("one two", "one two")


async def test_a_model_that_cannot_stream_gives_one_message() -> None:
    """The only piece is the message."""
    pieces = await GatewayRun().ask(ScriptedModel(["one two"], streaming=False))

    assert [type(piece) for piece in pieces] == [AIMessage]


async def test_a_request_is_recorded_before_it_is_sent() -> None:
    """ModelAsked is recorded with the reserved amount before the provider is reached."""
    run = GatewayRun(Limits(tokens=50_000))
    counts: list[int] = []

    def answer(_: object) -> str:
        counts.append(len(of_kind(run.events, ModelAsked)))
        assert run.budget.reserved_amount("tokens") == of_kind(run.events, ModelAsked)[-1].reserved_tokens > 0
        return "ok"

    await run.ask(ScriptedModel(answer))

    assert counts == [1]
    assert run.reserved_amounts == NOTHING


async def test_one_model_has_one_port() -> None:
    """One object gets one port, and another model gets another port; an unknown name is refused."""
    gateway = Gateway(FakeClock())
    first, second = ScriptedModel(["a"]), ScriptedModel(["b"])

    ports = [gateway.port(each) for each in (first, first, second)]

    assert ports[0].ask == ports[1].ask
    assert ports[0].ask != ports[2].ask
    with pytest.raises(Unknown):
        gateway.port("nowhere:nothing")


async def test_a_users_model_object_is_not_changed() -> None:
    """The client's own retries are switched off in a copy, and ours take their place."""
    async with provider([Fail(500), Fail(500), Fail(500), "ok"]) as server:
        model = server.openai(max_retries=2)
        before = model.model_dump()
        run = GatewayRun(attempts=3)

        with pytest.raises(ModelFailed):
            await run.ask(model)

        assert server.count == 3
        assert run.context.usage.model_calls == 3
        assert model.max_retries == 2
        assert model.model_dump() == before


async def test_retries_that_cannot_be_switched_off_are_charged() -> None:
    """A model that may ask four times for one call is charged four calls."""

    class Stubborn(BaseChatModel):
        """A model that retries by itself, invisibly."""

        max_retries: int = 3

        @property
        def _llm_type(self) -> str:
            return "stubborn"

        def _generate(self, *args: Any, **kwargs: Any) -> ChatResult:
            return ChatResult(generations=[ChatGeneration(message=AIMessage("ok"))])

    run = GatewayRun(Limits(model_calls=4))

    with pytest.raises(BudgetExceeded) as refusal:
        await run.ask(Stubborn())

    assert (refusal.value.resource, refusal.value.asked, refusal.value.left) == ("model_calls", 4, 3)
    assert run.reserved_amounts == NOTHING


async def test_nothing_is_reserved_while_waiting_to_retry() -> None:
    """Other runs may use the budget during the wait."""
    clock = FakeClock()
    run = GatewayRun(Limits(model_calls=10, tokens=90_000), clock=clock)
    asking = asyncio.create_task(run.ask(ScriptedModel([Fail(429, retry_after_s=5), "ok"])))
    await eventually(lambda: clock.sleeping)

    assert run.reserved_amounts == NOTHING
    assert run.budget.spent_amount("model_calls") == 1

    await clock.advance(10)
    assert (await asking)[-1].text == "ok"
    (retried,) = of_kind(run.events, ModelRetried)
    assert retried.wait_s >= 5


async def test_a_rate_limit_holds_back_all_runs_that_ask_models_of_its_name() -> None:
    """After a 429 a run that asks a model of that name waits until the provider's time is over; others do not."""
    clock = FakeClock()
    run = GatewayRun(clock=clock)
    model = ScriptedModel([Fail(429, retry_after_s=5), "first"], model_name="m")
    same, other = ScriptedModel(["second"], model_name="m"), ScriptedModel(["third"], model_name="n")
    first = asyncio.create_task(run.ask(model))
    await eventually(lambda: clock.sleeping == 1)
    second = asyncio.create_task(run.ask(same))
    await eventually(lambda: clock.sleeping == 2)

    await run.ask(other)
    assert [len(each.requests) for each in (model, same, other)] == [1, 0, 1]

    await clock.advance(4)
    assert [len(each.requests) for each in (model, same)] == [1, 0]
    await clock.advance(10)
    await asyncio.gather(first, second)
    assert [len(each.requests) for each in (model, same)] == [2, 1]


@pytest.mark.parametrize("left_after", range(4))
async def test_leaving_in_mid_stream_ends_the_request(left_after: int) -> None:
    """The provider's task has ended and the reservation is settled once the reader has left."""
    run = GatewayRun(Limits(tokens=50_000))
    request = ModelRequest(messages=[HumanMessage("hello")], step=run.context.next_step())
    pieces = run.gateway.port(ScriptedModel([Say("a b c d e f", chunks=tuple("abcdef"))])).ask(run.context, request)

    for _ in range(left_after):
        await anext(pieces)
    await pieces.aclose()

    assert len(asyncio.all_tasks()) == 1
    assert run.reserved_amounts == NOTHING


async def test_a_cancelled_request_is_settled_as_reserved() -> None:
    """The request may have cost all that it could: the usage is marked as an estimate."""
    run = GatewayRun(Limits(tokens=50_000))
    asking = asyncio.create_task(run.ask(ScriptedModel([Hang(3, "never")])))
    await eventually(lambda: run.budget.reserved_amount("tokens"))
    reserved = run.budget.reserved_amount("tokens")

    asking.cancel()
    await asyncio.wait([asking])

    assert (run.budget.spent_amount("tokens"), run.reserved_amounts) == (reserved, NOTHING)
    assert run.context.usage.estimated


async def test_deltas_of_a_broken_attempt_are_discarded() -> None:
    """MessageDiscarded comes before the next attempt."""
    run = GatewayRun()

    pieces = await run.ask(ScriptedModel([Cut(4, "half a word"), "whole"]))

    kinds = [type(event).__name__ for event in run.events]
    assert kinds == ["ModelAsked", "MessageDiscarded", "ModelCharged", "ModelRetried", "ModelAsked"]
    assert len(of_kind(run.events, MessageDiscarded)) == 1
    assert pieces[-1].text == "whole"


async def test_no_chunk_of_a_broken_attempt_comes_after_its_discard() -> None:
    """A reader that takes what follows MessageDiscarded gets the text of the next attempt alone."""
    run, items = GatewayRun(), list[Event | AIMessageChunk | AIMessage]()
    record = run.context.record

    def note(event: Event) -> Event:
        items.append(event)
        return record(event)

    run.context.record = note
    model = ScriptedModel([Cut(4, "half a word"), "whole"])
    request = ModelRequest(messages=[HumanMessage("hello")], step=run.context.next_step())
    async for piece in run.gateway.port(model).ask(run.context, request):
        items.append(piece)

    discard = next(i for i, item in enumerate(items) if isinstance(item, MessageDiscarded))
    assert "".join(item.text for item in items[discard:] if isinstance(item, AIMessageChunk)) == "whole"


async def test_the_replys_length_is_bounded_by_request_model_and_budget() -> None:
    """The lowest bound counts; without one, a default holds."""
    free, tight = GatewayRun(), GatewayRun(Limits(tokens=1_000))
    model = ScriptedModel(["a", "b", "c", "d", "e"])

    await free.ask(model)
    await free.ask(model, max_tokens=77)
    await tight.ask(model)
    await GatewayRun(Limits(tokens=90_000)).ask(model)
    await GatewayRun(Limits(tokens=90_000)).ask(model, max_tokens=77)

    assert [request.max_tokens for request in model.requests[:2]] == [None, 77]
    bounded = model.requests[2].max_tokens
    assert bounded is not None
    assert 16 <= bounded < 1_000
    assert [request.max_tokens for request in model.requests[3:]] == [DEFAULT_OUTPUT_TOKENS, 77]


@pytest.mark.parametrize(
    ("price", "tokens"),
    [(Price(1_000, 5_000), None), (Price(1_000, 5_000), 3_000), (Price(1_000, 0), None)],
    ids=["money", "tokens are less", "replies are free"],
)
async def test_a_replys_length_is_bounded_by_the_money_left(price: Price, tokens: int | None) -> None:
    """The longest affordable reply is asked for, unless the tokens are fewer or a reply is free."""
    limits, model = Limits(usd=5.0, tokens=tokens), ScriptedModel(["short"])
    run = GatewayRun(limits, prices={"scripted": price})
    usd, remaining_tokens = run.budget.remaining("usd"), run.budget.remaining("tokens")
    bound_tokens = input_bound([HumanMessage("hello")], 0)

    await run.ask(model)

    [question], max_tokens = of_kind(run.events, ModelAsked), model.requests[0].max_tokens
    assert max_tokens is not None
    assert question.reserved_usd == pytest.approx(max_usd(bound_tokens, max_tokens, price))
    assert question.reserved_usd <= usd
    fits_one_more = (
        max_usd(bound_tokens, max_tokens + 1, price) <= usd and bound_tokens + max_tokens + 1 <= remaining_tokens
    )
    assert max_tokens == DEFAULT_OUTPUT_TOKENS if fits_one_more else max_tokens < DEFAULT_OUTPUT_TOKENS
    assert fits_one_more is (price.output == 0)


async def test_tool_schemas_count_as_input() -> None:
    """A request with tools reserves more, since their schemas are sent too."""

    @tool
    def search(words: str) -> str:
        """Search for words, wherever they may stand."""
        return words

    bare, armed = GatewayRun(Limits(tokens=90_000)), GatewayRun(Limits(tokens=90_000))
    await bare.ask(ScriptedModel(["ok"]))
    await armed.ask(ScriptedModel(["ok"]), tools=(search,))

    reserved = [of_kind(run.events, ModelAsked)[0].reserved_tokens for run in (bare, armed)]
    assert reserved[1] > reserved[0] + 100


async def test_unreported_usage_counts_as_reserved() -> None:
    """A model that reports nothing is not free."""
    run = GatewayRun(Limits(tokens=50_000))

    await run.ask(GenericFakeChatModel(messages=iter([AIMessage("fine")])))

    assert run.context.usage.estimated
    assert run.context.usage.tokens == of_kind(run.events, ModelAsked)[0].reserved_tokens


def test_an_untrue_report_to_another_framework_costs_the_reservation() -> None:
    """The reply of a request that another framework made is not ours to change, and not to be believed either."""
    run = GatewayRun(Limits(tokens=50_000))
    charge = run.gateway.meter(
        run.context, ForeignRequest("scripted", [HumanMessage("hello")], run.context.next_step())
    )

    charge.settle(AIMessage("fine", usage_metadata={"input_tokens": 9, "output_tokens": -99, "total_tokens": -90}))

    assert run.budget.spent_amount("tokens") == of_kind(run.events, ModelAsked)[0].reserved_tokens
    assert run.context.usage.tokens == run.budget.spent_amount("tokens")


async def test_an_attempt_beyond_the_budget_is_not_made() -> None:
    """Each attempt reserves anew, so that a failing provider cannot exceed the limit."""
    run = GatewayRun(Limits(model_calls=3), attempts=9)  # One of the three is kept for a last word.
    model = ScriptedModel([Fail(500)] * 9)

    with pytest.raises(BudgetExceeded):
        await run.ask(model)

    assert len(model.requests) == 2
    assert (run.budget.spent_amount("model_calls"), run.reserved_amounts) == (2, NOTHING)
