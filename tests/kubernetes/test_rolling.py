"""Kernels of one PostgreSQL database are replaced during a turn in a pod."""

from __future__ import annotations

import asyncio
import re
import signal
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from lightkube.resources.core_v1 import Pod

from ramet.core.policy.policy import Policy
from tests.support.acceptance import body, image_of
from tests.support.account import Account
from tests.support.cluster import Cluster
from tests.support.free_ports import free_port
from tests.support.kernels import Kernel, Kernels, kernels
from tests.support.pods import settings_of
from tests.support.postgres import Server, postgres
from tests.support.turns import Reader
from tests.support.waiting import eventually

__all__ = ["postgres"]  # a fixture is used by its name

pytestmark = [pytest.mark.kubernetes, pytest.mark.timeout(600)]  # an image is made

#: Says which call it is, waits for so many seconds, and says it again.
KIT = b"""
import time, uuid

def hold(text: str):
    'Hold the line.'
    me = uuid.uuid4().hex
    print(me, flush=True)
    until = time.monotonic() + float(text)
    while time.monotonic() < until:
        time.sleep(0.05)
    return me
"""


#: Agents of that, and what they say in all.
KINDS = [
    ("function", {"function": "kit:hold"}, r"([0-9a-f]{32})\n\1"),
    ("slow", {"model": "hearing", "tools": ["kit:hold"]}, r"calling \s+heard [0-9a-f]{32}"),
]


@pytest.fixture
def all_kernels(tmp_path: Path, postgres: Server) -> Iterator[Kernels]:
    """The kernels of this test: none at first."""
    with kernels(postgres, tmp_path) as found:
        yield found


@pytest.fixture
def two_kernels(
    all_kernels: Kernels, cluster: Cluster, namespace: str, kernel_account: Account, pod_images: object
) -> tuple[Kernel, Kernel]:
    """Two kernels of one database, each with its own folder and its own address, which pods dial."""
    settings = settings_of(cluster, namespace, kernel_account.kubeconfig)
    first, second = [
        all_kernels.begin(name, **settings, RAMET_PODS_DIAL=f"{cluster.host}:{free_port(cluster.host)}")
        for name in ("one", "two")
    ]
    return first, second


@pytest.mark.parametrize("stop_signal", [signal.SIGKILL, signal.SIGTERM], ids=["killed", "told to end"])
@pytest.mark.parametrize(("kind", "info", "says"), KINDS, ids=["function", "conversation"])
async def test_a_turn_in_a_pod_continues_there_under_another_kernel(
    kind: str,
    info: Mapping[str, Any],
    says: str,
    stop_signal: signal.Signals,
    two_kernels: tuple[Kernel, Kernel],
    all_kernels: Kernels,
    cluster: Cluster,
    namespace: str,
) -> None:
    """Another kernel takes the turn over: it calls no function or tool again, cuts off no call, and loses no chunk."""
    first, second = two_kernels
    async with all_kernels.client(first) as one, all_kernels.client(second) as two:
        crew = await one.create_team({"agents": 1}, name="crew")
        image = await image_of(one, kit=KIT)
        ada = await one.spawn_agent(
            "crew", "ada", kind, info, image=image, policy=Policy(), transport_format="openai", key=crew.key
        )
        turn = Reader(two, ada, body("2"))
        await eventually(lambda: turn.text.endswith(("\n", "calling ")))
        first.process.send_signal(stop_signal)
        await turn.done
        async with cluster.client(namespace) as kube:
            while [each async for each in kube.list(Pod)]:  # noqa: ASYNC110 - it is another's to say
                await asyncio.sleep(0.05)
    first.process.wait()
    assert [each.number for each in turn.chunks] == list(range(1, len(turn.chunks) + 1))
    assert turn.chunks[-1].kind == "done", turn.chunks
    assert re.fullmatch(says, turn.text), turn.text
