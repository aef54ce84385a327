"""A kernel runs as `deploy/` says: as nobody, on a root that it cannot write, asked by probes, and heard by clients."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Callable
from typing import Any

import httpx2
import pytest
import yaml
from lightkube import AsyncClient
from lightkube.codecs import from_dict
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.apps_v1 import StatefulSet
from lightkube.resources.core_v1 import Pod, Secret, Service

from tests.support.cluster import Cluster
from tests.support.manifests import DEPLOY, Manifest, built, one, relocated
from tests.support.prometheus import scrape

pytestmark = [pytest.mark.kubernetes, pytest.mark.slow]

TOKEN = "sixteen-letters-at-least"


def small(manifests: list[Manifest], image: str) -> list[Manifest]:
    """One kernel, that needs no volume of the cluster and has its agents in its own pod: what one node can show."""
    made = copy.deepcopy(manifests)
    kernels = one(made, "StatefulSet")["spec"]
    kernels["replicas"] = 1
    del kernels["volumeClaimTemplates"]
    pod = kernels["template"]["spec"]
    pod["volumes"].append({"name": "work", "emptyDir": {}})
    pod["terminationGracePeriodSeconds"] = 600  # Whoever ends sooner did so by itself.
    pod["containers"][0] |= {"image": image}
    pod["containers"][0]["resources"]["requests"] = {"cpu": "100m", "memory": "128Mi"}
    (settings,) = (each["data"] for each in made if each["kind"] == "ConfigMap")
    settings["ramet.yaml"] = yaml.safe_dump(yaml.safe_load(settings["ramet.yaml"]) | {"backend": "local"})
    return [each for each in made if each["kind"] in ("ServiceAccount", "ConfigMap", "Service", "StatefulSet")]


def container_of(pod: Any) -> Any:
    """What is said of the one container of a pod."""
    (status,) = pod.status.containerStatuses
    return status


async def until(kube: AsyncClient, what: Callable[[Any], Any], kind: Any, name: str) -> Any:
    """An object once it is as it should be, for a minute and a half."""
    async with asyncio.timeout(90):
        while True:
            found = await kube.get(kind, name)
            if what(found):
                return found
            await asyncio.sleep(0.2)


async def test_a_kernel_runs_as_the_manifests_say(cluster: Cluster, namespace: str, kernel_image: str) -> None:
    """It becomes ready, answers by its Service, tells monitoring, and ends well when it is told to."""
    secrets = {"ramet-operator": {"token": TOKEN}, "ramet-postgres": {"url": "/var/lib/ramet/journal.db"}}
    async with cluster.client(namespace) as kube:
        for name, data in secrets.items():
            await kube.create(Secret(metadata=ObjectMeta(name=name), stringData=data))
        for each in small(relocated(built(DEPLOY / "example"), namespace), kernel_image):
            if each["metadata"]["name"] != "default":
                await kube.create(from_dict(each))

        await until(kube, lambda found: found.status.readyReplicas == 1, StatefulSet, "ramet")
        pod, service = await kube.get(Pod, "ramet-0"), await kube.get(Service, "ramet")
        assert service.spec
        assert container_of(pod).restartCount == 0
        async with httpx2.AsyncClient(
            base_url=f"http://{service.spec.clusterIP}:8470", timeout=30, trust_env=False
        ) as http:
            assert (await http.get("/healthz")).json()["status"] == "ok"
            assert scrape((await http.get("/metrics")).text).value("ramet_trees") == 0
            asked = {"resources": {"agents": 1}, "name": "first"}
            refused = await http.post("/v1/teams", json=asked)
            made = await http.post("/v1/teams", json=asked, headers={"authorization": f"Bearer {TOKEN}"})
        assert (refused.status_code, made.status_code) == (401, 201)

        # A log ends with its program. What the kubelet of the test cluster says of an end may come a minute late.
        log = kube.log("ramet-0", follow=True)
        assert "http://0.0.0.0:8470" in await anext(aiter(log))
        await kube.patch(StatefulSet, "ramet", {"spec": {"replicas": 0}})
        async with asyncio.timeout(90):
            assert not [line async for line in log if "Traceback" in line]
