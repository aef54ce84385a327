"""Unusual ends of a tree (by a hook, two at once, an abandoned close), and how a runtime forgets ended trees."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from ramet.agent.definition import Agent
from ramet.core.errors import RametError, Unknown
from ramet.core.events import RunEnded
from ramet.core.limits import SpawnLimits
from ramet.core.outcome import Status
from ramet.host.runtime import AgentRuntime
from ramet.host.session import Session
from ramet.host.trees.manager import KEPT_TREES
from ramet.models.scripted.model import Call, Hang, ScriptedModel
from ramet.tools.context import current
from ramet.tools.spawn_request import SpawnRequest
from tests.support.waiting import eventually
from tests.trips.kits.sessions import (
    Gate,
    async_tool,
    background_call,
    follow_events,
    of_kind,
    open_tree_of,
    run_of,
    specialist_call,
)


class UncancellableTool:
    """A coroutine tool that ignores its cancel until the test lets it end."""

    def __init__(self) -> None:
        self.entered, self.free = asyncio.Event(), asyncio.Event()
        self.tool = async_tool(self.deaf)

    async def deaf(self) -> str:
        """Ignore everybody."""
        self.entered.set()
        while not self.free.is_set():
            with suppress(asyncio.CancelledError):
                await self.free.wait()
        return "came back late"


# --- by a hook


async def test_a_hook_that_stops_the_root_ends_its_children() -> None:
    """`{"continue": false}` ends the session's root permanently, and its background children with it."""

    def stop(payload: dict[str, Any]) -> Any:
        return {"continue": False, "stopReason": "enough"} if payload["tool_name"] == "gate" else None

    model = ScriptedModel({"toil": [Hang(3)], "": [background_call("toil", "kid"), Call("gate"), "never"]})
    async with Session(model, [Gate().tool], hooks={"PreToolUse": stop}) as session:
        result = await session.ask("Go.")
        kid = run_of(session, "kid")

        assert result.status is Status.CANCELLED
        assert kid.task is not None
        assert kid.task.done()
        assert {view.path: view.state for view in session.runs()} == {"main": "cancelled", "main/kid": "cancelled"}
        assert open_tree_of(session).tree.register.admission.slot_count == 0


async def test_a_hooks_stop_among_parallel_calls_cancels_the_run() -> None:
    """A hook stops one of two parallel calls: the run ends as cancelled for the hook's reason, not as failed."""
    other = asyncio.Event()

    async def gate(payload: dict[str, Any]) -> Any:
        if payload["tool_name"] == "one":
            await other.wait()
            return {"continue": False, "stopReason": "enough of that"}
        other.set()
        await asyncio.Event().wait()

    tools = [Gate("one").tool, Gate("two").tool]
    model = ScriptedModel([[Call("one"), Call("two")], "never"])
    async with Session(model, tools, hooks={"PreToolUse": gate}) as session:
        result = await session.ask("Go.")

    assert result.status is Status.CANCELLED
    assert result.error is not None
    assert "enough of that" in result.error.message


# --- several at once


async def test_a_cancel_during_an_interrupt_ends_the_session_permanently() -> None:
    """The interrupt still waits for a deaf tool when the cancel comes.

    Its reader gets a result, and the root has ended.
    """
    deaf = UncancellableTool()
    runtime = AgentRuntime(grace_s=0.05)
    async with Session(ScriptedModel([Call("deaf"), "never"]), [deaf.tool], runtime=runtime) as session:
        turn = asyncio.create_task(session.ask("Go."))
        await deaf.entered.wait()
        interrupting = asyncio.create_task(session.interrupt())
        await eventually(lambda: run_of(session, "main").turn.stop_result)

        receipt = await session.cancel("enough")

        assert receipt.left == ("main: its task ignores cancelling",)
        assert (await turn).status is Status.CANCELLED
        await interrupting
        assert not run_of(session, "main").is_living
        deaf.free.set()
        task = run_of(session, "main").task
        assert task is not None
        await asyncio.wait([task])
        assert not run_of(session, "main").is_living


async def test_a_cancelled_close_still_ends_the_session() -> None:
    """A cancel of the task that waits for `close` does not stop the close.

    The tree and its readers end, and `close` can be called again.
    """
    deaf = UncancellableTool()
    session = Session(ScriptedModel([Call("deaf"), "never"]), [deaf.tool])
    async with follow_events(session) as events:
        turn = asyncio.create_task(session.ask("Go."))
        await deaf.entered.wait()
        closing = asyncio.create_task(session.close())
        await eventually(lambda: run_of(session, "main").state.value == "stopping")
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing
        deaf.free.set()

        await session.close()  # Leaving this block waits for the reader of the events.

        assert (await turn).status is Status.CANCELLED
    assert isinstance(events[-1], RunEnded)
    assert session.runtime.trees == {}


