"""Checks of the test cluster: pods run, reach this machine, and are removed with their namespace."""

from __future__ import annotations

import asyncio
import contextlib

import pytest
from lightkube.models.core_v1 import Container, PodSpec
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.core_v1 import Namespace, Pod

from tests.support.cluster import Cluster, remove_namespaces

pytestmark = pytest.mark.kubernetes

DIAL = "import socket; s = socket.create_connection(({host!r}, {port})); s.sendall(b'here'); s.recv(1)"


async def test_a_pod_reaches_this_machine(cluster: Cluster, namespace: str, base_image: str) -> None:
    """A program in a pod of the base image dials the address that the tests listen at."""
    message = asyncio.get_running_loop().create_future()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.closing(writer):
            message.set_result(await reader.readexactly(4))

    async with await asyncio.start_server(answer, cluster.host) as server, cluster.client(namespace) as kube:
        dial = DIAL.format(host=cluster.host, port=server.sockets[0].getsockname()[1])
        spec = PodSpec(containers=[Container(name="dial", image=base_image, args=["python3", "-c", dial])])
        spec.restartPolicy, spec.automountServiceAccountToken = "Never", False
        await kube.create(Pod(metadata=ObjectMeta(name="dial"), spec=spec))
        async with asyncio.timeout(180):
            assert await message == b"here"


def test_a_removed_namespace_loses_its_pods_at_once(cluster: Cluster, namespace: str, base_image: str) -> None:
    """Removal of a namespace ends its pods at once, even a pod that ignores SIGTERM."""
    with cluster.blocking_client(namespace) as kube:
        spec = PodSpec(containers=[Container(name="one", image=base_image, args=["sleep", "600"])])
        kube.create(Pod(metadata=ObjectMeta(name="sleeper"), spec=spec))

        remove_namespaces(kube, namespace)

        assert list(kube.list(Pod)) == []
        states = {each.metadata.name: each.status.phase for each in kube.list(Namespace)}  # type: ignore[union-attr]
        assert states.get(namespace, "Terminating") == "Terminating"
