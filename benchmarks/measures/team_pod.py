"""Runs that start in the existing pod of their team, on the cluster of KUBECONFIG and REGISTRY."""

from __future__ import annotations

import time
from pathlib import Path
from statistics import median

import msgspec

from benchmarks.cluster import GRANT, create_pod_namespace, spec
from benchmarks.cost import Figures
from ramet.core.policy.reservation import Reservation
from ramet.isolation.kubernetes.backend import KubernetesBackend

TEAM = Reservation(name="bench", memory_mb=512, sandboxes=8)


async def measure(runs: int = 60) -> Figures:
    """Measure consecutive starts, each with an empty workspace: from the call until all gates are shut."""
    async with create_pod_namespace() as at:
        backend = KubernetesBackend(at.runs, namespace=at.namespace, image=at.image, team=TEAM)
        try:
            return await _start_runs(backend, at.runs, runs)
        finally:
            await backend.close()


async def _start_runs(backend: KubernetesBackend, folder: Path, runs: int) -> Figures:
    starts, cpu = list[float](), list[float]()
    pod_names, grant = set[str](), msgspec.structs.replace(GRANT, reservation=TEAM)
    for number in range(runs + 1):
        wanted = spec(folder, f"run-{number}", grant)
        began, used = time.perf_counter(), time.process_time()
        sandbox = await backend.start(wanted)
        starts.append(1000 * (time.perf_counter() - began))
        cpu.append(1000 * (time.process_time() - used))
        pod_names.add(sandbox.pod)
        await sandbox.clean_up()
    assert len(pod_names) == 1, "they share a pod"
    warm = starts[1:]
    return {"median_ms": median(warm), "worst_ms": max(warm), "cpu_ms": median(cpu[1:]), "first_s": starts[0] / 1000}
