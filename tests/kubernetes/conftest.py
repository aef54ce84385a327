"""What tests with a real cluster use."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from lightkube import Client, SingleConfig
from lightkube.codecs import from_dict
from lightkube.config.models import Context, User
from lightkube.models.authentication_v1 import TokenRequestSpec
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.core_v1 import ServiceAccountToken

from ramet import AgentRuntime
from ramet.isolation.folders import RunFolders
from tests.support import kernel_image as kernel_image_of
from tests.support.cluster import LEFTOVERS, Cluster, Leftovers, base_image, cluster, given, may, namespace, until
from tests.support.manifests import DEPLOY, built, relocated
from tests.support.pods import Pods, pod_images, pods, scratch, sent, shared_namespace

__all__ = ["base_image", "cluster", "namespace", "pod_images", "pods", "scratch", "sent", "shared_namespace"]


def pytest_configure(config: pytest.Config) -> None:
    """What tests leave in a cluster is looked for where one is given."""
    if (found := given()) is not None:
        config.pluginmanager.register(Leftovers(found), LEFTOVERS)


@pytest.fixture
async def runtime(pods: Pods, scratch: Path) -> AsyncIterator[AgentRuntime]:
    """A runtime whose agents work in pods; when it has stopped, none is left."""
    runs = RunFolders(scratch).root
    runs.mkdir(0o700, parents=True)
    backend = pods.backend(runs)
    try:
        async with AgentRuntime(working_dir=scratch, backend=backend) as runtime:
            yield runtime
    finally:
        await backend.close()
    assert await pods.names() == []


@pytest.fixture
def kernel_config(cluster: Cluster, namespace: str) -> Iterator[SingleConfig]:
    """What a kernel of `deploy/` may, with agents in `namespace`; the names of its roles begin with that and a dash."""
    rights: list[Any] = [
        from_dict(each)
        for each in relocated(built(DEPLOY / "example"), namespace)
        if each["kind"] in ("ServiceAccount", "ClusterRole", "ClusterRoleBinding", "RoleBinding")
    ]
    wide = [each for each in rights if each.metadata.namespace is None]
    with cluster.blocking_client(namespace) as kube:
        try:
            for each in rights:
                if each.metadata.name != "default":
                    kube.create(each)
            asked = ServiceAccountToken(metadata=ObjectMeta(), spec=TokenRequestSpec(audiences=[]))
            answer = kube.create(asked, "ramet-kernel")
            assert answer.status
            config = cluster.config
            kernel = SingleConfig(
                context_name="kernel",
                context=Context(cluster=config.context.cluster, namespace=namespace, user="kernel"),
                cluster=config.cluster,
                user=User(token=answer.status.token),
                fname=config.fname,
            )
            with Client(kernel, trust_env=False) as it:
                in_force = all(
                    until(partial(may, it, "create", *each)) for each in (("pods", namespace), ("namespaces", ""))
                )
                assert in_force, "what is granted is not in force"
            yield kernel
        finally:
            for each in wide:
                kube.delete(type(each), each.metadata.name)


@pytest.fixture(scope="session")
def kernel_image(cluster: Cluster) -> str:
    """An image of ramet as it is here, in the registry of the cluster."""
    missing = [each for each in kernel_image_of.NEEDED if shutil.which(each) is None]
    if missing:
        pytest.skip(f"not installed: {', '.join(missing)}")
    return kernel_image_of.pushed(cluster.registry)
