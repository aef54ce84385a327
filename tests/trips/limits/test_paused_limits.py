"""A limit that pauses: what waits, what pauses, whose clock stops, and what goes on after a raise."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from langchain_core.messages import BaseMessage, ToolMessage

from ramet.agent.definition import Agent
from ramet.core.errors import InvalidValue, RametError
from ramet.core.events import LimitPaused, LimitsRaised, StateChanged, ToolStarted
from ramet.core.limits import Limits
from ramet.core.outcome import Status
from ramet.host.runtime import AgentRuntime
from ramet.host.session import Session
from ramet.models.rate_limit import RetryPolicy
from ramet.models.scripted.dialogue import Call, Fail, ReplyStep, Script
from ramet.models.scripted.model import ScriptedModel
from tests.support.providers import provider
from tests.support.waiting import eventually
from tests.trips.kits.pausing import noting, open_gate, paused, pausing, states
from tests.trips.kits.sessions import (
    WIDE_LIMITS,
    Gate,
    brief_of,
    has_no_reservation,
    of_kind,
    session_events,
    specialist_call,
)

# --- the option


@pytest.mark.parametrize("value", ["stop", "", "PAUSE", True, 1, ["pause"]])
def test_only_two_words_say_what_happens_at_a_limit(value: Any) -> None:
    """Any other value is refused by the name of the field."""
    with pytest.raises(InvalidValue, match="at_limit"):
        Limits(model_calls=1, at_limit=value)


@pytest.mark.parametrize("value", ["end", "pause", None])
def test_limits_are_the_same_after_a_record(value: Any) -> None:
    """The record of limits gives the same limits again."""
    limits = Limits(model_calls=1, at_limit=value)
    assert Limits(**limits.as_data()) == limits


async def test_a_limit_ends_a_run_unless_it_is_told_to_pause() -> None:
    """The default is as before."""
    async with Session(ScriptedModel(noting(9)), [open_gate().tool], limits=Limits(model_calls=2)) as session:
        assert (await session.ask("go")).status is Status.BUDGET_EXHAUSTED
        assert not of_kind(session_events(session), LimitPaused)


@pytest.mark.parametrize(
    ("above", "own", "pauses"),
    [
        ("pause", None, True),
        ("pause", "end", False),
        (None, "pause", True),
        ("end", "pause", True),
        (None, None, False),
    ],
)
async def test_a_child_does_at_its_limit_what_it_says_or_else_what_the_scope_above_does(
    above: Any, own: Any, pauses: bool
) -> None:
    """A child with a limit of its own pauses or ends there; the root above it has calls left."""

    def answer(messages: list[BaseMessage]) -> ReplyStep:
        if brief_of(messages) == "dig":
            return Call("gate", {}) if len(messages) < 40 else "dug"
        if isinstance(messages[-1], ToolMessage):
            return "done"
        return Call("Agent", {"prompt": "dig", "subagent_type": "digger", "name": "digger"})

    digger = Agent(name="digger", description="Digs.", limits=Limits(model_calls=3, at_limit=own))
    async with Session(
        ScriptedModel(answer),
        [open_gate().tool],
        agents=[digger],
        limits=Limits(model_calls=50, at_limit=above),
    ) as session:
        turn = asyncio.create_task(session.ask("go"))
        if pauses:
            child = await paused(session, "main/digger")
            assert not turn.done()
            assert child.view().usage.model_calls == 3, "no call is kept back for a last answer"
            await child.raise_limits(Limits(model_calls=30), key="k")
        result = await turn
        assert (result.status, result.value) == (Status.COMPLETED, "done")
        ends = {view.path: view.state for view in session.runs()}
        assert str(ends["main/digger"]) == ("completed" if pauses else "budget_exhausted")
        assert has_no_reservation(session)


# --- the call that does not fit


async def test_no_last_answer_is_asked_for_at_a_limit_that_pauses() -> None:
    """All calls of the limit are the run's own, and no message says that the budget is used up."""
    async with (
        provider(noting(6)) as server,
        Session(server.openai(), [open_gate().tool], limits=pausing(model_calls=4)) as session,
    ):
        turn = asyncio.create_task(session.ask("go"))
        await paused(session)
        assert server.count == 4
        assert await session.raise_limits(Limits(model_calls=3), key="k") == pausing(model_calls=7)
        assert (await turn).value == "done"
        assert server.count == 7
        assert "used up" not in str(server.bodies)
        events = session_events(session)
        (pause,), (raised,) = of_kind(events, LimitPaused), of_kind(events, LimitsRaised)
        assert (pause.resource, pause.asked, pause.left, pause.scope) == ("model_calls", 1, 0, "main")
        assert raised.key == "k"
        assert "paused" in [each.state for each in of_kind(events, StateChanged)]


async def test_a_call_that_fits_once_siblings_settle_waits_and_does_not_pause() -> None:
    """Each call reserves all tokens that are left, so that siblings take turns. Nobody is paused, and all complete."""

    def answer(messages: list[BaseMessage]) -> ReplyStep:
        if brief_of(messages) != "go":
            return "found"
        if isinstance(messages[-1], ToolMessage):
            return "done"
        return [specialist_call(f"part {number}") for number in range(8)]

    async with (
        provider(answer) as server,
        Session(server.openai(), limits=pausing(tokens=200_000), spawn_limits=WIDE_LIMITS) as session,
    ):
        server.hold = asyncio.Event()
        turn = asyncio.create_task(session.ask("go"))
        await server.arrived(1)
        server.hold.set()
        result = await turn
        assert (result.status, result.value) == (Status.COMPLETED, "done")
        assert server.count == 10
        assert of_kind(session_events(session), LimitPaused) == []
        assert has_no_reservation(session)


