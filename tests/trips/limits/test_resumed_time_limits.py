"""A kernel that resumes a run does not give its time, calls and turns a second time."""

from __future__ import annotations

import pathlib
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from ramet import Agent, AgentRuntime, Limits, Policy
from ramet.concurrency.clock import FakeClock
from ramet.core.events import Event, MessageRecorded
from ramet.core.lifecycle import State
from ramet.core.outcome import Status
from ramet.host.trees.project import Project
from ramet.models.scripted.model import Call, ScriptedModel
from ramet.store.memory import MemoryStore
from ramet.tools.workspace import workspace_tools
from tests.support.cut_journals import cut_behind
from tests.support.waiting import eventually
from tests.trips.kits.sessions import Gate, background_call
from tests.trips.recovery.test_resume import lost_runtime

#: Of three machines whose clocks are days apart.
CLOCKS = (datetime(2026, 1, 2, tzinfo=UTC), datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 1, 9, tzinfo=UTC))


async def test_a_resumed_run_has_only_its_remaining_time() -> None:
    """A run of 100 s spends 60 s and 30 s under two killed kernels. Pauses and differing clocks do not count."""
    store = MemoryStore()
    for start, seconds in zip(CLOCKS[:2], (60, 30), strict=True):
        clock, gates = FakeClock(start), (Gate("first"), Gate("second"))
        model, tools = ScriptedModel([[Call("first")], [Call("second")], "never"]), [each.tool for each in gates]
        async with lost_runtime(store, clock) as runtime:
            if not await runtime.resume(llm=model, tools=tools):
                await runtime.spawn(Agent(name="slow", model=model), "go", tools=tools, limits=Limits(seconds=100))
            await gates[0].entered.wait()
            await clock.advance(seconds)
            gates[0].open.set()
            await gates[1].entered.wait()

    clock, gates = FakeClock(CLOCKS[2]), (Gate("first"), Gate("second"))
    async with AgentRuntime(store=store, clock=clock, grace_s=0.05) as runtime:
        model, tools = ScriptedModel([[Call("first")], "never"]), [each.tool for each in gates]
        [handle] = await runtime.resume(llm=model, tools=tools)
        await gates[0].entered.wait()
        await clock.advance(9)
        assert handle.run.is_living
        await clock.advance(1)
        await eventually(lambda: not handle.run.is_living)
        assert (await handle.result()).status is Status.TIMEOUT


class SettableClock(FakeClock):
    """A fake clock whose time of day a test can set."""

    def set_on(self, seconds: float) -> None:
        """Set the time of day forward, or back."""
        self._start += timedelta(seconds=seconds)


@pytest.mark.parametrize("step", [86_400, -86_400], ids=["a day on", "a day back"])
async def test_setting_the_clock_does_not_change_a_run_s_remaining_time(step: float) -> None:
    """A machine's clock is set while a run of 100 s spends 60 s. The next kernel gives the other 40 s."""
    store, clock, gates = MemoryStore(), SettableClock(), (Gate("first"), Gate("second"))
    model, tools = ScriptedModel([[Call("first")], [Call("second")], "never"]), [each.tool for each in gates]
    async with lost_runtime(store, clock) as runtime:
        await runtime.spawn(Agent(name="slow", model=model), "go", tools=tools, limits=Limits(seconds=100))
        await gates[0].entered.wait()
        await clock.advance(30)
        clock.set_on(step)
        await clock.advance(30)
        gates[0].open.set()
        await gates[1].entered.wait()

    clock, gates = SettableClock(), (Gate("first"), Gate("second"))
    async with AgentRuntime(store=store, clock=clock, grace_s=0.05) as runtime:
        model, tools = ScriptedModel([[Call("first")], "never"]), [each.tool for each in gates]
        [handle] = await runtime.resume(llm=model, tools=tools)
        await gates[0].entered.wait()
        await clock.advance(39)
        assert handle.run.is_living
        await clock.advance(1)
        await eventually(lambda: not handle.run.is_living)
        assert (await handle.result()).status is Status.TIMEOUT


