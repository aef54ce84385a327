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
    yield me + " "
    until = time.monotonic() + float(text)
    while time.monotonic() < until:
        time.sleep(0.05)
    yield me
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
async def test_a_functions_turn_in_a_pod_is_whole_or_over(
    how: signal.Signals,
    all_kernels: Kernels,
    cluster: Cluster,
    namespace: str,
    kernel_account: Account,
    pod_images: object,
) -> None:
    """A kernel that is told to end waits for it; after one that was killed another ends it, and its pod at once."""
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
        turn = Reader(two, ada, body("600" if how == signal.SIGKILL else "2"))
        await eventually(lambda: turn.text.endswith(" "))
        async with cluster.client(namespace) as kube:
            assert len([each async for each in kube.list(Pod)]) == 1
            first.process.send_signal(how)
            await turn.done
            while [each async for each in kube.list(Pod)]:  # noqa: ASYNC110 - it is another's to say
                await asyncio.sleep(0.05)
    first.process.wait()
    me, _, again = turn.text.partition(" ")
    assert [each.number for each in turn.chunks] == list(range(1, len(turn.chunks) + 1))
    assert (turn.chunks[-1].kind, again) == (("error", "") if how == signal.SIGKILL else ("done", me))
