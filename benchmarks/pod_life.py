"""Requests to the API of a cluster during the life of a pod, and the costs of an idle pod for its kernel.

tests/cluster/cluster.sh run .venv/bin/python -m benchmarks.pod_life     # or with KUBECONFIG and REGISTRY of yours
"""

from __future__ import annotations

import asyncio
import collections
import json
import os
from pathlib import Path
from typing import Any

import httpx2

from benchmarks.cluster import create_pod_namespace, spec
from benchmarks.cost import own_kb
from ramet.isolation.kubernetes.backend import KubernetesBackend

PODS = 6


async def measure(pods: int = PODS) -> dict[str, float]:
    """Return the figures for each of so many concurrent pods. Kernels attach to them, and they do nothing."""
    async with create_pod_namespace() as at:
        backend = KubernetesBackend(at.runs, namespace=at.namespace, image=at.image)
        try:
            return await _measure_lives(backend, at.runs, pods)
        finally:
            await backend.close()


async def _measure_lives(backend: KubernetesBackend, runs: Path, pods: int) -> dict[str, float]:
    asked = _count_requests()
    await backend.probe()
    await (await backend.start(spec(runs, "first"))).clean_up()  # which has what is made once
    asked.clear()
    fds, kb = _descriptors(), own_kb()
    living = await asyncio.gather(*(backend.start(spec(runs, f"pod-{number}")) for number in range(pods)))
    figures = {"descriptors": (_descriptors() - fds) / pods, "idle_kb": (own_kb() - kb) / pods}
    await asyncio.gather(*(each.clean_up() for each in living))
    return figures | {request: count / pods for request, count in sorted(asked.items())}


def _count_requests() -> collections.Counter[str]:
    """Count all requests of this process from now on, by method and kind of object."""
    asked, send = collections.Counter[str](), httpx2.AsyncClient.send

    async def counted(self: httpx2.AsyncClient, request: httpx2.Request, **options: Any) -> httpx2.Response:
        *_, before, last = request.url.path.split("/")
        kind = before if before in ("pods", "secrets", "namespaces") else last
        asked[f"{request.method} {kind}"] += 1
        return await send(self, request, **options)

    httpx2.AsyncClient.send = counted  # type: ignore[method-assign]
    return asked


def _descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))  # noqa: PTH208


if __name__ == "__main__":
    print(json.dumps(asyncio.run(measure())))
