"""The time of a run that can only wait for a decision does not count, also for the runs above it and after a kill."""

from __future__ import annotations

import asyncio
from typing import Any, cast

from langchain_core.tools import BaseTool, StructuredTool

from ramet import Agent, AgentRuntime, Limits
from ramet.concurrency.clock import FakeClock
from ramet.core.events import Event, TimeStarted, TimeStopped
from ramet.core.lifecycle import State
from ramet.core.outcome import Status
from ramet.host.trees.project import Project
from ramet.models.scripted.model import Call, ScriptedModel
from ramet.spawn.handle import Handle
from ramet.spawn.run import Run
from ramet.spawn.tree import RunTree
from ramet.store.memory import MemoryStore
from ramet.tools.context import current
from tests.support.waiting import eventually
from tests.trips.kits.sessions import Gate, background_call, specialist_call
from tests.trips.limits.test_resumed_time_limits import CLOCKS
from tests.trips.recovery.test_resume import lost_runtime


class Decision:
    """A tool whose run waits until the test decides, as a paused run does."""

    def __init__(self, name: str = "decide") -> None:
        self.made = asyncio.Event()
        self.tool: BaseTool = StructuredTool.from_function(
            coroutine=self._wait, name=name, description="Waits.", metadata={"concurrency_safe": True}
        )

    async def _wait(self) -> str:
        context = current()
        tree = cast(RunTree, context.tree)
        await tree.supervisor.time_stops.while_waiting(tree.register.runs[context.run.id], self.made.wait())
        return "decided"


def times_of(runtime: AgentRuntime, run: Run) -> list[type[Event]]:
    """Return the kinds of the recorded changes of a living run's time, in order."""
    [tree] = runtime.trees.values()
    kinds = (TimeStopped, TimeStarted)
    return [type(each) for each in tree.recorder.recent_events if isinstance(each, kinds) and each.run == run.info.id]


def run_below(handle: Handle, name: str) -> Run:
    """Return a run of the handle's tree by name."""
    return cast(RunTree, handle.run.context.tree).register.find(name)


async def lead(runtime: AgentRuntime, plan: Any, tools: list[BaseTool], seconds: float | None = None) -> Handle:
    """Start an agent that may start others."""
    agent = Agent(name="lead", model=ScriptedModel(plan))
    types = Project.open(None, user_dir=None)
    return await runtime.spawn(agent, "go", tools=tools, limits=Limits(seconds=seconds), agents=types)


async def test_time_that_stands_moves_the_end() -> None:
    """Ten seconds before a wait of an hour and 90 after it are the 100 that the run has."""
    clock, first, decision, gate = FakeClock(), Gate("first"), Decision(), Gate()
    async with AgentRuntime(clock=clock, grace_s=0.05) as runtime:
        plan = [[Call("first")], [Call("decide")], [Call("gate")], "never"]
        handle = await lead(runtime, plan, [first.tool, decision.tool, gate.tool], seconds=100)
        await first.entered.wait()
        await clock.advance(10)
        first.open.set()
        await eventually(lambda: handle.run.time_stopped_at is not None)
        assert handle.run.state is State.WAITING
        await clock.advance(3600)
        assert handle.run.seconds_left(clock.monotonic()) == 90

        decision.made.set()
        await gate.entered.wait()
        assert times_of(runtime, handle.run) == [TimeStopped, TimeStarted]
        await clock.advance(89)
        assert handle.run.is_living
        await clock.advance(1)
        await eventually(lambda: not handle.run.is_living)
        assert (await handle.result()).status is Status.TIMEOUT


async def test_the_time_of_a_run_that_waits_only_for_such_runs_stands() -> None:
    """The time goes on as soon as one run below works, and stands again when that run waits as well."""
    clock, decision, gate = FakeClock(), Decision(), Gate()
    plan = {
        "": [[background_call("sit", "busy"), specialist_call("think", "thinker")], "never"],
        "sit": [[Call("gate")], [Call("decide")], "done"],
        "think": [[Call("decide")], "done"],
    }
    async with AgentRuntime(clock=clock, grace_s=0.05) as runtime:
        handle = await lead(runtime, plan, [decision.tool, gate.tool], seconds=100)
        await gate.entered.wait()
        await eventually(lambda: run_below(handle, "thinker").state is State.WAITING)
        await clock.advance(60)
        assert handle.run.seconds_left(clock.monotonic()) == 40

        gate.open.set()
        await eventually(lambda: handle.run.time_stopped_at is not None)
        await clock.advance(3600)
        assert handle.run.seconds_left(clock.monotonic()) == 40
        await handle.cancel()
        assert (await handle.result()).status is Status.CANCELLED


async def test_the_time_of_a_run_that_pauses_at_a_limit_stands_with_that_of_the_run_above() -> None:
    """A child that waits for a raise of its limit, and its parent, have all their seconds afterwards."""
    clock, model = FakeClock(), ScriptedModel({"": [specialist_call("think"), "done"], "think": "thought"})
    agent = Agent(name="lead", model=model)
    types = Project.open(None, user_dir=None)
    async with AgentRuntime(clock=clock, grace_s=0.05) as runtime:
        limits = Limits(seconds=100, model_calls=1, at_limit="pause")
        handle = await runtime.spawn(agent, "go", limits=limits, agents=types)
        await eventually(lambda: handle.run.time_stopped_at is not None)
        await clock.advance(3600)
        assert [view.state for view in cast(RunTree, handle.run.context.tree).views()] == ["waiting", "paused"]
        assert handle.run.seconds_left(clock.monotonic()) == 100
        assert times_of(runtime, handle.run) == [TimeStopped]

        await handle.raise_limits(Limits(model_calls=2))
        assert (await handle.result()).value == "done"


