"""Faults around a pod end a run at once, with the right reason and the original message. Nothing is left."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from lightkube import AsyncClient
from lightkube.models.core_v1 import ResourceQuotaSpec
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.core_v1 import Pod, ResourceQuota, Secret
from lightkube.resources.networking_v1 import NetworkPolicy

from ramet.core.errors import IsolationUnavailable, SandboxFailed, SpawnRefused
from ramet.core.policy.policy import Grant, Isolation
from ramet.core.policy.reservation import Reservation
from ramet.isolation.contract import Exit
from ramet.isolation.kubernetes.api import labels, manifest
from ramet.isolation.kubernetes.connect.attach import Attach
from ramet.isolation.kubernetes.kernels import KernelIdentity
from ramet.testing.conformance.isolation.harness import BackendFixture
from ramet.wire.frames import Frame
from tests.support.killed_pods import STEPS
from tests.support.pod_runs import SMALL, open_pod_backend
from tests.support.pods import PATIENCE_S, Pods, pod_of
from tests.support.waiting import eventually

pytestmark = [pytest.mark.kubernetes, pytest.mark.timeout(600)]  # the first test makes images
both_ways = pytest.mark.parametrize("dials", [False, True], ids=["attached", "dialling"])


@contextlib.asynccontextmanager
async def open_backend(dials: bool, pods: Pods, scratch: Path, **given: Any) -> AsyncIterator[BackendFixture]:
    """Open a backend whose pods are attached to, or dial it. Check at the end that nothing of it is left."""
    async with contextlib.AsyncExitStack() as stack:
        if dials:
            (scratch / "runs").mkdir(exist_ok=True)
            backend, _ = await stack.enter_async_context(pods.dialled(scratch / "runs", **given))
        else:
            backend = pods.backend(scratch / "runs", **given)
        yield await stack.enter_async_context(open_pod_backend(backend, scratch))
    await pods.wait_gone()
    async with pods.cluster.client(pods.namespace) as kube, asyncio.timeout(180):
        while await _secrets(kube):  # noqa: ASYNC110 - that of a pod goes with it, in the cluster's own time
            await asyncio.sleep(0.05)


@both_ways
async def test_a_pod_deleted_during_a_turn_is_lost(dials: bool, pods: Pods, scratch: Path) -> None:
    """A caller that waits learns of the deletion at once, and another run keeps its pod."""
    async with open_backend(dials, pods, scratch) as site:
        async with site.start_guest(grant=SMALL) as one, site.start_guest(grant=SMALL) as other:
            waiting = asyncio.ensure_future(one.wait_ended())
            async with pods.cluster.client(pods.namespace) as kube:
                await kube.delete(Pod, pod_of(one.sandbox), grace_period=0)
            ended = await waiting
            assert (ended.reason, "not by this kernel" in ended.detail) == ("lost", True)
            assert await other.ask("process_info")


@both_ways
async def test_a_missing_image_fails_at_once(dials: bool, pods: Pods, scratch: Path) -> None:
    """The error names the image and quotes the registry, without a wait for another attempt."""
    missing = f"{pods.cluster.registry}/none:1"
    async with open_backend(dials, pods, scratch, image=missing) as site:
        with pytest.raises(SandboxFailed, match=r"none:1.*not found"):
            await site.backend.start(site.spec(grant=SMALL))


@pytest.mark.parametrize(
    ("is_ours", "arguments", "why"),
    [
        (False, None, "ModuleNotFoundError: No module named 'ramet'.*registry_url"),
        (True, ("soon",), "ValueError: could not convert string to float: 'soon'"),
    ],
    ids=["without ramet", "before there is a line"],
)
async def test_a_program_that_fails_to_start_reports_why(
    is_ours: bool, arguments: Sequence[str] | None, why: str, pods: Pods, scratch: Path
) -> None:
    """The error quotes the last line of the exception, without a traceback."""
    reach = Attach(patience_s=PATIENCE_S)
    if arguments is not None:
        reach.arguments = (*arguments,)  # type: ignore[assignment]  # as of another version
    image = pods.images if is_ours else pods.cluster.base_image
    async with open_pod_backend(pods.backend(scratch / "runs", image=image, reach=reach), scratch) as site:
        with pytest.raises(SandboxFailed, match=rf"ended with status 1: {why}") as failure:
            await site.backend.start(site.spec(grant=SMALL))
        assert "Traceback" not in str(failure.value)
    assert await pods.names() == []


async def test_a_program_that_fails_during_a_run_reports_why(pods: Pods, scratch: Path) -> None:
    """The error quotes the exception of the program, although the end of the line is reported first."""
    async with open_pod_backend(pods.backend(scratch / "runs"), scratch) as site:
        async with site.start_guest(grant=SMALL) as visit:
            assert await visit.failure_of("write", path="/dev/termination-log", text="x"), "the agent has no part in it"
            await visit.sandbox._lease._machine._line.send(Frame(b"no word of a kernel"))  # type: ignore[attr-defined]
            ended = await visit.wait_ended()
            assert (ended.reason, "ended with status 1: ProtocolError" in ended.detail) == ("lost", True), ended
        assert await pods.names() == []


@both_ways
async def test_a_used_up_quota_refuses_a_spawn(dials: bool, pods: Pods, scratch: Path) -> None:
    """The refusal quotes the API, the first run continues, and the refused run leaves no pod and no Secret."""
    async with pods.cluster.client(pods.namespace) as kube:
        quota = ResourceQuota(metadata=ObjectMeta(name="one"), spec=ResourceQuotaSpec(hard={"pods": "1"}))
        await kube.create(quota)
        await _wait_until_in_force(kube)
    async with open_backend(dials, pods, scratch) as site, pods.cluster.client(pods.namespace) as kube:
        async with site.start_guest(grant=SMALL) as visit:
            with pytest.raises(SpawnRefused, match="exceeded quota") as refusal:
                await site.backend.start(site.spec(grant=SMALL))
            assert refusal.value.limit == "quota"
            assert await visit.ask("process_info")
            made = [pod_of(visit.sandbox)]
            async with asyncio.timeout(180):
                while await _secrets(kube) != made * dials:  # noqa: ASYNC110 - it is another's to say
                    await asyncio.sleep(0.05)
            assert await pods.names() == made
        assert await pods.names() == await _secrets(kube) == []


async def _secrets(kube: Any) -> list[str]:
    """Return the names of our Secrets: the Secret of a pod has the name of the pod."""
    return [each.metadata.name async for each in kube.list(Secret, labels={labels.MANAGED: labels.OURS})]


async def _wait_until_in_force(kube: Any) -> None:
    async with asyncio.timeout(180):
        while (await kube.get(ResourceQuota, "one")).status.used is None:  # noqa: ASYNC110 - it is another's to say
            await asyncio.sleep(0.05)


async def test_a_pod_without_enough_memory_to_start_reports_it(
    pods: Pods, scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The operating system kills the program before it has started, and the error says that memory ran out."""
    monkeypatch.setattr(manifest, "NODE_AGENT_MB", 0)
    monkeypatch.setattr(manifest, "RUN_MB", 1)
    async with open_pod_backend(pods.backend(scratch / "runs"), scratch) as site:
        with pytest.raises(SandboxFailed, match=r"(?i)out of memory|oom"):
            await site.backend.start(site.spec(grant=Grant(memory_mb=10, tmpfs_size_mb=1, workspace_size_mb=8)))
    assert await pods.names() == []


