"""A conversation that begins anew, since its sandbox was lost with its kernel, hears of the children that it had."""

from __future__ import annotations

import pathlib
from collections.abc import Callable
from typing import Any

from ramet import Agent, AgentRuntime, Policy
from ramet.agent.history.pairing import INTERRUPTED
from ramet.core.events import Event, MessageRecorded, RunEnded, RunSpawned
from ramet.core.lifecycle import State
from ramet.host.trees.project import Project
from ramet.models.scripted.model import Call, ScriptedModel
from ramet.store.memory import MemoryStore
from tests.support.cut_journals import cut_behind
from tests.support.waiting import eventually
from tests.trips.kits.sessions import Gate, background, fresh


def _is_birth_of_the_child(event: Event) -> bool:
    return isinstance(event, RunSpawned) and event.depth == 1


def _is_end_of_the_child(event: Event) -> bool:
    return isinstance(event, RunEnded) and event.depth == 1


def _is_answer_to_its_call(event: Event) -> bool:
    return isinstance(event, MessageRecorded) and event.message["type"] == "tool"


async def test_a_child_whose_call_was_cut_off_is_told_of_once(tmp_path: pathlib.Path) -> None:
    """Whether it had ended by then or not, and after another kill: what it found was paid for, and is not lost."""
    plan: dict[str, Any] = {"": [[fresh("dig", "digger")], "done"], "dig": ["gold"]}
    types, policy = Project.open(None, user_dir=None), Policy(allow_sub_agents=True, memory_mb=1024, cpu_cores=2)
    undisturbed = MemoryStore()
    async with AgentRuntime(tmp_path, store=undisturbed, backend="local") as runtime:
        lead = Agent(name="lead", model=ScriptedModel(plan))
        await (await runtime.spawn(lead, "go", policy=policy, agents=types)).result()

    async def told_after_a_kill(store: MemoryStore, moment: Callable[[Event], bool]) -> MemoryStore:
        left = await cut_behind(store, moment)
        model = ScriptedModel({"": ["no news", "gold, it says"], "dig": ["gold"]})
        async with AgentRuntime(tmp_path, store=left, backend="local") as runtime:
            [again] = await runtime.resume(llm=model)
            await again.result()
            texts = [each.text for each in again.run.context.history]
        assert INTERRUPTED in texts
        assert len([each for each in texts if each.startswith("<task-notification") and "gold" in each]) == 1
        return left

    await told_after_a_kill(undisturbed, _is_end_of_the_child)
    once = await told_after_a_kill(undisturbed, _is_birth_of_the_child)
    await told_after_a_kill(once, _is_answer_to_its_call)
    await told_after_a_kill(once, _is_end_of_the_child)


async def test_who_rests_hears_of_a_child_that_ended_just_before_the_kill() -> None:
    """In the background, and its notice was on no record: whoever waits for that does not end without it."""
    store, gate, heard = MemoryStore(), Gate(), "done"
    plan: dict[str, Any] = {"": [[background("dig")], "waiting", heard], "dig": [[Call("gate")], "gold"]}
    async with AgentRuntime(store=store) as runtime:
        lead, types = Agent(name="lead", model=ScriptedModel(plan)), Project.open(None, user_dir=None)
        handle = await runtime.spawn(lead, "go", tools=[gate.tool], agents=types)
        await eventually(lambda: gate.calls and handle.run.state is State.IDLE)
        gate.open.set()
        await handle.result()

    left = await cut_behind(store, _is_end_of_the_child)
    async with AgentRuntime(store=left) as runtime:
        [again] = await runtime.resume(llm=ScriptedModel([heard]), tools=[Gate().tool])
        assert (await again.result()).value == heard
        assert "gold" in again.run.context.history[-2].text