async def test_a_raise_wakes_the_oldest_first() -> None:
    """Children that paused one after another go on in that order, one for each call that is added."""
    number = 6

    def answer(messages: list[BaseMessage]) -> ReplyStep:
        if brief_of(messages) != "go":
            return "found"
        if isinstance(messages[-1], ToolMessage):
            return "done"
        return [specialist_call(f"part {each}", f"part-{each}") for each in range(number)]

    async with (
        provider(answer) as server,
        Session(server.openai(), limits=pausing(model_calls=1), spawn_limits=WIDE_LIMITS) as session,
    ):
        turn = asyncio.create_task(session.ask("go"))
        await eventually(lambda: len(of_kind(session_events(session), LimitPaused)) == number)
        order = [each.path.rpartition("part-")[2] for each in of_kind(session_events(session), LimitPaused)]
        for each in range(number):
            await session.raise_limits(Limits(model_calls=1), key=f"raise {each}")
            await server.arrived(2 + each)
        served = [str(body["messages"][-1]["content"]).rpartition("part ")[2] for body in server.bodies[1:]]
        assert served == order
        await session.raise_limits(Limits(model_calls=1), key="last")
        assert (await turn).value == "done"


async def test_a_refund_wakes_the_oldest() -> None:
    """A child that ends returns its slice, and the call that waited for it is made."""

    def answer(messages: list[BaseMessage]) -> ReplyStep:
        match brief_of(messages):
            case "hold":
                return Call("gate", {}) if messages[-1].type == "human" else "held"
            case "part":
                return "found"
        if isinstance(messages[-1], ToolMessage):
            return "done"
        return [
            Call("Agent", {"prompt": "hold", "subagent_type": "holder", "name": "holder"}),
            specialist_call("part", "part"),
        ]

    gate = Gate()
    holder = Agent(name="holder", description="Holds calls.", limits=Limits(model_calls=4))
    async with Session(
        ScriptedModel(answer), [gate.tool], agents=[holder], limits=pausing(model_calls=5), spawn_limits=WIDE_LIMITS
    ) as session:
        turn = asyncio.create_task(session.ask("go"))
        await gate.entered.wait()
        await eventually(lambda: states(session).get("main/part") in ("waiting", "paused"))
        gate.open.set()
        assert (await turn).value == "done"
        assert has_no_reservation(session)


async def test_a_retry_that_does_not_fit_pauses() -> None:
    """Each attempt is a call: the second one waits for a raise, and nothing else is sent again."""
    runtime = AgentRuntime(retry=RetryPolicy(attempts=3, base_s=0), grace_s=0.05)
    async with (
        provider([Fail(429, retry_after_s=0), "there"]) as server,
        Session(server.openai(), runtime=runtime, limits=pausing(model_calls=1)) as session,
    ):
        turn = asyncio.create_task(session.ask("go"))
        await paused(session)
        assert server.count == 1
        await session.raise_limits(Limits(model_calls=1), key="k")
        assert (await turn).value == "there"
        assert server.count == 2


async def test_a_tool_call_that_does_not_fit_pauses_and_runs_once() -> None:
    """A limit of tool calls pauses before the call that is too many; calls of the reply that ran do not run again."""
    gate = open_gate()
    script: Script = [[Call("gate", {}), Call("gate", {}), Call("gate", {})], "done"]
    async with Session(ScriptedModel(script), [gate.tool], limits=pausing(tool_calls=2)) as session:
        turn = asyncio.create_task(session.ask("go"))
        await paused(session)
        assert gate.calls <= 2
        await session.raise_limits(Limits(tool_calls=1), key="k")
        assert (await turn).value == "done"
        assert gate.calls == 3
        started = [each.call_id for each in of_kind(session_events(session), ToolStarted)]
        assert len(started) == len(set(started)) == 3


async def test_a_spawn_that_does_not_fit_pauses() -> None:
    """A limit of agents pauses before the spawn that is too many."""

    def answer(messages: list[BaseMessage]) -> ReplyStep:
        if brief_of(messages) != "go":
            return "found"
        number = sum(isinstance(each, ToolMessage) for each in messages)
        return specialist_call(f"part {number}", f"part-{number}") if number < 2 else "done"

    async with Session(ScriptedModel(answer), limits=pausing(agents=1)) as session:
        turn = asyncio.create_task(session.ask("go"))
        await eventually(lambda: bool(of_kind(session_events(session), LimitPaused)))
        assert set(states(session)) == {"main", "main/part-0"}
        await session.raise_limits(Limits(agents=1), key="k")
        assert (await turn).value == "done"
        assert set(states(session)) == {"main", "main/part-0", "main/part-1"}


@pytest.mark.parametrize("at_limit", ["pause"])
async def test_money_without_a_known_price_is_never_guessed(at_limit: Any) -> None:
    """A limit in dollars and a model without a price: the run pauses or is refused, and nothing is sent."""
    refusals = list[str]()
    async with provider(["too much"]) as server:
        model = server.openai("a-model-that-nobody-sells")
        async with AgentRuntime() as runtime:
            try:
                handle = await runtime.spawn(
                    Agent(name="unpriced", model=model), "go", limits=Limits(usd=1.0, at_limit=at_limit)
                )
            except RametError as problem:
                refusals.append(str(problem))
            else:
                await eventually(lambda: handle.view().state == "paused" or not handle.run.is_living)
                if not handle.run.is_living:
                    assert "price" in str((await handle.result()).error)
                await handle.cancel()
        assert server.count == 0
    assert all("price" in each for each in refusals)
