"""What the API of a cluster is asked for in the life of a pod, and what an idle one takes of its kernel.

tests/cluster/cluster.sh run .venv/bin/python -m benchmarks.pod_life     # or with KUBECONFIG and REGISTRY of yours
"""

from __future__ import annotations

import asyncio
import collections
import json
import os
import secrets
import tempfile
from pathlib import Path
from typing import Any

import httpx2
import psutil
from lightkube import AsyncClient
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.core_v1 import Namespace, Pod

from ramet.core.policy import Grant
from ramet.isolation.contract import Sandbox, SandboxSpec
from ramet.isolation.kubernetes.backend import KubernetesBackend
from ramet.services.packaging.registry import Registry
from ramet.services.packaging.runtime_image import runtime_image

PODS = 6
GRANT = Grant(memory_mb=64, tmpfs_size_mb=8, workspace_size_mb=8)


async def measure(pods: int = PODS) -> dict[str, float]:
    """For each of so many at once, that are attached to; none of them does anything."""
    async with Registry(f"http://{os.environ['REGISTRY']}") as registry:
        image = await runtime_image(registry, "base:1", "bare")
    name = f"ramet-bench-{secrets.token_hex(4)}"
    with tempfile.TemporaryDirectory(dir="/var/tmp", prefix="ramet-bench-") as folder:
        async with AsyncClient(namespace=name) as kube:
            await kube.create(Namespace(metadata=ObjectMeta(name=name)))
            try:
                backend = KubernetesBackend(Path(folder) / "runs", namespace=name, image=image)
                try:
                    return await _lives(backend, Path(folder), pods)
                finally:
                    await backend.close()
            finally:
                await kube.deletecollection(Pod, grace_period=0)
                await kube.delete(Namespace, name)


async def _lives(backend: KubernetesBackend, folder: Path, pods: int) -> dict[str, float]:
    asked = _count_requests()
    await backend.probe()
    await (await _start(backend, folder, "first")).clean_up()  # which has what is made once
    asked.clear()
    fds, kb = _descriptors(), _memory_kb()
    living = await asyncio.gather(*(_start(backend, folder, f"pod-{number}") for number in range(pods)))
    figures = {"descriptors": (_descriptors() - fds) / pods, "idle_kb": (_memory_kb() - kb) / pods}
    await asyncio.gather(*(each.clean_up() for each in living))
    return figures | {what: count / pods for what, count in sorted(asked.items())}


def _count_requests() -> collections.Counter[str]:
    """Of all clients of this process, from now on, by method and what they are about."""
    asked, send = collections.Counter[str](), httpx2.AsyncClient.send

    async def counted(self: httpx2.AsyncClient, request: httpx2.Request, **options: Any) -> httpx2.Response:
        *_, before, last = request.url.path.split("/")
        kind = before if before in ("pods", "secrets", "namespaces") else last
        asked[f"{request.method} {kind}"] += 1
        return await send(self, request, **options)

    httpx2.AsyncClient.send = counted  # type: ignore[method-assign]
    return asked


async def _start(backend: KubernetesBackend, folder: Path, name: str) -> Sandbox:
    workspace = folder / "runs" / name
    workspace.mkdir(parents=True)
    entry = "ramet.isolation.conformance.guest:main"
    return await backend.start(SandboxSpec(run=name, grant=GRANT, workspace=workspace, entry=entry))


def _descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))  # noqa: PTH208


def _memory_kb() -> float:
    return float(psutil.Process().memory_full_info().uss) / 1024


if __name__ == "__main__":
    print(json.dumps(asyncio.run(measure())))
