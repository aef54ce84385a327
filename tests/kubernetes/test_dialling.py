"""Pods dial the listener of their kernel on a real cluster, with a join key from a Secret."""

from __future__ import annotations

from pathlib import Path

import pytest
from lightkube.resources.core_v1 import Pod, Secret

from ramet.isolation.kubernetes.backend import KubernetesBackend
from ramet.isolation.kubernetes.connect.dial import DialTransport
from ramet.isolation.transport import certificates
from ramet.isolation.transport.listener import PATH, PodListener
from ramet.isolation.transport.resuming import ResumingLine
from ramet.services.packaging.oci.registry import Registry
from ramet.services.packaging.runtime_image.build import runtime_image
from ramet.testing.conformance.isolation import boundaries, limits
from ramet.testing.conformance.isolation.harness import BackendFixture, Check, Workdir
from tests.support.account import Account
from tests.support.cluster import Cluster
from tests.support.pod_runs import spec
from tests.support.pods import Pods
from tests.support.waiting import eventually

pytestmark = [pytest.mark.kubernetes, pytest.mark.timeout(600)]  # a first push compiles all of the library


async def test_a_pod_dials_its_kernel_again_after_a_lost_connection(
    cluster: Cluster, namespace: str, kernel_account: Account, tmp_path: Path
) -> None:
    """The join key is void after the first connection, and the pod owns the Secret of the key."""
    async with Registry(f"http://{cluster.registry}") as registry:
        image = await runtime_image(registry, cluster.base_image.removeprefix(f"{cluster.registry}/"), "bare")
    identity = certificates.make([cluster.host])
    async with PodListener(cluster.host, 0, identity.context) as landing:
        url = f"wss://{cluster.host}:{landing.port}{PATH}"
        reach = DialTransport(landing, url=url, ca=identity.ca, patience_s=15)
        backend = KubernetesBackend(
            tmp_path / "runs", namespace=namespace, image=image, kubeconfig=kernel_account.kubeconfig, reach=reach
        )
        try:
            sandbox = await backend.start(spec(tmp_path / "runs", "mine"))
            uid = sandbox.describe()["uid"]
            assert landing._join_keys._pods[uid].join_by is None, "the join key is void"
            result = await sandbox.run_command(["sh", "-c", "echo one > kept; echo said"], timeout_s=30, max_bytes=100)
            assert (result.code, result.stdout) == (0, b"said\n")

            line = landing._lines[uid]
            assert isinstance(line, ResumingLine)
            for _ in range(3):
                before = line.connections
                assert line._transport is not None
                line._transport.abort()
                again = await sandbox.run_command(["cat", "kept"], timeout_s=30, max_bytes=100)
                assert (again.code, again.stdout) == (0, b"one\n")
                assert line.connections > before

            async with cluster.client(namespace) as kube:
                (secret,) = [each async for each in kube.list(Secret) if "join-key" in (each.data or {})]
                assert secret.metadata is not None
                assert [each.uid for each in secret.metadata.ownerReferences or ()] == [uid]
            await sandbox.clean_up()
            async with cluster.client(namespace) as kube:
                assert [each async for each in kube.list(Pod)] == []
            await eventually(lambda: uid not in landing._lines)
        finally:
            await backend.close()


@pytest.mark.parametrize("check", [boundaries.secrets_are_files_in_memory, limits.temporary_files])
async def test_a_pod_that_dials_keeps_the_promises_of_a_pod(check: Check, pods: Pods, scratch: Path) -> None:
    """A pod that dials keeps the same promises as a pod that its kernel attaches to."""
    (scratch / "runs").mkdir()
    async with pods.dialled(scratch / "runs") as (backend, _):
        await check(BackendFixture(Workdir("", scratch), backend, await backend.probe()))
    assert await pods.names() == []


async def test_a_pod_without_its_kernel_ends_itself_and_reports_why(pods: Pods, scratch: Path) -> None:
    """The pod ends by itself. The API reports the end and its reason to the kernel."""
    (scratch / "runs").mkdir()
    async with pods.dialled(scratch / "runs", patience_s=2) as (backend, network):
        site = BackendFixture(Workdir("", scratch), backend, await backend.probe())
        async with site.start_guest() as visit:
            network.cut()
            ended = await visit.wait_ended()
            assert (ended.reason, "Gone: the kernel did not answer for 2 s" in ended.detail) == ("lost", True), ended
    assert await pods.names() == []