async def test_a_run_whose_pod_runs_out_of_memory_ends_with_oom(pods: Pods, scratch: Path) -> None:
    """Ten runs end with `oom`, whether the end of the line or the later report of the cluster comes first."""
    fill = ["sh", "-c", "dd if=/dev/zero of=/run/full bs=1M count=2000 2>/dev/null"]

    async def full(site: BackendFixture, kube: AsyncClient) -> Exit:
        async with site.start_guest(grant=SMALL) as visit:
            filling = asyncio.ensure_future(kube.exec(pod_of(visit.sandbox), command=fill, stdout=True))
            ended = await visit.wait_ended()
            await asyncio.gather(filling, return_exceptions=True)  # It ends with the container.
            return ended

    async with (
        open_pod_backend(pods.backend(scratch / "runs"), scratch) as site,
        pods.cluster.client(pods.namespace) as kube,
    ):
        ends = [end for _ in range(2) for end in await asyncio.gather(*(full(site, kube) for _ in range(5)))]
        assert [each.reason for each in ends] == ["oom"] * 10
    assert await pods.names() == []


async def test_a_pod_that_no_node_accepts_fails_after_a_timeout(pods: Pods, scratch: Path) -> None:
    """The error quotes the scheduler."""
    nowhere = {"nodeSelector": {"example.org/pool": "none"}}
    async with open_pod_backend(
        pods.backend(scratch / "runs", placement=nowhere, unschedulable_s=0.2), scratch
    ) as site:
        with pytest.raises(SandboxFailed, match=r"no node accepted it within 0.2 s: 0/1 nodes are available"):
            await site.backend.start(site.spec(grant=SMALL))
    assert await pods.names() == []