async def test_stopping_a_runtime_waits_for_a_close_in_progress() -> None:
    """`stop` returns only after the session that another task is closing has ended."""
    deaf, runtime = UncancellableTool(), AgentRuntime()
    session = Session(ScriptedModel([Call("deaf"), "never"]), [deaf.tool], runtime=runtime)
    turn = asyncio.create_task(session.ask("Go."))
    await deaf.entered.wait()
    closing = asyncio.create_task(session.close())
    root = run_of(session, "main")
    await eventually(lambda: root.state.value == "stopping")
    stopping = asyncio.create_task(runtime.stop())
    for _ in range(20):
        await asyncio.sleep(0)
    assert not stopping.done()
    deaf.free.set()

    await stopping

    assert not root.is_living
    assert root.task is not None
    assert root.task.done()
    await asyncio.gather(closing, turn)


async def test_an_interrupted_spawn_leaves_no_admission_taken() -> None:
    """The interrupt comes after the child's admission, while its parent waits for a slot again."""
    first, second = Gate(), Gate("second")
    model = ScriptedModel(
        {
            "alfa": [Call("gate"), "done"],
            "xray": [Call("second"), "done"],
            "Go.": [
                [background_call("alfa", "a"), background_call("xray", "x")],
                specialist_call("bravo", "b"),
                "never",
            ],
            "": ["noted"],
        }
    )
    limits = SpawnLimits(children=2, running=1)
    async with Session(model, [first.tool, second.tool], spawn_limits=limits) as session:
        register = open_tree_of(session).tree.register
        turn = asyncio.create_task(session.ask("Go."))
        await eventually(lambda: first.calls and register.admission.queue_length)
        first.open.set()
        await eventually(lambda: second.calls and not register.admission.queue_length)
        assert register.admission.slot_count == 3

        await session.interrupt()

        assert (await turn).status is Status.CANCELLED
        assert register.admission.slot_count == len(list(register.living())) == 2


# --- what a runtime keeps


async def test_a_runtime_forgets_the_oldest_ended_trees() -> None:
    """A runtime closes each ended tree; it still has the results of the newest, and raises Unknown for the oldest."""

    async def work(number: int) -> int:
        return number

    async with AgentRuntime() as runtime:
        handles = []
        for number in range(KEPT_TREES + 20):
            handles.append(await runtime.spawn(work, args=(number,)))
            await handles[-1].result()
        await eventually(lambda: not runtime.trees)

        assert (await runtime.get(handles[-1].id).result()).value == KEPT_TREES + 19
        assert (await runtime.get(handles[20].id).result()).value == 20
        with pytest.raises(Unknown):
            runtime.get(handles[19].id)


async def test_a_stopped_runtime_refuses_spawns_and_sessions() -> None:
    """A stopped runtime raises RametError for a spawn and for a session until it is started again."""

    async def work() -> int:
        return 1

    runtime = AgentRuntime()
    await runtime.stop()

    with pytest.raises(RametError, match="stopped"):
        await runtime.spawn(work)
    with pytest.raises(RametError, match="stopped"):
        Session(ScriptedModel(["ok"]), runtime=runtime)
    async with runtime:
        assert (await (await runtime.spawn(work)).result()).value == 1


async def test_a_detached_run_keeps_the_tree_of_its_ended_root_open() -> None:
    """A function's detached child continues with tools and model; readers end with the child, not with the root."""
    gate = Gate()
    loner = Agent(name="loner", instructions="Alone.", model=ScriptedModel([Call("gate"), "found alone"]))

    async def root() -> str:
        context = current()
        assert context.tree is not None
        request = SpawnRequest(agent=loner, prompt="toil", detached=True, name="loner")
        return (await context.tree.spawn(context, request)).id

    async with AgentRuntime() as runtime:
        handle = await runtime.spawn(root, tools=[gate.tool])
        child = runtime.get((await handle.result()).value)
        reader = runtime.trees[handle.id].recorder.subscribe()
        reading = asyncio.create_task(_collect(reader.items))
        await gate.entered.wait()
        gate.open.set()

        assert (await child.result()).value == "found alone"
        assert [event.path for event in of_kind(await reading, RunEnded)] == ["main", "main/loner"]
        await eventually(lambda: not runtime.trees)
        assert (await runtime.get(child.id).result()).value == "found alone"


async def _collect(items: Callable[[], Any]) -> list[Any]:
    return [item async for item in items()]
