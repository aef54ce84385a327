"""Runs that start in the pod of their team, which is there: on the cluster of KUBECONFIG and REGISTRY."""

from __future__ import annotations

import os
import secrets
import tempfile
import time
from pathlib import Path
from statistics import median

from lightkube import AsyncClient
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.core_v1 import Namespace, Pod

from benchmarks.cost import Figures
from ramet.core.policy import Grant
from ramet.core.reservation import Reservation
from ramet.isolation.contract import SandboxSpec
from ramet.isolation.kubernetes.backend import KubernetesBackend
from ramet.services.packaging.registry import Registry
from ramet.services.packaging.runtime_image import runtime_image

BASE = "base:1"
TEAM = Reservation(name="bench", memory_mb=512, sandboxes=8)
GRANT = Grant(memory_mb=64, tmpfs_size_mb=8, workspace_size_mb=8, reservation=TEAM)
_ENTRY = "ramet.isolation.conformance.guest:main"


async def measure(runs: int = 60) -> Figures:
    """One after the other, each with an empty workspace: from the call to the word that all gates are shut."""
    async with Registry(f"http://{os.environ['REGISTRY']}") as registry:
        image = await runtime_image(registry, BASE, "bare")
    namespace = f"ramet-bench-{secrets.token_hex(4)}"
    with tempfile.TemporaryDirectory(dir="/var/tmp", prefix="ramet-bench-") as folder:
        async with AsyncClient(namespace=namespace) as kube:
            await kube.create(Namespace(metadata=ObjectMeta(name=namespace)))
            backend = KubernetesBackend(Path(folder) / "runs", namespace=namespace, image=image, team=TEAM)
            try:
                return await _measured(backend, Path(folder) / "runs", runs)
            finally:
                await backend.close()
                await kube.deletecollection(Pod, grace_period=0)
                await kube.delete(Namespace, namespace)


async def _measured(backend: KubernetesBackend, folder: Path, runs: int) -> Figures:
    starts, cpu = list[float](), list[float]()
    places = set[str]()
    for number in range(runs + 1):
        workspace = folder / str(number)
        workspace.mkdir(parents=True)
        spec = SandboxSpec(run=f"run-{number}", grant=GRANT, workspace=workspace, entry=_ENTRY)
        began, used = time.perf_counter(), time.process_time()
        sandbox = await backend.start(spec)
        starts.append(1000 * (time.perf_counter() - began))
        cpu.append(1000 * (time.process_time() - used))
        places.add(sandbox.pod)
        await sandbox.clean_up()
    assert len(places) == 1, "they share a pod"
    warm = starts[1:]
    return {"median_ms": median(warm), "worst_ms": max(warm), "cpu_ms": median(cpu[1:]), "first_s": starts[0] / 1000}
