"""Pauses at their edges: cancelled at the last moment, in work that itself waits, in other threads, after a kill."""

from __future__ import annotations

import asyncio
import pathlib
import threading
from typing import Any

from langchain_core.messages import BaseMessage, ToolMessage
from langchain_core.runnables import RunnableLambda
from langchain_core.tools import tool

from ramet import (
    Agent,
    AgentRuntime,
    Limits,
    Policy,
    ScriptedModel,
    Session,
    SpawnLimits,
    SpawnRequest,
    Status,
    workspace_tools,
)
from ramet.agent.adopted.adopt import adopt
from ramet.concurrency.clock import FakeClock
from ramet.core.events import LimitPaused
from ramet.models.scripted.dialogue import Call, ReplyStep
from ramet.store.memory import MemoryStore
from ramet.tools.context import current
from tests.support.waiting import eventually
from tests.trips.kits.sessions import Gate, has_no_reservation, of_kind, run_of, session_events, specialist_call
from tests.trips.recovery.test_resume import lost_runtime


@tool
async def look(where: str) -> str:
    """Look somewhere."""
    return f"nothing in {where}"


def states(session: Session[Any]) -> dict[str, str]:
    return {view.path: view.state for view in session.runs()}


async def test_a_waiter_that_is_cancelled_as_it_is_served_leaves_no_hold() -> None:
    """The raise and the interrupt come in the same step of the event loop."""
    model = ScriptedModel([Call("look", {"where": "a"}), Call("look", {"where": "b"}), "done"])
    async with Session(model, [look], limits=Limits(tool_calls=1, at_limit="pause"), spawn=False) as session:
        turn = asyncio.create_task(session.ask("Go."))
        await eventually(lambda: states(session) == {"main": "paused"})
        await session.raise_limits(Limits(tool_calls=1))
        await session.interrupt()
        assert (await turn).status is Status.CANCELLED
        await asyncio.sleep(0)
        assert has_no_reservation(session)
        assert session.context.budget.remaining("tool_calls") == 1


async def leaf() -> str:
    return "leaf"


async def test_a_birth_that_waits_for_room_does_not_hide_that_its_tree_is_paused() -> None:
    """The birth holds the agent for which the only living child waits: only a raise helps, and everybody sees that."""

    async def digger(gate: asyncio.Event) -> str:
        context = current()
        assert context.tree is not None
        await gate.wait()
        handle = await context.tree.spawn(context, SpawnRequest(agent=leaf))
        return str((await handle.result()).value)

    async def boss() -> list[str]:
        context, gate = current(), asyncio.Event()
        assert context.tree is not None
        first = await context.tree.spawn(context, SpawnRequest(agent=digger, args=(gate,)))
        second = asyncio.ensure_future(context.tree.spawn(context, SpawnRequest(agent=leaf)))
        await eventually(lambda: context.budget.reserved_amount("agents") == 1)
        gate.set()
        return [(await first.result()).value, (await (await second).result()).value]

    async with AgentRuntime() as runtime:
        limits, shape = Limits(agents=2, at_limit="pause"), SpawnLimits(children=1)
        handle = await runtime.spawn(boss, limits=limits, spawn_limits=shape)
        [opened] = runtime.trees.values()
        await eventually(lambda: [str(view.state) for view in opened.tree.views()] == ["waiting", "paused"])
        await handle.raise_limits(Limits(agents=1))
        assert (await handle.result()).value == ["leaf", "leaf"]


async def test_calls_of_a_sandboxed_reply_that_wait_for_their_turn_do_not_hide_a_pause(tmp_path: pathlib.Path) -> None:
    """The second call of the root has the hold for which its child waits in the first one."""
    dig = specialist_call("Dig.")
    model = ScriptedModel(
        {"Go.": [[dig, Call("Glob", {"pattern": "a"})], "all done"], "Dig.": [Call("Glob", {"pattern": "b"}), "dug"]}
    )
    async with AgentRuntime(tmp_path, backend="local") as runtime:
        session = Session(
            model,
            workspace_tools(),
            runtime=runtime,
            root_policy=Policy(allow_sub_agents=True),
            unattended=True,
            limits=Limits(tool_calls=2, at_limit="pause"),
        )
        result = await session.ask("Go.", on_pause="return")
        assert (result.status, result.error is not None and result.error.scope) == (Status.PAUSED, "main")
        await session.raise_limits(Limits(tool_calls=1))
        final = await session.wait_for_turn()
        assert final is not None
        assert final.value == "all done"


