"""A pod outlives its kernel, and another kernel continues the run in it."""

from __future__ import annotations

import asyncio
import signal
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from lightkube.resources.core_v1 import Pod, Secret

from ramet.core.errors import Gone
from ramet.core.events import Event, RunEnded, RunSpawned, SandboxStarted
from ramet.core.replay.replay import TreeReplay
from ramet.isolation.contract import Image
from ramet.isolation.kubernetes import reaper
from ramet.isolation.kubernetes.api import labels
from ramet.isolation.kubernetes.kernels import KernelIdentity
from ramet.isolation.kubernetes.placement.sandbox import PodSandbox
from tests.chaos.checks import not_started, read_events
from tests.chaos.deadly import Kill
from tests.chaos.functions import RUNS
from tests.chaos.kernels import start
from tests.chaos.talking import CALLS, CONVERSED
from tests.support.left_pods import REMAINING_REQUESTS, FunctionConversation, abandon_function, spec_of, start_function
from tests.support.pods import HOST, IMAGES, NAMESPACE, PATIENCE_S, Pods

pytestmark = [pytest.mark.kubernetes, pytest.mark.timeout(600)]  # a first push compiles all of the library

_KINDS: tuple[Image, ...] = ("bare", "llm")


async def list_run_objects(pods: Pods) -> list[tuple[str, str]]:
    """Return the owner and the name of each pod and each Secret of a run."""
    async with pods.cluster.client(pods.namespace) as kube:
        found = [each.metadata async for each in kube.list(Pod)]
        found += [each.metadata async for each in kube.list(Secret, labels={labels.MANAGED: labels.OURS})]
    return [((each.labels or {})[labels.OWNER], each.name or "") for each in found if each is not None]


async def wait_until_nothing_is_left(pods: Pods) -> None:
    """Wait until no pod and no Secret of a run is left: the cluster removes a Secret some time after its pod."""
    async with asyncio.timeout(180):
        while await list_run_objects(pods):  # noqa: ASYNC110 - it is another's to say
            await asyncio.sleep(0.05)


async def test_a_run_continues_in_its_pod_after_its_kernel_was_killed(pods: Pods, scratch: Path) -> None:
    """Another kernel adopts the pod and its Secret, and receives only the requests that have no answer yet."""
    runs = scratch / "runs"
    with abandon_function(pods, runs) as (description, number):
        before = await list_run_objects(pods)
        assert {name for _, name in before} == {description["pod"]}
        async with pods.dialled(runs) as (backend, _):
            assert [each for each in await backend.reap() if not each.startswith("policy ")] == []
            sandbox = await backend.adopt(description, spec_of(runs))
            assert sandbox.describe() == description, "a run is known by it from kernel to kernel"
            assert {(backend.marks.owner, name) for _, name in before} == set(await list_run_objects(pods))
            talk = FunctionConversation(sandbox)
            assert await talk.asked() == number
            with pytest.raises(Gone, match="is in use"):
                await backend.adopt(description, spec_of(runs))
            assert await talk.finish(number) == REMAINING_REQUESTS
            assert (await sandbox.wait()).code == 0
            await sandbox.clean_up()
            await wait_until_nothing_is_left(pods)
            with pytest.raises(Gone, match="no longer exists"):
                await backend.adopt(description, spec_of(runs))


async def test_only_one_of_two_kernels_adopts_a_pod(pods: Pods, scratch: Path) -> None:
    """A second kernel that adopts the pod at the same time is refused, and leaves the pod running when it closes."""
    runs = scratch / "runs"
    with abandon_function(pods, runs) as (description, number):
        async with pods.dialled(runs) as (one, _):
            async with pods.dialled(runs) as (other, _):
                await asyncio.gather(one.probe(), other.probe())
                heirs = (one.adopt(description, spec_of(runs)), other.adopt(description, spec_of(runs)))
                results = await asyncio.gather(*heirs, return_exceptions=True)
                (loser,) = [each for each in results if not isinstance(each, PodSandbox)]
                assert isinstance(loser, Gone), loser
                assert "another kernel has adopted pod" in str(loser), loser
                (winner,) = [each for each in results if isinstance(each, PodSandbox)]
                with pytest.raises(Gone, match="another kernel has adopted pod"):
                    await (one if results[0] is loser else other).adopt(description, spec_of(runs))
                await (one if results[0] is loser else other).close()
                talk = FunctionConversation(winner)
                assert await talk.asked() == number
                assert await talk.finish(number) == REMAINING_REQUESTS
                await winner.clean_up()
    await wait_until_nothing_is_left(pods)


