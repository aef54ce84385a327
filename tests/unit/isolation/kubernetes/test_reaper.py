"""What dead kernels have left is removed, and what cannot be keeps nothing else from that."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from ramet.isolation.kubernetes import reaper
from ramet.isolation.kubernetes.api import labels
from ramet.isolation.kubernetes.api.client import Api
from ramet.isolation.kubernetes.kernel_lease import KernelLease
from ramet.isolation.kubernetes.kernels import Kernels
from ramet.isolation.kubernetes.reaper import Reaper
from tests.support.api_server import ApiServer, refusal, serving
from tests.unit.isolation.kubernetes.test_kubeconfig import written


@dataclass
class Heir:
    """A kernel that reaps what `dead`, by its lock, has left."""

    server: ApiServer
    reaper: Reaper
    kernels: Kernels
    dead: str


@pytest.fixture
async def heir(tmp_path: Path) -> AsyncIterator[Heir]:
    async with contextlib.AsyncExitStack() as stack:
        server, address = await stack.enter_async_context(serving())
        kubeconfig, presence = written(tmp_path, server=address), KernelLease(tmp_path / "runs")
        stack.callback(presence.release)
        kernels = Kernels(presence, None, None)
        (tmp_path / "runs" / ".kernels" / "dead").touch()
        marks = labels.selector(place=kernels.place, owner=kernels.owner("agents", "dead"))
        for kind in ("pods", "secrets", "networkpolicies"):
            for name in ("one", "two"):
                server.add(kind, {"metadata": {"name": name, "labels": marks}})
        made = Reaper(kernels, lambda namespace: Api(namespace, kubeconfig))
        stack.push_async_callback(made.close)
        yield Heir(server, made, kernels, "dead")


@pytest.mark.parametrize("kind", ["pods", "secrets", "networkpolicies"])
async def test_what_cannot_be_removed_keeps_nothing_else_and_is_tried_again(
    heir: Heir, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No run can be started before what is left was looked at: one pod of the dead would keep all of the living out."""
    monkeypatch.setattr(reaper, "_LATER_S", 0.01)
    refused = heir.server.replies[f"DELETE {kind}"] = [refusal(403, "not this one")]

    gone = await heir.reaper.reap("agents")

    assert (len(gone), len(heir.server.there), refused) == (5, 1, [])
    assert heir.kernels.dead() == [heir.dead], "something of it is left"
    looking = heir.reaper._task
    assert looking is not None
    await looking
    assert not heir.server.there
    assert not heir.kernels.dead()