async def test_many_requests_of_a_run_at_two_limits_record_two_pauses() -> None:
    """Each raise changes who waits; the record does not grow with that."""
    children = [specialist_call(f"part {number}") for number in range(4)]
    looks = [Call("look", {"where": str(number)}) for number in range(4)]

    def reply(messages: list[BaseMessage]) -> ReplyStep:
        if any(isinstance(message, ToolMessage) for message in messages) or messages[-1].text != "Go.":
            return "done"
        return [*children, *looks]

    look.metadata = {"concurrency_safe": True}
    async with Session(
        ScriptedModel(reply), [look], limits=Limits(tool_calls=5, agents=1, at_limit="pause")
    ) as session:
        turn = asyncio.create_task(session.ask("Go."))
        await eventually(lambda: len(run_of(session, "main").pauses.limit_waits) == 6)
        for _ in range(3):
            await session.raise_limits(Limits(tool_calls=1, agents=1))
        await turn
        pauses = [each.resource for each in of_kind(session_events(session), LimitPaused)]
        assert sorted(set(pauses)) == ["agents", "tool_calls"]
        assert len(pauses) <= 4


async def test_the_result_of_a_paused_turn_is_told_once() -> None:
    """Mail begins another turn afterwards: who waits then waits for that one."""
    gate = Gate()
    model = ScriptedModel(["one", Call("gate"), "two"])
    limits = Limits(model_calls=0, at_limit="pause")
    async with Session(model, [gate.tool], limits=limits, spawn=False) as session:
        assert (await session.ask("Go.", on_pause="return")).status is Status.PAUSED
        await session.raise_limits(Limits(model_calls=5))
        first = await session.wait_for_turn()
        assert first is not None
        assert first.value == "one"
        session.send("And now?")
        await gate.entered.wait()
        waiting = asyncio.create_task(session.wait_for_turn())
        gate.open.set()
        second = await waiting
        assert second is not None
        assert second.value == "two"


async def test_a_thread_of_an_adopted_agent_asks_nothing_after_its_run_was_cancelled() -> None:
    """The wait of the thread ends with the run: a later raise is for others."""
    asked: list[str] = []

    def reply(messages: list[BaseMessage]) -> str:
        asked.append(str(messages[-1].text))
        return "said"

    model = ScriptedModel(reply)
    entered = threading.Event()

    def work(text: str, config: Any) -> str:
        entered.set()
        return str(model.invoke("from a thread", config).text)

    agent = adopt(RunnableLambda(work), name="legacy")
    async with Session(ScriptedModel(reply), limits=Limits(model_calls=0, at_limit="pause")) as session:
        handle = await session.spawn(SpawnRequest(prompt="Go.", agent=agent))
        await eventually(lambda: session.context.budget.waiting is not None)
        await handle.cancel()
        assert session.context.budget.waiting is None
        await session.raise_limits(Limits(model_calls=1))
        assert (await session.ask("hello")).value == "said"
    assert asked == ["hello"]


async def test_a_paused_conversation_in_a_sandbox_holds_no_slot_after_a_kill(tmp_path: pathlib.Path) -> None:
    """The next process finds it paused, as it was: no slot, no process, and its time stands."""
    store, clock = MemoryStore(), FakeClock()
    where: dict[str, Any] = {"working_dir": tmp_path, "backend": "local", "store": store}
    agent = Agent(name="slow", model=ScriptedModel(["never"]))
    limits = Limits(model_calls=0, at_limit="pause")
    async with lost_runtime(clock=clock, **where) as runtime:
        handle = await runtime.spawn(agent, "go", policy=Policy(timeout_seconds=100), limits=limits)
        await eventually(lambda: handle.run.time_stopped_at is not None)

    clock, model = FakeClock(clock.now()), ScriptedModel(["There."])
    async with AgentRuntime(clock=clock, **where) as runtime:
        [handle] = await runtime.resume(llm=model)
        await eventually(lambda: handle.view().state == "paused" and handle.run.time_stopped_at is not None)
        assert not handle.run.context.slot.is_held
        assert handle.run.sandbox.current is None
        await clock.advance(3_600)
        await handle.raise_limits(Limits(model_calls=1))
        assert (await handle.result()).value == "There."
    assert len(model.requests) == 1
