"""Warm pods, which wait for runs: which runs get them, what they are then, and when they make room."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
from lightkube.models.core_v1 import ResourceQuotaSpec
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.core_v1 import Pod as PodObject
from lightkube.resources.core_v1 import ResourceQuota, Secret

from ramet import AgentRuntime
from ramet.core.errors import SandboxFailed, SpawnRefused
from ramet.core.policy.reservation import Reservation
from ramet.isolation.kubernetes.api import labels, quotas
from ramet.isolation.kubernetes.backend import KubernetesBackend
from ramet.isolation.kubernetes.placement import warm_pool
from ramet.isolation.kubernetes.pods.pod import Pod
from ramet.isolation.kubernetes.team_backend import TeamNamespaces
from ramet.isolation.workspace.run_dirs import RunFolders
from ramet.services.packaging.oci import registries
from ramet.services.packaging.runtime_image.pod_images import PodImages
from ramet.services.packaging.service import PackagingService
from ramet.testing.conformance.isolation.harness import BackendFixture
from tests.support.image_jobs import wait_finished
from tests.support.left_pods import REMAINING_REQUESTS, FunctionConversation, abandon_function, spec_of
from tests.support.pod_runs import SMALL, open_pod_backend, spec, wait_for, wait_for_warm_pods
from tests.support.pods import Pods, pod_of
from tests.support.tars import tar
from tests.support.waiting import eventually

pytestmark = [pytest.mark.kubernetes, pytest.mark.timeout(600)]  # the first test makes images
OTHER = msgspec.structs.replace(SMALL, memory_mb=72)  #: of another shape


@contextlib.asynccontextmanager
async def open_warm_backend(
    pods: Pods, scratch: Path, **given: Any
) -> AsyncIterator[tuple[BackendFixture, KubernetesBackend]]:
    """Open a backend that keeps one warm pod of each shape. Check at the end that nothing of it is left."""
    backend = pods.backend(scratch / "runs", **{"warm": 1, **given})
    async with open_pod_backend(backend, scratch) as site:
        yield site, backend
    await pods.wait_gone()


def separate_placement(pods: Pods) -> Mapping[str, Any]:
    """Return a placement that never puts a warm pod and another pod on one node."""
    selector = {"matchLabels": {labels.WAITING: "true"}}
    others = {"labelSelector": selector, "namespaces": [pods.namespace], "topologyKey": "kubernetes.io/hostname"}
    return {"affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [others]}}}


async def objects(pods: Pods, kind: type[Any] = PodObject) -> dict[str, Any]:
    """Return the objects of runs by name."""
    async with pods.cluster.client(pods.namespace) as kube:
        return {each.metadata.name: each async for each in kube.list(kind, labels={labels.MANAGED: labels.OURS})}


def labels_and_annotations_of(made: Any, run: str) -> tuple[Mapping[str, str], Mapping[str, str]]:
    """Return the labels and annotations of an object of a run, without the id of the run."""
    marks, words = made.metadata.labels, made.metadata.annotations or {}
    assert marks[labels.RUN] == run
    return marks | {labels.RUN: ""}, words | {labels.RUN: ""}


@pytest.mark.parametrize("dials", [False, True], ids=["attached", "dialling"])
async def test_a_run_starts_in_a_warm_pod(dials: bool, pods: Pods, scratch: Path) -> None:
    """A warm pod looks like a pod that was made for the run. One run has it, and another pod waits for the next run."""
    grant = msgspec.structs.replace(SMALL, reservation=Reservation(name="a_team", memory_mb=256))
    asked: dict[str, Any] = {"grant": grant, "tree": "run-tree", "path": "main/one"}
    async with contextlib.AsyncExitStack() as stack:
        (scratch / "runs").mkdir()
        if dials:
            backend, _ = await stack.enter_async_context(pods.dialled(scratch / "runs", warm=1))
        else:
            backend = pods.backend(scratch / "runs", warm=1)
        site = await stack.enter_async_context(open_pod_backend(backend, scratch))
        async with site.start_guest(**asked) as cold:
            [name] = await wait_for_warm_pods(backend)
            waiting = (await objects(pods))[name].metadata
            assert (waiting.labels[labels.WAITING], labels.RUN in waiting.labels) == ("true", False)
            assert labels.PATIENCE not in (waiting.annotations or {}), "a dead kernel's goes at once"
            async with site.start_guest(grant=OTHER) as other, site.start_guest(**asked) as warm:
                assert (pod_of(warm.sandbox), pod_of(other.sandbox) == name) == (name, False)
                assert (await warm.ask("process_info"))["pid"]
                there, secrets = await objects(pods), await objects(pods, Secret)
                for found in [there] + [secrets] * dials:
                    made = [
                        labels_and_annotations_of(found[pod_of(each.sandbox)], each.spec.run) for each in (cold, warm)
                    ]
                    assert made[0] == made[1]
                old, new = [there[pod_of(each.sandbox)].spec for each in (cold, warm)]
                assert new.activeDeadlineSeconds > old.activeDeadlineSeconds, "it counts from before the run"
                assert (labels.PATIENCE in there[name].metadata.annotations) == dials
                assert new.containers[0].resources == old.containers[0].resources
                assert name not in await wait_for_warm_pods(backend, 2)
        assert name not in await objects(pods), "it goes with its run"
    await pods.wait_gone()
    async with asyncio.timeout(180):
        while await objects(pods, Secret):  # noqa: ASYNC110 - that of a pod goes with it, in the cluster's own time
            await asyncio.sleep(0.05)


async def test_a_warm_pod_has_the_bundles_of_a_run_in_its_image(pods: Pods, scratch: Path, sent: list[Path]) -> None:
    """The run finds its bundles at their paths. A run with further mounts gets a new pod."""
    opening = partial(
        registries.open_registries, f"http://{pods.cluster.registry}", pods.cluster.base_image, environ={}
    )
    images = PodImages(opening, "bare")
    async with PackagingService(scratch / "kept", push=images.image) as service:
        images.store = service
        bundle = await service.upload(tar({"kit.py": b"WORD = 1"}))
        job = await wait_finished(service, (await service.create_image("", [bundle.id])).id)
        [folder] = (await service.image(job.image)).folders
        (scratch / "notes").mkdir()
        async with open_warm_backend(pods, scratch, image=images.image, image_with=images.image_with_mounts) as (
            _,
            backend,
        ):
            runs = scratch / "runs"
            waiting = await wait_for(backend, spec(runs, "before", SMALL, mounts=[folder]))
            more = await backend.start(spec(runs, "more", SMALL, mounts=[folder, scratch / "notes"]))
            sandbox = await backend.start(spec(runs, "one", SMALL, mounts=[folder]))
            assert ([pod_of(sandbox)], pod_of(more) in waiting) == (waiting, False)
            ran = await sandbox.run_command(["cat", str(folder / "kit.py")], timeout_s=60, max_bytes=100)
            assert ran.stdout == b"WORD = 1"
            assert sent == [scratch / "notes"]
            await asyncio.gather(sandbox.clean_up(), more.clean_up())


async def test_no_run_gets_a_warm_pod_that_is_deleted_or_cannot_be_taken(
    pods: Pods, scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A warm pod is deleted while it waits or once it is taken, or cannot be taken: the run starts in another pod."""
    take, moments = Pod.take, ["deleted", "not taken", "taken and deleted"]

    async def delete(name: str) -> None:
        async with pods.cluster.client(pods.namespace) as kube:
            await kube.delete(PodObject, name, grace_period=0)

    async def taken(self: Pod, patch: Mapping[str, Any]) -> None:
        if moment == "not taken":
            weather.cut()
        try:
            await take(self, patch)
        finally:
            weather.mend()
        await delete(self.name)

    monkeypatch.setattr(Pod, "take", taken)
    async with (
        pods.weather(scratch) as (weather, kubeconfig),
        open_warm_backend(pods, scratch, kubeconfig=kubeconfig) as (site, backend),
    ):
        wanted = site.spec(grant=SMALL)
        for moment in moments:
            [waiting] = await wait_for(backend, wanted)
            if moment == "deleted":
                await delete(waiting)
                await eventually(lambda: not backend._own_pods._warm_pool.ready_pods)
            async with site.start_guest(grant=SMALL) as visit:
                assert await visit.ask("process_info")
                assert pod_of(visit.sandbox) != waiting
                async with asyncio.timeout(180):
                    while waiting in await pods.names():  # noqa: ASYNC110 - it is another's to say
                        await asyncio.sleep(0.05)


