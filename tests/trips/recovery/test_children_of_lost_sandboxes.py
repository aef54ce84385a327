"""A conversation that starts again after the loss of its sandbox still receives the results of its children."""

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
from tests.trips.kits.sessions import Gate, background_call, specialist_call


def _is_spawn_of_the_child(event: Event) -> bool:
    return isinstance(event, RunSpawned) and event.depth == 1


def _is_end_of_the_child(event: Event) -> bool:
    return isinstance(event, RunEnded) and event.depth == 1


def _is_answer_to_its_call(event: Event) -> bool:
    return isinstance(event, MessageRecorded) and event.message["type"] == "tool"


async def test_a_child_of_an_interrupted_call_is_reported_once(tmp_path: pathlib.Path) -> None:
    """The parent receives one notice with the child's finding, which was already paid for.

    The child may have ended before the kill or not, and a second kill may follow.
    """
    plan: dict[str, Any] = {"": [[specialist_call("dig", "digger")], "done"], "dig": ["gold"]}
    types, policy = Project.open(None, user_dir=None), Policy(allow_sub_agents=True, memory_mb=1024, cpu_cores=2)
    undisturbed_store = MemoryStore()
    async with AgentRuntime(tmp_path, store=undisturbed_store, backend="local") as runtime:
        lead = Agent(name="lead", model=ScriptedModel(plan))
        await (await runtime.spawn(lead, "go", policy=policy, agents=types)).result()

    async def resume_after_kill(store: MemoryStore, moment: Callable[[Event], bool]) -> MemoryStore:
        cut_store = await cut_behind(store, moment)
        model = ScriptedModel({"": ["no news", "gold, it says"], "dig": ["gold"]})
        async with AgentRuntime(tmp_path, store=cut_store, backend="local") as runtime:
            [handle] = await runtime.resume(llm=model)
            await handle.result()
            texts = [each.text for each in handle.run.context.history]
        assert INTERRUPTED in texts
        assert len([each for each in texts if each.startswith("<task-notification") and "gold" in each]) == 1, texts
        return cut_store

    await resume_after_kill(undisturbed_store, _is_end_of_the_child)
    once = await resume_after_kill(undisturbed_store, _is_spawn_of_the_child)
    await resume_after_kill(once, _is_answer_to_its_call)
    await resume_after_kill(once, _is_end_of_the_child)


async def test_an_idle_parent_receives_the_end_of_a_child_just_before_the_kill() -> None:
    """The notice of a background child was not recorded before the kill.

    The parent that waits for that notice receives it before it ends.
    """
    store, gate, last_reply = MemoryStore(), Gate(), "done"
    plan: dict[str, Any] = {"": [[background_call("dig")], "waiting", last_reply], "dig": [[Call("gate")], "gold"]}
    async with AgentRuntime(store=store) as runtime:
        lead, types = Agent(name="lead", model=ScriptedModel(plan)), Project.open(None, user_dir=None)
        handle = await runtime.spawn(lead, "go", tools=[gate.tool], agents=types)
        await eventually(lambda: gate.calls and handle.run.state is State.IDLE)
        gate.open.set()
        await handle.result()

    cut_store = await cut_behind(store, _is_end_of_the_child)
    async with AgentRuntime(store=cut_store) as runtime:
        [resumed_handle] = await runtime.resume(llm=ScriptedModel([last_reply]), tools=[Gate().tool])
        assert (await resumed_handle.result()).value == last_reply
        assert "gold" in resumed_handle.run.context.history[-2].text
