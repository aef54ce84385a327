"""Fixtures for tests with a real cluster."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from ramet import AgentRuntime
from ramet.isolation.workspace.run_dirs import RunFolders
from tests.support import kernel_image as kernel_image_of
from tests.support.account import kernel_account
from tests.support.cluster import LEFTOVERS, Cluster, Leftovers, available_cluster, base_image, cluster, namespace
from tests.support.pods import Pods, pod_images, pods, scratch, sent, shared_namespace

__all__ = [
    "base_image", "cluster", "kernel_account", "namespace", "pod_images", "pods", "scratch", "sent", "shared_namespace",
]  # fmt: skip


def pytest_configure(config: pytest.Config) -> None:
    """Register the check for objects that tests leave in the cluster, if a cluster is given."""
    if (found := available_cluster()) is not None:
        config.pluginmanager.register(Leftovers(found), LEFTOVERS)


@pytest.fixture
async def runtime(pods: Pods, scratch: Path) -> AsyncIterator[AgentRuntime]:
    """A runtime whose agents work in pods. No pod is left when it has stopped."""
    runs = RunFolders(scratch).root
    runs.mkdir(0o700, parents=True)
    backend = pods.backend(runs)
    try:
        async with AgentRuntime(working_dir=scratch, backend=backend) as runtime:
            yield runtime
    finally:
        await backend.close()
    assert await pods.names() == []


@pytest.fixture(scope="session")
def kernel_image(cluster: Cluster) -> str:
    """Return the reference of an image of this source tree, in the registry of the cluster."""
    missing = [each for each in kernel_image_of.NEEDED if shutil.which(each) is None]
    if missing:
        pytest.skip(f"not installed: {', '.join(missing)}")
    return kernel_image_of.pushed(cluster.registry)