async def test_an_isolation_level_that_the_cluster_lacks_is_refused(pods: Pods, scratch: Path) -> None:
    """A backend never lowers a level: it refuses L3 without a RuntimeClass, and each run without a namespace."""
    async with open_pod_backend(pods.backend(scratch / "runs"), scratch) as site:
        assert site.probe.level is Isolation.L2
        with pytest.raises(IsolationUnavailable, match=r"runtime_class_L3.*gvisor"):
            await site.backend.start(site.spec(grant=Grant(isolation=Isolation.L3)))
    absent = f"{pods.namespace}-none"
    for kubeconfig, why in (
        (pods.kubeconfig, f"these rights in namespace {absent}"),
        (pods.cluster.kubeconfig, "not found"),
    ):
        async with open_pod_backend(
            pods.backend(scratch / "runs", namespace=absent, kubeconfig=kubeconfig), scratch
        ) as site:
            assert site.probe.level is Isolation.L0
            assert absent in site.probe.remedy
            with pytest.raises(IsolationUnavailable, match=why):
                await site.backend.start(site.spec(grant=SMALL))


async def test_a_pod_has_the_labels_and_annotations_of_its_run(pods: Pods, scratch: Path) -> None:
    """Labels and annotations name the tree, the team and the path of a run. A policy keeps agents off the network."""
    grant = msgspec.structs.replace(SMALL, reservation=Reservation(name="a_team", memory_mb=256))
    async with (
        open_pod_backend(pods.backend(scratch / "runs", user_labels={"a": "b"}), scratch) as site,
        pods.cluster.client(pods.namespace) as kube,
        site.start_guest(grant=grant, tree="run-tree", path="main/one") as visit,
    ):
        pod = await kube.get(Pod, pod_of(visit.sandbox))
        assert pod.metadata is not None
        marked = pod.metadata.labels or {}
        assert (marked[labels.TREE], marked["a"], marked[labels.MANAGED]) == ("run-tree", "b", "ramet")
        pod_annotations = pod.metadata.annotations or {}
        assert (pod_annotations[labels.TEAM], pod_annotations[labels.NAME]) == ("a_team", "main/one")
        assert visit.sandbox.describe() == {}, "on the attach stream it ends with its kernel"
    assert site.probe.mechanisms["network_policy"]


@both_ways
async def test_a_kernel_killed_at_any_step_leaves_nothing_behind(dials: bool, pods: Pods, scratch: Path) -> None:
    """The next kernel of the folder removes each object that a killed kernel has left, and removes it once."""
    runs = scratch / "runs"
    runs.mkdir()
    image = pods.images["bare"].reference
    with contextlib.ExitStack() as stack:
        host = pods.cluster.host if dials else ""
        kernels = [stack.enter_context(_start_kernel_to_kill(pods, runs, image, step, host)) for step in STEPS[dials]]
        for step, kernel in zip(STEPS[dials], kernels, strict=True):
            assert kernel.stdout is not None, "asked for"
            assert await asyncio.to_thread(kernel.stdout.readline) == f"{step}\n"
        left = await pods.names()
        assert len(left) == (3 if dials else 6), "before it is made, and once it is deleted, there is none"
        backend = pods.backend(runs)
        try:
            assert await backend.reap() == [], "they live"
            for kernel in kernels:
                kernel.send_signal(signal.SIGKILL)
                kernel.wait()
            gone = await backend.reap()
            waiting = {f"pod {each}" for each in await pods.names()}  # for another kernel, if they dial and had begun
            assert waiting <= {f"pod {each}" for each in left} if dials else not waiting
            assert {each for each in gone if each.startswith("pod ")} == {f"pod {each}" for each in left} - waiting
            # The secret of a pod that is deleted goes with it, in the cluster's own time.
            secrets = sum(each.startswith("secret ") for each in gone)
            assert secrets + len(waiting) in ((4, 5) if dials else (0,))
            assert sum(each.startswith("policy ") for each in gone) == (5 if dials else 0)
            assert await backend.reap() == []
        finally:
            await backend.close()  # There is no other.
    await pods.wait_gone()
    async with pods.cluster.client(pods.namespace) as kube:
        assert await _secrets(kube) == []
        assert [each.metadata.name async for each in kube.list(NetworkPolicy) if each.metadata] == [manifest.POLICY]
    assert [each.name for each in (runs / ".kernels").iterdir()] == ["place"]


