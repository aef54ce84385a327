"""Runs in pods for tests: a backend that is open, and the specification of a run."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

from ramet.core.policy.policy import DEFAULTS, Grant
from ramet.isolation.contract import SandboxSpec
from ramet.isolation.kubernetes.backend import KubernetesBackend
from ramet.isolation.kubernetes.placement import single
from ramet.isolation.kubernetes.placement.warm_pool import PodShape
from ramet.testing.conformance.isolation.harness import ENTRY, BackendFixture, Workdir, replace_grant
from tests.support.waiting import eventually

#: Of a run where a test is not about a limit: many have room on a node.
SMALL = Grant(memory_mb=64, tmpfs_size_mb=8, workspace_size_mb=8)


def spec(runs: Path, run: str, grant: Grant = DEFAULTS, *, mounts: Sequence[Path] = ()) -> SandboxSpec:
    """Return the specification of the suite's guest in a new workspace, with these mounts."""
    workspace = runs / run
    workspace.mkdir(parents=True)
    grant = replace_grant(grant, readonly_mounts=tuple(map(str, mounts)))
    return SandboxSpec(run=run, grant=grant, workspace=workspace, entry=ENTRY)


@contextlib.asynccontextmanager
async def open_pod_backend(backend: Any, scratch: Path) -> AsyncIterator[BackendFixture]:
    """Open a backend, and close it in the end."""
    (scratch / "runs").mkdir(exist_ok=True)
    try:
        yield BackendFixture(Workdir("", scratch), backend, await backend.probe())
    finally:
        await backend.close()


async def wait_for(backend: KubernetesBackend, spec: SandboxSpec, count: int = 1) -> list[str]:
    """Make so many pods wait for such a run, as after an earlier run; return their names."""
    level, runtime_class = backend._level(await backend.probe(), spec.grant.isolation)
    furnished = await backend._images.image_for(spec)
    berth = single.pod_request(spec, furnished.image_paths, runtime_class)
    shape = PodShape.of(backend._template(furnished.image), berth, level)
    assert shape is not None, "nothing travels to it"
    backend._own_pods._warm_pool.request(shape)
    return await wait_for_warm_pods(backend, count)


async def wait_for_warm_pods(backend: KubernetesBackend, count: int = 1) -> list[str]:
    """Wait until so many warm pods are ready for runs; return their names."""
    spares = backend._own_pods._warm_pool
    await eventually(lambda: len(spares.ready_pods) == count)
    return spares.ready_pods
