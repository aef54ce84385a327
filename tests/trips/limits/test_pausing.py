"""A limit with `at_limit="pause"`: what does not fit waits, in order, until the limit is raised or others return."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from langchain_core.messages import BaseMessage, ToolMessage
from langchain_core.runnables import RunnableLambda
from langchain_core.tools import tool

from ramet.agent.adopted.adopt import adopt
from ramet.core.errors import BudgetExceeded, InvalidValue
from ramet.core.events import BudgetRefused, LimitPaused, LimitsRaised, StateChanged
from ramet.core.limits import Limits
from ramet.core.outcome import Status
from ramet.host.runtime import AgentRuntime
from ramet.host.session import Session
from ramet.models.scripted.dialogue import ReplyStep
from ramet.models.scripted.model import Call, Hang, ScriptedModel
from ramet.tools.spawn_request import SpawnRequest
from tests.support.providers import provider
from tests.support.waiting import eventually
from tests.trips.kits.sessions import (
    WIDE_LIMITS,
    brief_of,
    has_no_reservation,
    of_kind,
    run_of,
    session_events,
    specialist_call,
)


def states(session: Session[Any]) -> dict[str, str]:
    return {view.path: view.state for view in session.runs()}


def look_until(rounds: int) -> Any:
    """Return the replies of an agent that calls a tool `rounds` times before it answers."""

    def reply(messages: list[BaseMessage]) -> ReplyStep:
        done = sum(isinstance(message, ToolMessage) for message in messages)
        return Call("look", {"where": str(done)}) if done < rounds else f"looked {done} times"

    return reply


@tool
def look(where: str) -> str:
    """Look somewhere."""
    return f"nothing in {where}"


async def test_a_run_at_its_limit_pauses_and_goes_on_when_the_limit_is_raised() -> None:
    """Exactly the refused request is made next; no last answer is asked for, and nothing is repeated."""
    model = ScriptedModel(look_until(7))
    async with Session(model, [look], limits=Limits(model_calls=5, at_limit="pause")) as session:
        turn = asyncio.create_task(session.ask("Go."))
        await eventually(lambda: states(session) == {"main": "paused"})
        assert len(model.requests) == 5
        assert not run_of(session, "main").context.slot.is_held

        assert await session.raise_limits(Limits(model_calls=3)) == Limits(model_calls=8, at_limit="pause")
        result = await turn

        assert (result.status, result.value) == (Status.COMPLETED, "looked 7 times")
        assert len(model.requests) == 8
        pauses = of_kind(session_events(session), LimitPaused)
        assert [(each.resource, each.asked, each.left, each.scope) for each in pauses] == [
            ("model_calls", 1, 0, "main")
        ]
        assert [each.add for each in of_kind(session_events(session), LimitsRaised)] == [{"model_calls": 3}]
        assert not of_kind(session_events(session), BudgetRefused)
        assert has_no_reservation(session)


async def test_states_of_a_pause_are_recorded_with_their_reason() -> None:
    """A reader of the events sees that the run pauses, why, and that it works again."""
    async with Session(ScriptedModel(look_until(1)), [look], limits=Limits(model_calls=1, at_limit="pause")) as session:
        turn = asyncio.create_task(session.ask("Go."))
        await eventually(lambda: states(session) == {"main": "paused"})
        await session.raise_limits(Limits(model_calls=1))
        await turn
        changes = [(each.state, each.why) for each in of_kind(session_events(session), StateChanged)]

    paused = changes.index(("paused", "budget of main: model_calls asked 1, left 0"))
    assert [state for state, _ in changes[paused:]] == ["paused", "waiting", "running", "idle"]


@pytest.mark.parametrize("children", [3, 100])
async def test_children_pause_at_the_limit_of_their_root(children: int) -> None:
    """Limit 5, raised by 3: 8 requests arrive at the server, then the rest waits; raised enough, all complete."""

    def answer(messages: list[BaseMessage]) -> ReplyStep:
        if brief_of(messages) != "Go.":
            return "found something"
        if any(isinstance(message, ToolMessage) for message in messages):
            return "all found"
        return [specialist_call(f"part {number}") for number in range(children)]

    async with provider(answer) as server:
        limits = Limits(model_calls=3, at_limit="pause")
        async with Session(server.openai(), limits=limits, spawn_limits=WIDE_LIMITS) as session:
            turn = asyncio.create_task(session.ask("Go."))
            await eventually(lambda: list(states(session).values()).count("paused") == children - 2)
            assert len(server.requests) == 3
            await session.raise_limits(Limits(model_calls=1), key="one")
            await session.raise_limits(Limits(model_calls=1), key="one")
            await eventually(lambda: len(server.requests) == 4 and "running" not in states(session).values())
            await session.raise_limits(Limits(model_calls=children))
            assert (await turn).value == "all found"
            assert len(server.requests) == children + 2
            assert has_no_reservation(session)


async def test_a_request_waits_for_what_siblings_hold_and_does_not_pause() -> None:
    """The reservation of a request under way may return in part: who waits for that needs no raise."""
    model = GatedModel(lambda messages: "Done.")
    async with Session(model, limits=Limits(tokens=20_000, at_limit="pause")) as session:
        first = await session.spawn(SpawnRequest(prompt="wait", mode="fresh"))
        await eventually(lambda: session.context.budget.reserved_amount("tokens") > 0)
        second = await session.spawn(SpawnRequest(prompt="x" * 3_000, mode="fresh"))
        await eventually(lambda: states(session)[second.path] == "waiting")
        model.gate.set()
        assert (await second.result()).status is Status.COMPLETED
        assert (await first.result()).status is Status.COMPLETED
        assert not of_kind(session_events(session), LimitPaused)


class GatedModel(ScriptedModel):
    """A scripted model that answers the prompt `wait` once its gate is open."""

    def __init__(self, script: Any) -> None:
        super().__init__(script)
        self._gate = asyncio.Event()

    @property
    def gate(self) -> asyncio.Event:
        return self._gate

    async def _astream(self, messages: Any, *args: Any, **kwargs: Any) -> Any:
        if brief_of(messages) == "wait":
            await self._gate.wait()
        async for chunk in super()._astream(messages, *args, **kwargs):
            yield chunk


async def test_the_oldest_request_goes_first_also_if_a_younger_one_would_fit() -> None:
    """Requests of one scope go on in the order in which they came."""
    order: list[str] = []

    def reply(messages: list[BaseMessage]) -> ReplyStep:
        order.append(brief_of(messages))
        return "Done."

    async with Session(ScriptedModel(reply), limits=Limits(model_calls=0, at_limit="pause")) as session:
        handles = []
        for number in range(5):
            handles.append(await session.spawn(SpawnRequest(prompt=f"part {number}", mode="fresh")))
            await eventually(lambda: states(session)[handles[-1].path] == "paused")
        for more in (1, 2, 2):
            await session.raise_limits(Limits(model_calls=more))
        for handle in handles:
            await handle.result()

    assert order == [f"part {number}" for number in range(5)]


async def test_a_scope_below_pauses_at_its_own_limit_and_is_raised_from_the_scope_above() -> None:
    """The child's limit is inherited from its root; a raise beyond what the root has is refused."""
    model = ScriptedModel(look_until(4))
    async with Session(model, [look], limits=Limits(model_calls=6, at_limit="pause")) as session:
        child = await session.spawn(SpawnRequest(prompt="Go.", mode="fresh", limits=Limits(model_calls=2)))
        await eventually(lambda: states(session)[child.path] == "paused")
        assert of_kind(session_events(session), LimitPaused)[0].scope == child.path

        with pytest.raises(BudgetExceeded) as refusal:
            await child.raise_limits(Limits(model_calls=5))
        assert (refusal.value.scope, refusal.value.left) == ("main", 4)
        assert states(session)[child.path] == "paused"
        assert await child.raise_limits(Limits(model_calls=3)) == Limits(model_calls=5)

        assert (await child.result()).value == "looked 4 times"
        assert session.context.budget.remaining("model_calls") == 1
        assert len(model.requests) == 5