async def test_the_time_of_a_run_that_also_waits_for_a_person_counts() -> None:
    """Only what no run and no person hastens makes it stand."""
    clock, decision = FakeClock(), Decision()
    async with AgentRuntime(clock=clock, grace_s=0.05) as runtime:
        plan = {"": [[specialist_call("think", "thinker")], "never"], "think": [[Call("decide")], "done"]}
        handle = await lead(runtime, plan, [decision.tool], seconds=100)
        await eventually(lambda: handle.run.time_stopped_at is not None)
        thinker = run_below(handle, "thinker")
        thinker.context.person_waits += 1
        cast(RunTree, handle.run.context.tree).supervisor.time_stops.update(thinker)
        assert times_of(runtime, handle.run) == [TimeStopped, TimeStarted]
        await clock.advance(100)
        await eventually(lambda: not handle.run.is_living)
        assert (await handle.result()).status is Status.TIMEOUT


async def test_an_idle_run_that_waits_for_such_a_child_has_its_time() -> None:
    """A run that has answered and waits for its background child ends at its limit only by time that counts."""
    clock, decision, gate = FakeClock(), Decision(), Gate()
    plan = {
        "": [[background_call("think", "thinker")], "it thinks", "never"],
        "think": [[Call("decide")], [Call("gate")], "done"],
    }
    async with AgentRuntime(clock=clock, grace_s=0.05) as runtime:
        handle = await lead(runtime, plan, [decision.tool, gate.tool], seconds=100)
        await eventually(lambda: handle.run.state is State.IDLE and handle.run.time_stopped_at is not None)
        await clock.advance(3600)
        decision.made.set()
        await gate.entered.wait()
        await clock.advance(99)
        assert handle.run.is_living
        await clock.advance(1)
        await eventually(lambda: not handle.run.is_living)
        assert (await handle.result()).status is Status.TIMEOUT


async def test_a_tree_without_a_time_limit_records_nothing() -> None:
    """There is no time that could stand."""
    clock, decision, gate = FakeClock(), Decision(), Gate()
    async with AgentRuntime(clock=clock) as runtime:
        handle = await lead(runtime, [[Call("decide")], [Call("gate")], "done"], [decision.tool, gate.tool])
        await eventually(lambda: handle.run.state is State.WAITING)
        decision.made.set()
        await gate.entered.wait()
        assert times_of(runtime, handle.run) == []
        gate.open.set()
        assert (await handle.result()).value == "done"


async def test_a_kernel_that_is_killed_while_the_time_stands_counts_none_of_it() -> None:
    """A run of 100 s works for 60 s, waits for a decision for an hour, and has 40 s left in the next kernel.

    The same holds for the run above it, which waits for it.
    """
    store = MemoryStore()
    plan: dict[str, Any] = {
        "": [[specialist_call("think", "thinker")], "never"],
        "think": [[Call("first")], [Call("decide")], [Call("gate")], "never"],
    }
    clock, first, decision, gate = FakeClock(CLOCKS[0]), Gate("first"), Decision(), Gate()
    async with lost_runtime(store, clock) as runtime:
        handle = await lead(runtime, plan, [first.tool, decision.tool, gate.tool], seconds=100)
        await first.entered.wait()
        await clock.advance(60)
        first.open.set()
        await eventually(lambda: handle.run.time_stopped_at is not None)
        await clock.advance(3600)

    clock, decision, gate = FakeClock(CLOCKS[1]), Decision(), Gate()
    async with AgentRuntime(store=store, clock=clock, grace_s=0.05) as runtime:
        [handle] = await runtime.resume(llm=ScriptedModel(plan), tools=[first.tool, decision.tool, gate.tool])
        assert runtime.journal is not None
        await gate.entered.wait()  # The call that was cut off is answered as interrupted.
        assert handle.run.seconds_left(clock.monotonic()) == 40
        await clock.advance(39)
        assert handle.run.is_living
        await clock.advance(1)
        await eventually(lambda: not handle.run.is_living)
        assert (await handle.result()).status is Status.TIMEOUT
        assert (await runtime.journal.replay(handle.id)).root.active_time.seconds == 100


async def test_an_idle_run_keeps_its_time_over_two_kills() -> None:
    """No turn begins in the later kernels. The days between them, on clocks that differ, are not its time."""
    store, plan = MemoryStore(), _idle_plan()
    for start, seconds in ((CLOCKS[0], 60), (CLOCKS[2], 20)):
        clock, gate, decision = FakeClock(start), Gate(), Decision()
        async with lost_runtime(store, clock) as runtime:
            handles = await runtime.resume(llm=ScriptedModel(plan), tools=[gate.tool, decision.tool])
            handle = handles[0] if handles else await lead(runtime, plan, [gate.tool, decision.tool], seconds=100)
            await gate.entered.wait()
            await eventually(lambda: handle.run.state is State.IDLE)  # noqa: B023  # of this round
            await clock.advance(seconds)
            gate.open.set()
            await eventually(lambda: handle.run.time_stopped_at is not None)  # noqa: B023  # of this round
            await clock.advance(3600)

    clock, gate, decision = FakeClock(CLOCKS[1]), Gate(), Decision()
    async with AgentRuntime(store=store, clock=clock, grace_s=0.05) as runtime:
        [handle] = await runtime.resume(llm=ScriptedModel(plan), tools=[gate.tool, decision.tool])
        await gate.entered.wait()
        assert handle.run.seconds_left(clock.monotonic()) == 20
        await handle.cancel()


def _idle_plan() -> dict[str, Any]:
    """Return the replies of an agent that waits, idle, for a child that works and waits for decisions in turn."""
    steps = [[Call("gate")], [Call("decide")]]
    return {"": [[background_call("think", "thinker")], "it thinks"], "think": [*steps, *steps, *steps]}
