"""A pod is deleted during a model's turn: the turn ends as its policy says, and each child ends once."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from langchain_core.tools import tool
from lightkube.resources.core_v1 import Pod

from ramet import Agent, AgentRuntime, Policy, ScriptedModel, Session
from ramet.core.events import RunEnded, RunRetried, RunSpawned, SandboxStarted, ToolEnded, ToolStarted
from ramet.core.outcome import Status
from ramet.core.replay.replay import TreeReplay
from ramet.isolation.kubernetes.api import labels
from ramet.models.scripted.dialogue import Call
from tests.support.pods import Pods
from tests.support.waiting import eventually
from tests.trips.kits.sessions import has_no_reservation, of_kind, run_of, session_events

pytestmark = [pytest.mark.kubernetes, pytest.mark.timeout(600)]  # the first test makes images


@tool
async def nap() -> str:
    """Sleep for an hour."""
    await asyncio.sleep(3600)
    return "rested"


@pytest.mark.parametrize("retries", [0, 1])
async def test_a_models_turn_whose_pod_is_deleted_is_lost_or_retried(
    retries: int, runtime: AgentRuntime, pods: Pods, scratch: Path
) -> None:
    """The turn has an active tool and child. It is lost, or continues in a new pod, and its child ends once."""
    worker = Agent(name="worker", description="Works", instructions="Work.")
    helper = Agent(name="helper", description="Helps", instructions="Help.")
    begun = Call("Agent", {"subagent_type": "helper", "prompt": "Count.", "run_in_background": True})
    attempts: list[Call | str] = [begun, "Worked."]
    model = ScriptedModel(
        {
            "Go.": [Call("Agent", {"subagent_type": "worker", "prompt": "Work."}), "I saw."],
            "Work.": [lambda _: attempts.pop(0), Call("nap")],
            "Count.": [Call("nap")],
        }
    )
    policy = Policy(memory_mb=256, allow_sub_agents=True, retry_count=retries, retry_delay_seconds=0.0)
    async with Session(
        model, [nap], agents=[worker, helper], runtime=runtime, cwd=scratch, policy=policy, unattended=True
    ) as talk:
        asking = asyncio.create_task(talk.ask("Go."))
        try:
            await eventually(
                lambda: len([each for each in of_kind(session_events(talk), ToolStarted) if each.tool == "nap"]) == 2
            )
            async with pods.cluster.client(pods.namespace) as kube:
                [pod] = [each async for each in kube.list(Pod, labels={labels.RUN: run_of(talk, "main/1").info.id})]
                assert pod.metadata is not None
                marked, pod_annotations = pod.metadata.labels or {}, pod.metadata.annotations or {}
                assert (marked[labels.TREE], pod_annotations[labels.NAME]) == (talk.id, "main/1")
                await kube.delete(Pod, str(pod.metadata.name), grace_period=0)
            assert (await asking).value == "I saw."
        finally:
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)
        events, worked = (
            session_events(talk),
            TreeReplay().apply_all(session_events(talk)).runs[run_of(talk, "main/1").info.id],
        )
        history = [each.type for each in run_of(talk, "main/1").context.history]
        assert has_no_reservation(talk)

    words = f"pod {pod.metadata.name} was deleted, and not by this kernel"
    assert [(each.path, each.status, each.reason) for each in of_kind(events, RunRetried)] == [
        ("main/1", Status.LOST, words)
    ] * retries
    [ended] = [each.result for each in of_kind(events, RunEnded, "main/1")]
    if retries:
        assert ([each.kind for each in worked.conversation], worked.started_calls) == (history, {})
        assert (ended.status, ended.value) == (Status.COMPLETED, "Worked.")
    else:
        assert ended.error is not None
        assert (ended.status, ended.error.type, ended.error.message) == (Status.LOST, "SandboxLost", words)
    assert sorted(each.path for each in of_kind(events, SandboxStarted)) == ["main/1"] * (1 + retries) + ["main/1/1"]
    assert sorted(each.path for each in of_kind(events, RunSpawned)) == ["main", "main/1", "main/1/1"]
    assert [each.result.status for each in of_kind(events, RunEnded, "main/1/1")] == [Status.CANCELLED]
    assert [(each.tool, each.status) for each in of_kind(events, ToolEnded, "main/1/1")] == [("nap", "cancelled")]
