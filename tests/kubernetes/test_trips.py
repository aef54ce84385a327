"""The three trips of the design, with pods: a sub-agent of a model, a child of a function, and a scheduled run."""

from __future__ import annotations

import asyncio
import itertools
import os
from contextlib import aclosing
from pathlib import Path

import pytest
from lightkube.resources.core_v1 import Pod

from ramet import Agent, AgentRuntime, AgentScheduler, Limits, Policy, ScriptedModel, Session, workspace_tools
from ramet.core.events import Event, RunEnded, SandboxStarted, ToolEnded
from ramet.core.outcome import Status
from ramet.models.scripted.dialogue import Call
from tests.support.pods import Pods
from tests.support.waiting import eventually
from tests.trips.agents import isolated as agents
from tests.trips.kits.isolated import marked_processes

pytestmark = [pytest.mark.kubernetes, pytest.mark.timeout(600)]  # the first test makes images

_marks = itertools.count()


async def test_trip_a_a_models_sub_agent_works_in_a_pod(runtime: AgentRuntime, scratch: Path) -> None:
    """Prompt → loop → Agent tool → sub-agent in a pod, which reads the session's folder → result; each call counts."""
    folder = scratch / "folder"
    folder.mkdir()
    (folder / "api.ts").write_text("timeout: 3000\n")
    reader = Agent(name="reader", description="Reads files", instructions="Read.")
    model = ScriptedModel(
        {
            "Why?": [Call("Agent", {"subagent_type": "reader", "prompt": "Look into api.ts"}), "Because of 3000."],
            "Look into api.ts": [Call("Read", {"file_path": "api.ts"}), "It says 3000."],
            "Again?": [Call("Agent", {"subagent_type": "reader", "prompt": "on and on"}), "enough"],
            "on and on": [Call("Glob", {"pattern": "*"}) for _ in range(20)],
        }
    )
    limits, policy = Limits(model_calls=9), Policy(memory_mb=256, readonly_mounts=(str(folder),))
    async with Session(
        model, workspace_tools(), agents=[reader], runtime=runtime, cwd=folder, limits=limits, policy=policy,
        unattended=True,
    ) as talk:  # fmt: skip
        assert (await talk.ask("Why?")).value == "Because of 3000."
        events = [event async for event in talk.handle("main/1").events()]
        assert talk.usage.model_calls == 4
        exhausted = await talk.ask("Again?")
        assert (exhausted.status, talk.usage.model_calls) == (Status.BUDGET_EXHAUSTED, 9)

    assert [each.backend for each in events if isinstance(each, SandboxStarted)] == ["kubernetes"]
    [read] = [each for each in events if isinstance(each, ToolEnded)]
    assert (read.status, "timeout: 3000" in read.preview) == ("ok", True)


async def test_trip_b_a_functions_child_has_a_pod_of_its_own(runtime: AgentRuntime, pods: Pods) -> None:
    """run_agent → pod → spawn_sub_agent → another pod → value and files; a cancel ends all pods below it."""
    may = Policy(allow_sub_agents=True, memory_mb=512, cpu_cores=2)
    handle = await runtime.start_agent(
        agents.spawn, may, (agents.leave, {"memory_mb": 128}, ({"child.txt": "of the child"},))
    )
    result = await handle.result()
    assert result.status == "completed", result.error
    assert (result.output["output"], result.output["exit_code"]) == (1, 0)
    assert result.output["artifacts"] == {"child.txt": "of the child"}
    assert result.usage.agents == 1

    mark = f"pods-{os.getpid()}-{next(_marks)}"
    handle = await runtime.start_agent(agents.subtree, may, (mark, 2))
    await eventually(lambda: len(marked_processes(mark)) == 2)
    assert len(await pods.names()) == 2
    await handle.cancel("no longer needed")
    assert marked_processes(mark) == []
    assert (await handle.result()).status == "cancelled"


async def test_a_pod_deleted_during_a_run_loses_this_run_alone(runtime: AgentRuntime, pods: Pods) -> None:
    """The error says that the pod was deleted, and not by this kernel. The next run gets its own pod."""
    mark = f"pods-{os.getpid()}-{next(_marks)}"
    handle = await runtime.start_agent(agents.subtree, Policy(memory_mb=128), (mark, 0))
    await eventually(lambda: len(marked_processes(mark)) == 1)
    async with pods.cluster.client(pods.namespace) as kube:
        [pod] = await pods.names()
        await kube.delete(Pod, pod, grace_period=0)
    result = await handle.result()
    assert (result.status, result.error and result.error.type) == (Status.LOST, "SandboxLost")
    assert result.error is not None
    assert result.error.message == f"pod {pod} was deleted, and not by this kernel"
    assert (await runtime.run_agent(agents.square, Policy(memory_mb=128), (14,))).output == 196


async def test_trip_c_a_schedule_fires_in_a_pod_and_is_followed(runtime: AgentRuntime) -> None:
    """Schedule → run in a pod → journal → a follower sees all events to the end; the schedule knows the result."""
    async with AgentScheduler(runtime) as scheduler:
        view = await scheduler.schedule_agent_in(0, agents.square, args=[14], policy=Policy(memory_mb=128))
        async with asyncio.timeout(180):
            while not (results := await scheduler.results(view.id)) or results[0].run is None:  # noqa: ASYNC110
                await asyncio.sleep(0.005)
        seen: list[Event] = []
        async with aclosing(runtime.get(results[0].run).events()) as events:
            async for event in events:
                seen.append(event)
        async with asyncio.timeout(180):
            while (result := (await scheduler.results(view.id))[0]).ended is None:  # noqa: ASYNC110
                await asyncio.sleep(0.005)

    assert (result.status, result.text) == ("completed", "196")
    assert [each.backend for each in seen if isinstance(each, SandboxStarted)] == ["kubernetes"]
    assert isinstance(seen[-1], RunEnded)
    assert [each.seq for each in seen] == sorted({each.seq for each in seen})
