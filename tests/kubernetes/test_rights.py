"""A kernel uses each right that `deploy/` gives it. Tests of pods show that no right is missing: they have no other."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.core_v1 import Secret

from ramet.core.policy.policy import Isolation
from ramet.core.policy.reservation import Reservation
from ramet.isolation.kubernetes.api import quotas
from ramet.isolation.kubernetes.connect.listener import SharedListener
from ramet.isolation.kubernetes.kernels import KernelIdentity
from ramet.isolation.kubernetes.team_backend import TeamNamespaces
from ramet.isolation.transport import certificates
from tests.support.account import Account
from tests.support.cluster import remove_namespaces
from tests.support.free_ports import free_port
from tests.support.left_pods import GRANT, REMAINING_REQUESTS, FunctionConversation, spec_of, start_function
from tests.support.pods import Pods, pod_of
from tests.support.rights import Audit

pytestmark = [pytest.mark.kubernetes, pytest.mark.timeout(600)]  # a first push compiles all of the library

_LOGIN = "kubernetes.io/dockerconfigjson"


async def test_a_kernel_uses_each_of_its_rights(
    pods: Pods, kernel_account: Account, scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A team with a namespace and a pod, a separate pod that another kernel adopts, and a reap need every right."""
    audit = Audit(kernel_account.token, monkeypatch)
    team = Reservation(name=f"team-{pods.namespace[-8:]}", cpu_cores=1, memory_mb=512, sandboxes=2)
    grant = msgspec.structs.replace(GRANT, reservation=team)
    apart = msgspec.structs.replace(grant, isolation=Isolation.L2)
    async with pods.cluster.client(pods.namespace) as kube:
        login = {".dockerconfigjson": "{}"}
        await kube.create(Secret(metadata=ObjectMeta(name="login"), type=_LOGIN, stringData=login))
    try:
        async with _kernel(pods, scratch, "heir") as heir:
            async with _kernel(pods, scratch, "old") as old:
                await old.reserve(team)
                async with start_function(old, scratch, grant) as (talk, number):
                    assert talk.sandbox.level is Isolation.L1, "it shares the team's pod"
                    await _finish_function(talk, number)
                async with start_function(old, scratch, apart) as (before, number):
                    after = FunctionConversation(await heir.adopt(before.sandbox.describe(), spec_of(scratch, apart)))
                    assert pod_of(after.sandbox) == pod_of(before.sandbox)
                    assert (await before.sandbox.wait()).reason == "lost"
                    await before.sandbox.clean_up()
                    assert await after.asked() == number
                    assert f"pod {pod_of(talk.sandbox)}" in await heir.reap(), "the team's, of a kernel that is dead"
                    await _finish_function(after, number)
            await heir.disband(team.name)
    finally:
        with pods.cluster.blocking_client() as blocking:
            remove_namespaces(blocking, quotas.name_of(team.name))

    assert set(audit.used) == kernel_account.rights
    # What it has just given itself may be refused at first.
    assert audit.refused.keys() - audit.used.keys() == set()


@asynccontextmanager
async def _kernel(pods: Pods, runs: Path, name: str) -> AsyncIterator[TeamNamespaces]:
    """Open a kernel that all other kernels take for dead."""

    async def standing() -> KernelIdentity:
        return KernelIdentity(f"{pods.namespace}-place", name, (name,))

    host = pods.cluster.host
    at = host, free_port(host)
    kernel = TeamNamespaces(
        runs, namespace=pods.namespace, kubeconfig=pods.kubeconfig, image=pods.images, per="team", standing=standing,
        listener=SharedListener(at, listen=at, identify=lambda: certificates.make([host])), pull_secrets=("login",),
    )  # fmt: skip
    try:
        yield kernel
    finally:
        await kernel.close()


async def _finish_function(talk: FunctionConversation, number: int) -> None:
    """Let a function make its remaining requests, and end."""
    assert await talk.finish(number) == REMAINING_REQUESTS
    assert (await talk.sandbox.wait()).code == 0
    await talk.sandbox.clean_up()