async def test_a_kernel_taken_for_dead_does_not_end_an_adopted_pod(pods: Pods, scratch: Path) -> None:
    """A kernel that is wrongly taken for dead loses its run. Its clean-up leaves the adopted pod running."""
    runs, kernel_group = scratch / "runs", f"{pods.namespace}-place"

    def standing(kernel: str) -> Mapping[str, Any]:
        async def say() -> KernelIdentity:
            return KernelIdentity(kernel_group, kernel, (kernel,))

        return {"standing": say}

    async with pods.dialled(runs, **standing("heir")) as (heir, _):
        async with pods.dialled(runs, **standing("old")) as (old, _), start_function(old, runs) as (before, number):
            sandbox = await heir.adopt(before.sandbox.describe(), spec_of(runs))
            assert (await before.sandbox.wait()).reason == "lost"
            await before.sandbox.clean_up()
        talk = FunctionConversation(sandbox)
        assert await talk.asked() == number
        assert await talk.finish(number) == REMAINING_REQUESTS
        await sandbox.clean_up()
    await wait_until_nothing_is_left(pods)


async def test_a_pod_that_has_ended_cannot_be_adopted(pods: Pods, scratch: Path) -> None:
    """Adoption raises Gone with the last message of the pod as the reason, and nothing of the pod is left."""
    runs = scratch / "runs"
    with abandon_function(pods, runs, patience_s=1) as (description, _):
        async with pods.cluster.client(pods.namespace) as kube, asyncio.timeout(180):
            name = description["pod"]
            while (await kube.get(Pod, name)).status.phase != "Failed":  # type: ignore[union-attr]  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        async with pods.dialled(runs) as (backend, _):
            with pytest.raises(Gone, match="the kernel did not answer for 1 s"):
                await backend.adopt(description, spec_of(runs))
            await wait_until_nothing_is_left(pods)


async def test_a_pod_without_a_kernel_is_removed_after_its_patience(
    pods: Pods, scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An idle kernel removes the pod once its patience is over. The last kernel that closes removes it at once."""
    monkeypatch.setattr(reaper, "_SLACK_S", 0.0)
    runs = scratch / "runs"
    with abandon_function(pods, runs, patience_s=PATIENCE_S / 5):
        async with pods.dialled(runs) as (backend, _):
            await backend.reap()
            assert len(await list_run_objects(pods)) == 2
            await wait_until_nothing_is_left(pods)
    with abandon_function(pods, runs):
        async with pods.dialled(runs) as (other, _):
            await other.probe()
            async with pods.dialled(runs) as (backend, _):
                await backend.reap()
            await other.reap()
            assert len(await list_run_objects(pods)) == 2, "there is another kernel, which may take it up"
        await wait_until_nothing_is_left(pods)


@pytest.fixture
def run_trip(pods: Pods, scratch: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Awaitable[list[Event]]]:
    """Return a function that runs a trip with pods and returns the recorded events.

    Kernel processes run the trip one after another, each with its own listener and certificate authority. Each process
    except the last is killed at a given moment. The function returns when nothing else is left.
    """
    images = " ".join(pods.images[each].reference for each in _KINDS)
    settings = {NAMESPACE: pods.namespace, IMAGES: images, HOST: pods.cluster.host}
    for name, value in {**settings, "KUBECONFIG": str(pods.kubeconfig)}.items():
        monkeypatch.setenv(name, value)

    async def through(trip: str, *moments: str) -> list[Event]:
        for moment in (*moments, ""):
            kernel = await start(trip, scratch, Kill.parse(moment))
            try:
                assert await kernel.process.wait() == (-signal.SIGKILL if moment else 0), kernel.words
            finally:
                kernel.kill()
        await wait_until_nothing_is_left(pods)
        return [each for tree in (await read_events(scratch)).values() for each in tree]

    return through


async def test_a_tree_continues_in_its_pods_after_its_kernel_was_killed(
    run_trip: Callable[..., Awaitable[list[Event]]],
) -> None:
    """Each function is called once, except a function whose call was not recorded, and each run completes once."""
    events = await run_trip("pods", "before:run_ended:1")
    started = [each for each in events if isinstance(each, SandboxStarted)]
    adopted = {each.sandbox["pod"] for each in started if each.adopted}
    assert adopted, "a function was at work when its kernel was killed"
    assert adopted <= {each.sandbox["pod"] for each in started if not each.adopted}
    called = Counter(each.run for each in started if not each.adopted)
    twice = not_started(events)
    assert all(called[each.run] == 1 + (each.run in twice) for each in events if isinstance(each, RunSpawned))
    assert [each.result.status for each in events if isinstance(each, RunEnded)] == ["completed"] * RUNS


async def test_a_conversation_continues_in_its_pod_after_its_kernels_were_killed(
    run_trip: Callable[..., Awaitable[list[Event]]],
) -> None:
    """Kernels die in a tool call, while an approval is open, and before a compaction. Each next one adopts the pod."""
    events = await run_trip("pod talk", "after:tool_started:1", "after:approval_asked:1", "before:compacted:1")
    started = [each for each in events if isinstance(each, SandboxStarted)]
    assert [each.adopted for each in started] == [False, True, True, True]
    assert len({each.sandbox["pod"] for each in started}) == 1
    story = TreeReplay().apply_all(events).root
    outputs = [str(each["content"]) for each in story.messages if each["type"] == "tool"]
    assert all(text.startswith(begins) for text, begins in zip(outputs, CONVERSED[-len(outputs) :], strict=True)), (
        outputs
    )
    assert story.result is not None
    assert story.result.value == f"done after {len(CALLS['talk']) + 1}"
