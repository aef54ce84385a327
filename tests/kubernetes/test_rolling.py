"""Kernels of one PostgreSQL come and go, over a turn that is under way in a pod."""

from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from lightkube.resources.core_v1 import Pod

from ramet.core.policy import Policy
from tests.support.acceptance import body, image_of
from tests.support.account import Account
from tests.support.cluster import Cluster
from tests.support.kernels import Kernels, kernels
from tests.support.pods import settings_of
from tests.support.postgres import Server, postgres
from tests.support.turns import Reader
from tests.support.waiting import eventually

__all__ = ["postgres"]  # a fixture is used by its name

pytestmark = [pytest.mark.kubernetes, pytest.mark.timeout(300)]  # an image is made

#: Says which call it is, waits for so many seconds, and says it again.
KIT = b"""
import time, uuid

def hold(text):
    me = uuid.uuid4().hex
    print(me, flush=True)
    until = time.monotonic() + float(text)
    while time.monotonic() < until:
        time.sleep(0.05)
    return me
"""


@pytest.fixture
def all_kernels(tmp_path: Path, postgres: Server) -> Iterator[Kernels]:
    """None at first."""
    with kernels(postgres, tmp_path) as found:
        yield found


def free_port(host: str) -> int:
    """One where nobody listens yet."""
    with socket.socket() as trial:
        trial.bind((host, 0))
        return int(trial.getsockname()[1])


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM], ids=["killed", "told to end"])
async def test_a_functions_turn_in_a_pod_goes_on_there(
    how: signal.Signals,
    all_kernels: Kernels,
    cluster: Cluster,
    namespace: str,
    kernel_account: Account,
    pod_images: object,
) -> None:
    """Another kernel takes it over, which has other folders: the function is not called again, its turn is whole."""
    settings = settings_of(cluster, namespace, kernel_account.kubeconfig)
    first, second = [
        all_kernels.begin(name, **settings, RAMET_PODS_DIAL=f"{cluster.host}:{free_port(cluster.host)}")
        for name in ("one", "two")
    ]
    async with all_kernels.client(first) as one, all_kernels.client(second) as two:
        crew = await one.create_team({"agents": 1}, name="crew")
        image, info = await image_of(one, kit=KIT), {"function": "kit:hold"}
        ada = await one.spawn_agent(
            "crew", "ada", "function", info, image=image, policy=Policy(), transport_format="openai", key=crew.key
        )
        turn = Reader(two, ada, body("2"))
        await eventually(lambda: turn.text.endswith("\n"))
        first.process.send_signal(how)
        await turn.done
        async with cluster.client(namespace) as kube:
            while [each async for each in kube.list(Pod)]:  # noqa: ASYNC110 - it is another's to say
                await asyncio.sleep(0.05)
    first.process.wait()
    me, _, again = turn.text.partition("\n")
    assert [each.number for each in turn.chunks] == list(range(1, len(turn.chunks) + 1))
    assert (turn.chunks[-1].kind, again) == ("done", me), turn.chunks
