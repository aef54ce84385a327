"""Tests of the reaper: it removes resources of dead kernels, and a failed removal does not stop the others."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from ramet.isolation.kubernetes import reaper
from ramet.isolation.kubernetes.api import labels
from ramet.isolation.kubernetes.api.client import Api
from ramet.isolation.kubernetes.kernels import KernelLease, Kernels
from ramet.isolation.kubernetes.reaper import Reaper
from tests.support.api_server import ApiServer, refusal, serving
from tests.unit.isolation.kubernetes.test_kubeconfig import write_kubeconfig


@dataclass
class ReapingKernel:
    """Kernel that reaps the resources of `dead`, a kernel with a free lock."""

    server: ApiServer
    reaper: Reaper
    kernels: Kernels
    dead: str


@pytest.fixture
async def reaping_kernel(tmp_path: Path) -> AsyncIterator[ReapingKernel]:
    async with contextlib.AsyncExitStack() as stack:
        server, address = await stack.enter_async_context(serving())
        kubeconfig, presence = write_kubeconfig(tmp_path, server=address), KernelLease(tmp_path / "runs")
        stack.callback(presence.release)
        kernels = Kernels(presence, None, None)
        (tmp_path / "runs" / ".kernels" / "dead").touch()
        marks = labels.selector(place=kernels.place, owner=kernels.owner("agents", "dead"))
        for kind in ("pods", "secrets", "networkpolicies"):
            for name in ("one", "two"):
                server.add(kind, {"metadata": {"name": name, "labels": marks}})
        reaper = Reaper(kernels, lambda namespace: Api(namespace, kubeconfig))
        stack.push_async_callback(reaper.close)
        yield ReapingKernel(server, reaper, kernels, "dead")


@pytest.mark.parametrize("kind", ["pods", "secrets", "networkpolicies"])
async def test_a_failed_removal_does_not_stop_others_and_is_retried(
    reaping_kernel: ReapingKernel, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No run starts before the reaper has run, so one pod of a dead kernel must not block all others."""
    monkeypatch.setattr(reaper, "_LATER_S", 0.01)
    refusals = reaping_kernel.server.replies[f"DELETE {kind}"] = [refusal(403, "not this one")]

    reaped = await reaping_kernel.reaper.reap("agents")

    assert (len(reaped), len(reaping_kernel.server.objects), refusals) == (5, 1, [])
    assert reaping_kernel.kernels.dead() == [reaping_kernel.dead], "something of it is left"
    looking = reaping_kernel.reaper._task
    assert looking is not None
    await looking
    assert not reaping_kernel.server.objects
    assert not reaping_kernel.kernels.dead()
