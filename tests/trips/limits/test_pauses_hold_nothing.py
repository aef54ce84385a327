"""A run that is paused at a limit holds no time and no slot, and an interrupt ends its turn."""

from __future__ import annotations

import asyncio

import pytest
from langchain_core.messages import BaseMessage, ToolMessage

from ramet.agent.definition import Agent
from ramet.concurrency.clock import FakeClock
from ramet.core.limits import Limits, SpawnLimits
from ramet.core.outcome import Status
from ramet.host.runtime import AgentRuntime
from ramet.host.session import Session
from ramet.models.scripted.dialogue import Call, ReplyStep
from ramet.models.scripted.model import ScriptedModel
from ramet.tools.spawn_request import SpawnRequest
from tests.support.providers import provider
from tests.support.waiting import eventually
from tests.trips.kits.pausing import open_gate, paused, pausing, states
from tests.trips.kits.sessions import WIDE_LIMITS, Gate, brief_of, open_tree_of, run_of, specialist_call


async def test_a_pause_takes_no_time_from_a_run_or_its_waiting_ancestors() -> None:
    """The child and the root have a minute each. The child is paused for an hour, and both complete."""

    def answer(messages: list[BaseMessage]) -> ReplyStep:
        if brief_of(messages) == "dig":
            return Call("gate", {}) if messages[-1].type == "human" else "dug"
        if isinstance(messages[-1], ToolMessage):
            return "done"
        return Call("Agent", {"prompt": "dig", "subagent_type": "digger", "name": "digger"})

    clock = FakeClock()
    digger = Agent(name="digger", description="Digs.", limits=pausing(model_calls=1, seconds=60))
    async with (
        AgentRuntime(clock=clock, grace_s=0.05) as runtime,
        Session(
            ScriptedModel(answer), [open_gate().tool], agents=[digger], runtime=runtime, limits=Limits(seconds=60)
        ) as session,
    ):
        turn = asyncio.create_task(session.ask("go"))
        child = await paused(session, "main/digger")
        for _ in range(60):
            await clock.advance(60)
        assert states(session) == {"main": "waiting", "main/digger": "paused"}
        await child.raise_limits(Limits(model_calls=1), key="k")
        assert (await turn).value == "done"


async def test_the_clock_of_a_root_goes_on_while_another_child_works() -> None:
    """A root waits for a paused child and for one that works: its minute passes, and it ends as `timeout`."""

    def answer(messages: list[BaseMessage]) -> ReplyStep:
        if brief_of(messages) == "dig":
            return Call("open", {}) if messages[-1].type == "human" else "dug"
        if brief_of(messages) == "work":
            return Call("gate", {})
        return [
            Call("Agent", {"prompt": "dig", "subagent_type": "digger", "name": "digger"}),
            specialist_call("work", "worker"),
        ]

    clock, gate, passing = FakeClock(), Gate(), Gate("open")
    passing.open.set()
    digger = Agent(name="digger", description="Digs.", limits=pausing(model_calls=1))
    async with (
        AgentRuntime(clock=clock, grace_s=0.05) as runtime,
        Session(
            ScriptedModel(answer),
            [gate.tool, passing.tool],
            agents=[digger],
            runtime=runtime,
            limits=Limits(seconds=60),
            spawn_limits=WIDE_LIMITS,
        ) as session,
    ):
        turn = asyncio.create_task(session.ask("go"))
        await paused(session, "main/digger")
        await gate.entered.wait()
        await clock.advance(61)
        await eventually(turn.done)
        assert (await turn).status is Status.TIMEOUT


async def test_a_paused_run_holds_no_slot() -> None:
    """With one slot, each of ten children reaches the limit and pauses."""

    def answer(messages: list[BaseMessage]) -> ReplyStep:
        if brief_of(messages) != "go":
            return "found"
        if isinstance(messages[-1], ToolMessage):
            return "done"
        return [specialist_call(f"part {each}", f"part-{each}") for each in range(10)]

    async with Session(
        ScriptedModel(answer), limits=pausing(model_calls=1), spawn_limits=SpawnLimits(running=1)
    ) as session:
        turn = asyncio.create_task(session.ask("go"))
        await eventually(lambda: list(states(session).values()).count("paused") == 10)
        assert run_of(session, "main").context.budget.reserved_amount("model_calls") == 0
        await session.raise_limits(Limits(model_calls=11), key="k")
        assert (await turn).value == "done"


async def test_an_interrupt_ends_a_paused_turn() -> None:
    """The call that waited is never made; after a raise the next turn has its own."""
    async with (
        provider(["first", "second"]) as server,
        Session(server.openai(), limits=pausing(model_calls=1)) as session,
    ):
        assert (await session.ask("one")).value == "first"
        turn = asyncio.create_task(session.ask("two"))
        await paused(session)
        await session.interrupt()
        assert (await turn).status is Status.CANCELLED
        await session.raise_limits(Limits(model_calls=1), key="k")
        assert server.count == 1, "a raise made the call of a turn that is over"
        assert (await session.ask("three")).value == "second"
        assert server.count == 2


@pytest.mark.parametrize("kind", ["limit", "person"])
async def test_a_spawn_from_code_that_waited_leaves_the_slot_to_the_child(kind: str) -> None:
    """The root has no turn. It takes no slot when the spawn goes on, or the child could not work with one slot."""
    limits = pausing(agents=0) if kind == "limit" else Limits()
    async with Session(ScriptedModel(["done"]), limits=limits, spawn_limits=SpawnLimits(running=1)) as session:
        await session.start()
        if kind == "person":
            await session.handle().pause("wait")
        spawning = asyncio.create_task(session.spawn(SpawnRequest(prompt="go", mode="fresh")))
        await eventually(lambda: run_of(session, "main").pauses.awaits_decision)
        await (session.handle().resume() if kind == "person" else session.raise_limits(Limits(agents=1)))
        child = await spawning
        assert (await child.result()).value == "done"
        assert open_tree_of(session).tree.register.slots.in_use == 0