async def test_a_backend_that_closes_during_a_start_makes_no_other_pod(
    pods: Pods, scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that was about to start in the warm pod fails, and nothing of it is left."""
    take, closing = Pod.take, list[asyncio.Task[None]]()

    async with open_warm_backend(pods, scratch) as (site, backend):

        async def taken(self: Pod, patch: Mapping[str, Any]) -> None:
            await take(self, patch)
            closing.append(asyncio.create_task(backend.close()))
            await asyncio.sleep(0)

        await wait_for(backend, site.spec(grant=SMALL))
        monkeypatch.setattr(Pod, "take", taken)
        with pytest.raises(SandboxFailed, match="closed"):
            await site.backend.start(site.spec(grant=SMALL))
        await asyncio.gather(*closing)
        assert await pods.names() == []


async def test_a_warm_pod_makes_room_in_a_full_quota(pods: Pods, scratch: Path) -> None:
    """A run is refused only if runs use the whole quota. No warm pod starts again at once."""
    async with pods.cluster.client(pods.namespace) as kube:
        quota = ResourceQuota(metadata=ObjectMeta(name="two"), spec=ResourceQuotaSpec(hard={"pods": "2"}))
        await kube.create(quota)
        async with asyncio.timeout(180):
            while (await kube.get(ResourceQuota, "two")).status.used is None:  # type: ignore[union-attr]  # noqa: ASYNC110
                await asyncio.sleep(0.05)
    async with open_warm_backend(pods, scratch) as (site, backend), site.start_guest(grant=SMALL) as one:
        [waiting] = await wait_for_warm_pods(backend)
        async with site.start_guest(grant=OTHER) as other:
            mine = {pod_of(one.sandbox), pod_of(other.sandbox)}
            assert (len(mine), waiting in mine, set(await pods.names())) == (2, False, mine)
            with pytest.raises(SpawnRefused, match="exceeded quota"):
                await site.backend.start(site.spec(grant=SMALL))


async def test_a_warm_pod_makes_room_on_a_full_node(
    pods: Pods, scratch: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A warm pod makes room at once. A warm pod without a place is logged once, and delays no run."""

    def list_messages() -> list[str]:
        messages = [each.getMessage() for each in caplog.records]
        return [each for each in messages if "no pod waits" in each]

    async with open_warm_backend(pods, scratch, placement=separate_placement(pods)) as (site, backend):
        [waiting] = await wait_for(backend, site.spec(grant=OTHER))
        async with site.start_guest(grant=SMALL) as one:
            assert [pod_of(one.sandbox)] == await pods.names()
            assert waiting != pod_of(one.sandbox)
    assert not list_messages()
    async with (
        open_warm_backend(pods, scratch, placement=separate_placement(pods)) as (site, _),
        site.start_guest(grant=SMALL) as one,
    ):
        await eventually(list_messages)
        async with site.start_guest(grant=SMALL) as other:
            assert {pod_of(one.sandbox), pod_of(other.sandbox)} == set(await pods.names())
    assert ["nodes are available" in each for each in list_messages()] == [True]


async def test_a_warm_pod_makes_room_for_a_team_and_none_waits_in_its_namespace(pods: Pods, scratch: Path) -> None:
    """A team has its own quota, but needs a place on a node: a warm pod makes room there."""
    team = Reservation(name=f"team-{pods.namespace[-12:]}", cpu_cores=1, memory_mb=512, sandboxes=2)
    given: Mapping[str, Any] = {
        "kubeconfig": pods.kubeconfig,
        "image": pods.images,
        "placement": separate_placement(pods),
    }
    backend = TeamNamespaces(scratch / "runs", namespace=pods.namespace, warm=1, **given)
    async with open_pod_backend(backend, scratch) as site:
        try:
            await wait_for(backend._default_backend, site.spec(grant=SMALL))
            async with site.start_guest(grant=msgspec.structs.replace(SMALL, reservation=team)) as visit:
                assert await visit.ask("process_info")
                await pods.wait_gone()
                async with pods.cluster.client(quotas.name_of(team.name)) as kube:
                    assert [each.metadata.name async for each in kube.list(PodObject) if each.metadata] == [
                        pod_of(visit.sandbox)
                    ]
        finally:
            await backend.disband(team.name)


async def test_a_warm_pod_of_a_shape_that_no_run_needs_is_removed(
    pods: Pods, scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A warm pod is removed if no run needed its shape for a while, or if other shapes were needed more recently."""
    monkeypatch.setattr(warm_pool, "_SHAPES", 1)
    async with open_warm_backend(pods, scratch) as (site, backend):
        [one] = await wait_for(backend, site.spec(grant=SMALL))
        [other] = await wait_for(backend, site.spec(grant=OTHER))
        assert one != other
        monkeypatch.setattr(warm_pool, "_KEEP_S", 0.0)
        async with site.start_guest(grant=OTHER) as visit:
            assert pod_of(visit.sandbox) == other
            async with asyncio.timeout(180):
                while await pods.names() != [other]:  # noqa: ASYNC110 - it is another's to say
                    await asyncio.sleep(0.05)


async def test_a_killed_kernel_loses_its_warm_pods_and_its_run_is_adopted(pods: Pods, scratch: Path) -> None:
    """The next kernel removes the pods that still wait, and adopts the run, whose pod was warm before."""
    runs = scratch / "runs"
    with abandon_function(pods, runs, warm=1) as (description, number):
        left = await objects(pods)
        assert description["pod"] in left
        async with pods.dialled(runs) as (heir, _):
            gone = await heir.reap()
            assert {f"pod {each}" for each in left} - set(gone) == {f"pod {description['pod']}"}
            talk = FunctionConversation(await heir.adopt(description, spec_of(runs)))
            assert await talk.asked() == number
            assert await talk.finish(number) == REMAINING_REQUESTS
            await talk.sandbox.clean_up()
            await pods.wait_gone()


async def test_a_server_starts_warm_pods_before_the_first_run_and_removes_them(pods: Pods, scratch: Path) -> None:
    """Warm pods for runs of the default policy start before the first run, and are removed with the server."""
    runs = RunFolders(scratch).root
    runs.mkdir(0o700, parents=True)
    backend = TeamNamespaces(runs, namespace=pods.namespace, kubeconfig=pods.kubeconfig, image=pods.images, warm=1)

    async with AgentRuntime(working_dir=scratch, backend=backend) as runtime:
        await runtime.sandboxes.warm()
        assert await wait_for_warm_pods(backend._default_backend) == await pods.names()
    assert await pods.names() == []