async def test_a_kernel_that_starts_during_a_reap_keeps_its_pods(pods: Pods, scratch: Path) -> None:
    """A reap that began before a kernel was known to live spares the pod of this kernel."""
    kernel_group, living = f"{pods.namespace}-place", ["one"]
    came, goes_on = asyncio.Event(), asyncio.Event()

    async def of_one() -> KernelIdentity:
        known = tuple(living)
        came.set()
        await goes_on.wait()
        return KernelIdentity(kernel_group, "one", known)

    async def of_other() -> KernelIdentity:
        return KernelIdentity(kernel_group, "other", ("one", "other"))

    goes_on.set()
    one = pods.backend(scratch / "runs", standing=of_one)
    async with (
        open_pod_backend(one, scratch),
        open_pod_backend(pods.backend(scratch / "runs", standing=of_other), scratch) as site,
    ):
        came.clear()
        goes_on.clear()
        reaping = asyncio.ensure_future(one.reap())
        await came.wait()
        async with site.start_guest(grant=SMALL) as visit:
            goes_on.set()
            assert await reaping == []
            assert await visit.ask("process_info")
            assert await pods.names() == [pod_of(visit.sandbox)]
            assert [each.split()[0] for each in await one.reap()] == ["pod"], "who is said not to live, does not"
            assert (await visit.wait_ended()).reason == "lost"


@contextlib.contextmanager
def _start_kernel_to_kill(pods: Pods, runs: Path, image: str, step: str, host: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "tests.support.killed_pods", str(runs), pods.namespace, image, step, host]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env={**os.environ, "KUBECONFIG": str(pods.kubeconfig)}
    ) as process:
        try:
            yield process
        finally:
            process.kill()


async def test_a_temporary_loss_of_the_api_loses_nothing(pods: Pods, scratch: Path) -> None:
    """Messages of both sides arrive once and in order. Runs continue, new runs start, and ends are reported."""
    async with (
        pods.weather(scratch) as (weather, kubeconfig),
        open_pod_backend(pods.backend(scratch / "runs", kubeconfig=kubeconfig), scratch) as site,
        site.start_guest(grant=SMALL) as visit,
    ):
        body = os.urandom(3_000_000)
        for _ in range(3):
            asking = asyncio.ensure_future(visit.ask_with(body, "echo"))
            before = weather.refused
            await asyncio.sleep(0)
            weather.cut()
            await eventually(lambda before=before: weather.refused >= before + 3)  # type: ignore[misc]
            weather.mend()
            assert (await asking)[1] == body
        async with site.start_guest(grant=SMALL) as other:
            assert await other.ask("process_info")
            weather.cut()
            async with pods.cluster.client(pods.namespace) as kube:
                await kube.delete(Pod, pod_of(other.sandbox), grace_period=0)
            weather.mend()
            assert (await other.wait_ended()).reason == "lost"
        await visit.send("leave", code=7)
        assert (await visit.wait_ended()).code == 7


async def test_a_permanent_loss_of_the_api_ends_a_run(pods: Pods, scratch: Path) -> None:
    """The run is lost after the patience of both ends, and its pod is removed once the API is back."""
    async with pods.weather(scratch) as (weather, kubeconfig):
        backend = pods.backend(scratch / "runs", kubeconfig=kubeconfig, reach=Attach(patience_s=3))
        async with open_pod_backend(backend, scratch) as site, site.start_guest(grant=SMALL) as visit:
            began = time.monotonic()
            weather.cut()
            ended = await visit.wait_ended()
            assert ended.reason == "lost"
            assert "3 s" in ended.detail
            assert time.monotonic() > began + 2
            weather.mend()
    await pods.wait_gone()
