"""Pods for measurements, in a namespace that is removed afterwards, with agents in them that do nothing."""

from __future__ import annotations

import os
import secrets
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple

from lightkube import AsyncClient
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.core_v1 import Namespace, Pod

from ramet.core.policy.policy import Grant
from ramet.isolation.contract import SandboxSpec
from ramet.services.packaging.oci.registry import Registry
from ramet.services.packaging.runtime_image.build import RuntimeImage, runtime_image
from ramet.testing.conformance.isolation.harness import ENTRY

_BASE = "base:1"
GRANT = Grant(memory_mb=64, tmpfs_size_mb=8, workspace_size_mb=8)


class PodNamespace(NamedTuple):
    """The namespace and the image of pods, and the folder of all workspaces."""

    namespace: str
    image: RuntimeImage
    runs: Path


@asynccontextmanager
async def create_pod_namespace() -> AsyncIterator[PodNamespace]:
    """Make a namespace for pods on the cluster of KUBECONFIG, with the registry of REGISTRY."""
    async with Registry(f"http://{os.environ['REGISTRY']}") as registry:
        image = await runtime_image(registry, _BASE, "bare")
    namespace = f"ramet-bench-{secrets.token_hex(4)}"
    with tempfile.TemporaryDirectory(dir="/var/tmp", prefix="ramet-bench-") as folder:
        async with AsyncClient(namespace=namespace) as kube:
            await kube.create(Namespace(metadata=ObjectMeta(name=namespace)))
            try:
                yield PodNamespace(namespace, image, Path(folder) / "runs")
            finally:
                await kube.deletecollection(Pod, grace_period=0)
                await kube.delete(Namespace, namespace)


def spec(runs: Path, run: str, grant: Grant = GRANT) -> SandboxSpec:
    """Return the specification of a run with a new workspace."""
    workspace = runs / run
    workspace.mkdir(parents=True)
    return SandboxSpec(run=run, grant=grant, workspace=workspace, entry=ENTRY)