async def test_a_child_may_pause_below_a_root_that_ends() -> None:
    """Each scope decides for its own limit."""
    model = ScriptedModel(look_until(9))
    async with Session(model, [look], limits=Limits(model_calls=6)) as session:
        limits = Limits(model_calls=2, at_limit="pause")
        child = await session.spawn(SpawnRequest(prompt="Go.", mode="fresh", limits=limits))
        await eventually(lambda: states(session)[child.path] == "paused")
        with pytest.raises(BudgetExceeded):
            await child.raise_limits(Limits(model_calls=4))  # One of the root's four is for its last answer.
        await child.raise_limits(Limits(model_calls=3))
        await eventually(lambda: len(model.requests) == 5 and states(session)[child.path] == "paused")
        await child.cancel()


async def test_tool_calls_and_agents_pause_too() -> None:
    """A call that does not fit is not begun, and its answer is no error; a spawn waits before it takes a place."""
    model = ScriptedModel(look_until(2))
    async with Session(model, [look], limits=Limits(tool_calls=1, at_limit="pause")) as session:
        turn = asyncio.create_task(session.ask("Go."))
        await eventually(lambda: states(session) == {"main": "paused"})
        await session.raise_limits(Limits(tool_calls=1))
        assert (await turn).value == "looked 2 times"

    async with Session(ScriptedModel({"": ["Done."]}), limits=Limits(agents=0, at_limit="pause")) as session:
        birth = asyncio.create_task(session.spawn(SpawnRequest(prompt="Go.", mode="fresh")))
        await eventually(lambda: bool(of_kind(session_events(session), LimitPaused)))
        await session.raise_limits(Limits(agents=1))
        assert (await (await birth).result()).value == "Done."


