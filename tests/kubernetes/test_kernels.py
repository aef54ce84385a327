"""A kernel runs as `deploy/` says: unprivileged, on a read-only root, with its own rights, and with agents in pods."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import httpx2
import pytest
import yaml
from lightkube import AsyncClient
from lightkube.codecs import from_dict
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.apps_v1 import StatefulSet
from lightkube.resources.core_v1 import Pod, Secret, Service

import ramet
from ramet import Policy
from ramet.examples.running import ask
from tests.support.account import Account
from tests.support.cluster import MANAGED, Cluster
from tests.support.manifests import DEPLOY, Manifest, build_manifests, find_manifest, with_namespace
from tests.support.prometheus import scrape

pytestmark = [pytest.mark.kubernetes, pytest.mark.slow, pytest.mark.timeout(600)]

TOKEN = "sixteen-letters-at-least"


def fit_to_one_node(manifests: list[Manifest], namespace: str, image: str) -> list[Manifest]:
    """Return the manifests of one kernel that fits on one node, without a volume of the cluster."""
    made = copy.deepcopy(manifests)
    kernels = find_manifest(made, "StatefulSet")["spec"]
    kernels["replicas"] = 1
    del kernels["volumeClaimTemplates"]
    pod = kernels["template"]["spec"]
    pod["volumes"].append({"name": "work", "emptyDir": {}})
    pod["terminationGracePeriodSeconds"] = 600  # Whoever ends sooner did so by itself.
    pod["containers"][0] |= {"image": image}
    pod["containers"][0]["resources"]["requests"] = {"cpu": "100m", "memory": "128Mi"}
    (data,) = (each["data"] for each in made if each["kind"] == "ConfigMap")
    settings = yaml.safe_load(data["ramet.yaml"]) | {"namespace": namespace, "base_image": image}
    del settings["registry_url"]
    data["ramet.yaml"] = yaml.safe_dump(settings)
    return [each for each in made if each["kind"] in ("ConfigMap", "Service", "StatefulSet")]


def container_of(pod: Any) -> Any:
    """Return the status of the one container of a pod."""
    (status,) = pod.status.containerStatuses
    return status


def is_ready(pod: Any) -> bool:
    """Return whether the one container of a pod has started and is ready."""
    return [each.ready for each in pod.status.containerStatuses or ()] == [True]


async def wait_until(kube: AsyncClient, condition: Callable[[Any], Any], kind: Any, name: str) -> Any:
    """Return an object once `condition` is true of it. Fails after three minutes."""
    async with asyncio.timeout(180):
        while True:
            found = await kube.get(kind, name)
            if condition(found):
                return found
            await asyncio.sleep(0.2)


async def wait_until_serving(address: str) -> None:
    """Wait until the Service leads to the pod: the rules of the node follow some time after the pod is ready."""
    async with asyncio.timeout(180), httpx2.AsyncClient(base_url=address, timeout=180, trust_env=False) as http:
        while True:
            with suppress(httpx2.ConnectError):
                assert (await http.get("/readyz")).status_code == 200
                return
            await asyncio.sleep(0.2)


async def check_agent_in_pod(kube: AsyncClient, address: str) -> None:
    """Spawn a model agent with a policy: it answers from a pod, and the pod is removed with it."""
    async with ramet.connect(address, TOKEN) as client:
        team = await client.create_team({"agents": 1}, name="first")
        agent = await client.spawn_agent(
            team.team.id, "bob", "llm", {"model": "offline"}, transport_format="openai", policy=Policy(memory_mb=256),
            key=team.key,
        )  # fmt: skip
        assert agent.agent.isolation == "L2"
        asking = asyncio.create_task(ask(client, agent, "Who are you?", lambda _: None))
        async with asyncio.timeout(180):  # Its pod is there as long as the turn.
            while [is_ready(pod) async for pod in kube.list(Pod, labels={**MANAGED})] != [True]:
                assert not asking.done(), "it was answered, and no pod was ready before"
                await asyncio.sleep(0.01)
        assert await asking
        await client.kill_agent(agent.agent.id, key=agent.nonce)
        async with asyncio.timeout(180):  # What came of the run is on record first.
            while [pod async for pod in kube.list(Pod, labels={**MANAGED})]:  # noqa: ASYNC110 - it is another's to say
                await asyncio.sleep(0.05)


async def test_a_kernel_runs_as_the_manifests_say(
    cluster: Cluster, namespace: str, kernel_image: str, kernel_account: Account
) -> None:
    """The kernel becomes ready, answers by its Service, runs agents in pods, reports metrics, and ends on request."""
    secrets = {"ramet-operator": {"token": TOKEN}, "ramet-postgres": {"url": "/var/lib/ramet/journal.db"}}
    async with cluster.client(namespace) as kube:
        for name, data in secrets.items():
            await kube.create(Secret(metadata=ObjectMeta(name=name), stringData=data))
        for each in fit_to_one_node(
            with_namespace(build_manifests(DEPLOY / "example"), namespace), namespace, kernel_image
        ):
            await kube.create(from_dict(each))

        await wait_until(kube, lambda found: found.status.readyReplicas == 1, StatefulSet, "ramet")
        pod, service = await kube.get(Pod, "ramet-0"), await kube.get(Service, "ramet")
        assert service.spec
        assert container_of(pod).restartCount == 0
        address = f"http://{service.spec.clusterIP}:8470"
        await wait_until_serving(address)
        await check_agent_in_pod(kube, address)
        async with httpx2.AsyncClient(base_url=address, timeout=180, trust_env=False) as http:
            assert (await http.get("/v1/teams")).status_code == 401
            metrics = scrape((await http.get("/metrics")).text)
        assert metrics.value("ramet_sandboxes_started_total", backend="kubernetes") == 1

        # A log ends with its program. What the kubelet of the test cluster says of an end may come a minute late.
        log = kube.log("ramet-0", follow=True)
        assert await anext(aiter(log))
        await kube.patch(StatefulSet, "ramet", {"spec": {"replicas": 0}})
        async with asyncio.timeout(180):
            assert not [line async for line in log if "Traceback" in line]