async def test_the_time_of_an_idle_run_continues_after_a_kill() -> None:
    """A run that waits for a background child ends at its time limit, although it begins no turn any more."""
    store, limits = MemoryStore(), Limits(seconds=10)
    plan: dict[str, Any] = {
        "": [[background_call("sit", "child")], "it is at work"],
        "sit": [[Call("gate")], [Call("gate")], "never"],
    }
    gate, model = Gate(), ScriptedModel(plan)
    async with lost_runtime(store, FakeClock()) as runtime:
        lead, types = Agent(name="lead", model=model), Project.open(None, user_dir=None)
        handle = await runtime.spawn(lead, "go", tools=[gate.tool], limits=limits, agents=types)
        await gate.entered.wait()
        await eventually(lambda: handle.run.state is State.IDLE)

    clock, gate = FakeClock(), Gate()
    async with AgentRuntime(store=store, clock=clock, grace_s=0.05) as runtime:
        [resumed_handle] = await runtime.resume(llm=model, tools=[gate.tool])
        await gate.entered.wait()
        await clock.advance(10)
        await eventually(lambda: not resumed_handle.run.is_living)
        assert (await resumed_handle.result()).status is Status.TIMEOUT


def _is_reply(event: Event) -> bool:
    return isinstance(event, MessageRecorded) and event.step_id is not None


async def test_calls_granted_to_a_lost_sandbox_count(tmp_path: pathlib.Path) -> None:
    """The sandbox ended with its kernel and may have made the calls, so no more calls are granted than the limit."""
    store, note = MemoryStore(), Call("Read", {"file_path": "note"})
    settings: dict[str, Any] = {"policy": Policy(), "limits": Limits(tool_calls=2), "tools": workspace_tools()}
    async with AgentRuntime(tmp_path / "one", store=store, backend="local") as runtime:
        reader = Agent(name="reader", model=ScriptedModel([[note, note], "done"]))
        first = await (await runtime.spawn(reader, "go", **settings)).result()
    cut_store = await cut_behind(store, _is_reply)
    async with AgentRuntime(tmp_path / "two", store=cut_store, backend="local") as runtime:
        model = ScriptedModel([[note], "a last word"])
        [handle] = await runtime.resume(llm=model, tools=workspace_tools())
        result = await handle.result()
        assert runtime.journal is not None
        replayed_tree = await runtime.journal.replay(handle.id)

    assert first.usage.tool_calls == result.usage.tool_calls == replayed_tree.root.usage.tool_calls == 2
    assert (result.status, result.partial) == (Status.BUDGET_EXHAUSTED, "a last word")


@pytest.mark.parametrize("policy", [None, Policy()], ids=["host", "sandbox"])
async def test_a_resumed_run_has_only_its_remaining_turns(tmp_path: pathlib.Path, policy: Policy | None) -> None:
    """Two of three turns happened under the killed kernel, so the third is the last."""
    store, note = MemoryStore(), Call("Read", {"file_path": "note"})
    settings: dict[str, Any] = {"policy": policy, "tools": workspace_tools()}
    async with AgentRuntime(tmp_path / "one", store=store, backend="local") as runtime:
        reader = Agent(name="reader", model=ScriptedModel([[note], [note], "done"]), max_turns=3)
        assert (await (await runtime.spawn(reader, "go", **settings)).result()).value == "done"
    cut_store = await cut_behind(store, lambda event: isinstance(event, MessageRecorded) and bool(event.call_id), 2)
    async with AgentRuntime(tmp_path / "two", store=cut_store, backend="local") as runtime:
        model = ScriptedModel([[note], "never"])
        [handle] = await runtime.resume(llm=model, tools=workspace_tools())
        result = await handle.result()

    assert result.status is Status.BUDGET_EXHAUSTED, result.value
    assert result.error is not None
    assert "max_turns" in result.error.message
    assert len(model.requests) == 1