@pytest.mark.parametrize("way", ["cancel", "interrupt", "close"])
async def test_a_paused_run_can_be_stopped(way: str) -> None:
    """A stop ends the wait; nothing is held, and the next in line is not kept waiting."""
    async with Session(ScriptedModel([Hang(1)]), limits=Limits(model_calls=0, at_limit="pause")) as session:
        turn = asyncio.create_task(session.ask("Go."))
        await eventually(lambda: states(session) == {"main": "paused"})
        await getattr(session, way)()
        assert (await turn).status is Status.CANCELLED
        assert has_no_reservation(session)
        assert session.context.budget.waiting is None


async def test_a_stopped_run_leaves_its_place_in_line() -> None:
    """The one behind it goes on if the raise is enough for one."""
    async with Session(ScriptedModel({"": ["Done."]}), limits=Limits(model_calls=0, at_limit="pause")) as session:
        first = await session.spawn(SpawnRequest(prompt="one", mode="fresh"))
        await eventually(lambda: states(session)[first.path] == "paused")
        second = await session.spawn(SpawnRequest(prompt="two", mode="fresh"))
        await eventually(lambda: states(session)[second.path] == "paused")
        await first.cancel()
        await session.raise_limits(Limits(model_calls=1))
        assert (await second.result()).value == "Done."


BAD_RAISES: list[tuple[Limits, str, str]] = [
    (Limits(), "", "at least one limit"),
    (Limits(usd=1), "", "add.usd"),
    (Limits(model_calls=1, at_limit="end"), "", "add.at_limit"),
    (Limits(model_calls=1), "x" * 201, "key"),
    (Limits(model_calls=1), "a\nb", "key"),
]


@pytest.mark.parametrize(("add", "key", "named"), BAD_RAISES, ids=lambda value: str(value)[:20])
async def test_a_raise_that_means_nothing_is_refused_by_field(add: Limits, key: str, named: str) -> None:
    """Nothing is changed and nothing recorded."""
    async with Session(ScriptedModel(["Done."]), limits=Limits(model_calls=1, at_limit="pause")) as session:
        with pytest.raises(InvalidValue, match=named):
            await session.raise_limits(add, key=key)
        assert session.context.budget.limit("model_calls") == 1
        assert not of_kind(session_events(session), LimitsRaised)


async def test_a_key_belongs_to_one_raise() -> None:
    """The same key with other amounts is a mistake of its caller, and is not guessed about."""
    async with Session(ScriptedModel(["Done."]), limits=Limits(model_calls=1, at_limit="pause")) as session:
        await session.raise_limits(Limits(model_calls=1), key="k")
        with pytest.raises(InvalidValue, match="key"):
            await session.raise_limits(Limits(model_calls=2), key="k")
        assert session.context.budget.limit("model_calls") == 2


async def test_a_run_without_limits_of_its_own_names_the_scope_that_has_them() -> None:
    """A child that draws on its root's budget has nothing to raise."""
    async with Session(ScriptedModel({"": [Hang(3)]}), limits=Limits(model_calls=1)) as session:
        child = await session.spawn(SpawnRequest(prompt="Go.", mode="fresh"))
        with pytest.raises(InvalidValue, match="those of main"):
            await child.raise_limits(Limits(model_calls=1))
        await child.cancel()


async def test_an_adopted_agent_pauses_in_its_own_loop() -> None:
    """A framework that awaits its model waits at a limit like a loop of ours."""
    model = ScriptedModel(["one", "two"])

    async def ask_twice(_: str) -> str:
        return str((await model.ainvoke("a")).text) + str((await model.ainvoke("b")).text)

    async with AgentRuntime() as runtime:
        limits = Limits(model_calls=1, at_limit="pause")
        handle = await runtime.spawn(adopt(RunnableLambda(ask_twice), name="twice"), "Go.", limits=limits)
        await eventually(lambda: handle.view().state == "paused")
        await handle.raise_limits(Limits(model_calls=1))
        assert (await handle.result()).value == "onetwo"
    assert len(model.requests) == 2


async def test_a_time_limit_can_be_raised() -> None:
    """The time of a run that works goes on from when it began, to the new limit."""
    async with Session(ScriptedModel([Hang(1)]), limits=Limits(seconds=60)) as session:
        turn = asyncio.create_task(session.ask("Go."))
        await eventually(lambda: states(session) == {"main": "running"})
        assert (await session.raise_limits(Limits(seconds=30))).seconds == 90
        left_s = run_of(session, "main").seconds_left(session.context.clock.monotonic())
        assert left_s is not None
        assert left_s > 60
        await session.cancel()
        assert (await turn).status is Status.CANCELLED
