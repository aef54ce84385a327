"""A backend of pods for checks that name one, and a look into pods for processes that still live.

Both take namespace and images from the environment, so that another process finds the same.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec
import pytest
import yaml
from httpx2.websockets import WebSocketUpgradeError
from lightkube import ApiError, AsyncClient, KubeConfig
from lightkube.resources.core_v1 import Namespace, Pod

from ramet.core.policy.policy import Isolation
from ramet.core.policy.reservation import Reservation
from ramet.isolation.contract import Image, Probe, Sandbox, SandboxSpec
from ramet.isolation.kubernetes.api import labels
from ramet.isolation.kubernetes.backend import KubernetesBackend
from ramet.isolation.kubernetes.connect.attach import Attach
from ramet.isolation.kubernetes.connect.dial import DialTransport
from ramet.isolation.kubernetes.connect.listener import SharedListener
from ramet.isolation.kubernetes.images import PodImage
from ramet.isolation.kubernetes.placement.sandbox import PodSandbox
from ramet.isolation.kubernetes.placement.shared import fits
from ramet.isolation.kubernetes.team_backend import TeamNamespaces
from ramet.isolation.remote.file_sync import KnownFiles, PackResult
from ramet.isolation.remote.transfer import OutgoingDir
from ramet.isolation.transport import certificates
from ramet.isolation.transport.listener import PATH, PodListener
from ramet.isolation.workspace.run_dirs import RunFolders
from ramet.services.packaging.oci.registry import Registry
from ramet.services.packaging.runtime_image.build import RuntimeImage, runtime_image
from ramet.services.packaging.runtime_image.files import PYTHON
from tests.support.account import Account
from tests.support.cluster import Cluster, create_namespace
from tests.support.free_ports import free_port
from tests.support.pod_runs import wait_for
from tests.support.relay import Relay, open_relay

NAMESPACE, IMAGES = "RAMET_TEST_NAMESPACE", "RAMET_TEST_IMAGES"
HOST = "RAMET_TEST_HOST"  #: the address at which pods find this machine
EYES = "RAMET_TEST_EYES"  #: a kubeconfig whose user may run programs in pods, which no kernel may
PATIENCE_S = 15.0  #: of both ends of a line: so long a pod outlives its kernel
CPU_RESERVED = "RAMET_TEST_CPU_RESERVED"  #: instead of RESERVED
RESERVED = 0.02  #: of a pod's processor: tests that run side by side share a node of two cores

_LOOK = """
import fcntl, sys
try:
    with open(sys.argv[1], "rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
except FileNotFoundError:
    pass
except BlockingIOError:
    print("held")
"""


def backend(runs: Path, team: Reservation | None = None, warm: int = 0) -> KubernetesBackend:
    """Return a backend of this cluster."""
    bare, llm = (RuntimeImage(each, "", f"python{PYTHON}") for each in os.environ[IMAGES].split())
    image: Mapping[Image, PodImage] = {"bare": bare, "llm": llm}
    reserved = float(os.environ.get(CPU_RESERVED, RESERVED))
    given: dict[str, Any] = {"reach": Attach(patience_s=PATIENCE_S), "cpu_reserved": reserved}
    return KubernetesBackend(runs, namespace=os.environ[NAMESPACE], image=image, team=team, warm=warm, **given)


def dialing_backend(runs: Path) -> TeamNamespaces:
    """Return a backend whose pods dial. Each call has a listener at its own port, and a new certificate authority."""
    host = os.environ[HOST]
    at = host, free_port(host)
    bare, llm = (RuntimeImage(each, "", f"python{PYTHON}") for each in os.environ[IMAGES].split())
    image: Mapping[Image, PodImage] = {"bare": bare, "llm": llm}
    listener = SharedListener(at, listen=at, identify=lambda: certificates.make([host]))
    return TeamNamespaces(runs, namespace=os.environ[NAMESPACE], image=image, listener=listener, cpu_reserved=RESERVED)


TEAM = Reservation(name="conformance-team", memory_mb=1024, sandboxes=8)


class TeamBackend:
    """A backend whose every run belongs to one team. A run shares its team's pod if that is enough, or has its own."""

    def __init__(self, runs: Path) -> None:
        self._pods = backend(runs, team=TEAM)
        self.name, self.owner = self._pods.name, self._pods.owner
        self.adopt, self.reap, self.close = self._pods.adopt, self._pods.reap, self._pods.close

    async def probe(self) -> Probe:
        """Return a probe with a lower level, and without CPU limits: runs of one pod are separated less than pods."""
        probe = await self._pods.probe()
        return probe._replace(level=Isolation.L1, mechanisms={**probe.mechanisms, "cgroup_cpu": False})

    async def start(self, spec: SandboxSpec) -> PodSandbox:
        """Start a run of the team; see `KubernetesBackend.start`."""
        spec = replace(spec, grant=msgspec.structs.replace(spec.grant, reservation=TEAM))
        sandbox = await self._pods.start(spec)
        assert (sandbox.level is Isolation.L1) is fits(spec), f"{spec} is at {sandbox.level}"
        return sandbox


class WarmPodBackend:
    """A backend whose every run starts in a warm pod."""

    def __init__(self, runs: Path) -> None:
        self._pods = backend(runs, warm=1)
        self.name, self.owner, self.probe = self._pods.name, self._pods.owner, self._pods.probe
        self.adopt, self.reap, self.close = self._pods.adopt, self._pods.reap, self._pods.close

    async def start(self, spec: SandboxSpec) -> PodSandbox:
        """Wait for a warm pod, and start a run in it; see `KubernetesBackend.start`."""
        waiting = await wait_for(self._pods, spec)
        sandbox = await self._pods.start(spec)
        assert [sandbox.pod] == waiting
        return sandbox


async def eyes(runs: Path, file: Path) -> bool:
    """Return whether a process in any pod of the namespace holds the lock on a file there."""
    known = KubeConfig.from_file(os.environ[EYES]).get()
    async with AsyncClient(known, namespace=os.environ[NAMESPACE]) as kube:
        async for pod in kube.list(Pod):
            assert pod.metadata is not None, "the API gives no pod without metadata"
            assert pod.metadata.name is not None, "nor without a name"
            try:
                result = await kube.exec(
                    pod.metadata.name, command=["python3", "-I", "-c", _LOOK, str(file)], stdout=True, decode="utf-8"
                )
            except (ApiError, WebSocketUpgradeError):  # It has just ended.
                continue
            if "held" in (result.stdout or ""):
                return True
    return False


@dataclass(frozen=True)
class Pods:
    """A namespace for pods, their images, and a kubeconfig with only the rights of a kernel."""

    cluster: Cluster
    namespace: str
    kubeconfig: Path
    images: Mapping[Image, PodImage]

    def backend(self, runs: Path, **given: Any) -> KubernetesBackend:
        """Return a backend of this namespace. Close it."""
        settings: dict[str, Any] = {
            "namespace": self.namespace,
            "image": self.images,
            "kubeconfig": self.kubeconfig,
            "reach": Attach(patience_s=PATIENCE_S),
            "cpu_reserved": RESERVED,
        }
        return KubernetesBackend(runs, **{**settings, **given})

    @contextlib.asynccontextmanager
    async def dialled(
        self, runs: Path, *, patience_s: float = PATIENCE_S, **given: Any
    ) -> AsyncIterator[tuple[KubernetesBackend, Relay]]:
        """Open a backend whose pods dial its own listener; yield it with the network between them."""
        host = self.cluster.host
        identity = certificates.make([host])
        async with PodListener(host, 0, identity.context) as landing, open_relay(host, landing.port, at=host) as relay:
            url = f"wss://{host}:{relay.port}{PATH}"
            reach = DialTransport(landing, url=url, ca=identity.ca, patience_s=patience_s)
            backend = self.backend(runs, reach=reach, **given)
            try:
                yield backend, relay
            finally:
                await backend.close()

    @contextlib.asynccontextmanager
    async def weather(self, folder: Path) -> AsyncIterator[tuple[Relay, Path]]:
        """Open a network between a kernel and the API that a test can cut; yield it with a kubeconfig that uses it."""
        config = yaml.safe_load(self.kubeconfig.read_text())
        url = urlsplit(config["clusters"][0]["cluster"]["server"])
        async with open_relay(url.hostname or "", url.port or 443) as relay:
            config["clusters"][0]["cluster"]["server"] = f"https://127.0.0.1:{relay.port}"
            file = folder / "kubeconfig"
            file.write_text(json.dumps(config))
            yield relay, file

    async def names(self) -> list[str]:
        """Return the names of all pods."""
        async with self.cluster.client(self.namespace) as kube:
            return [each.metadata.name or "" async for each in kube.list(Pod) if each.metadata is not None]

    async def wait_gone(self) -> None:
        """Wait until no pod is left."""
        async with asyncio.timeout(180):
            while await self.names():  # noqa: ASYNC110 - it is another's to say
                await asyncio.sleep(0.05)


def pod_of(sandbox: Sandbox) -> str:
    """Return the name of the pod of a sandbox."""
    assert isinstance(sandbox, PodSandbox)
    return sandbox.pod


def settings_of(cluster: Cluster, namespace: str, kubeconfig: Path | None = None) -> dict[str, str]:
    """Return the environment with which a server or an example has agents in pods, with all rights or with these."""
    settings = {"backend": "kubernetes", "namespace": namespace, "base_image": cluster.base_image.partition("/")[2]}
    settings |= {"registry_url": cluster.registry, "kubeconfig": str(kubeconfig or cluster.kubeconfig)}
    return {f"RAMET_{name.upper()}": value for name, value in settings.items()}


def live_objects_of(cluster: Cluster, working_dir: Path) -> list[str]:
    """Return the live objects of the kernels of a working directory; see `live_objects_at`."""
    return live_objects_at(cluster, (RunFolders(working_dir).root / ".kernels" / "place").read_text())


def live_objects_at(cluster: Cluster, place_id: str) -> list[str]:
    """Return the names of the pods of a place, and of the namespaces of its teams that are not being removed."""
    with cluster.blocking_client() as kube:
        pods = list(kube.list(Pod, namespace="*", labels={labels.PLACE: place_id}))
        spaces = [each for each in kube.list(Namespace, labels={labels.PLACE: place_id}) if not is_being_removed(each)]
    found = [each.metadata for each in pods] + [each.metadata for each in spaces]
    return [each.name or "" for each in found if each is not None]


def is_being_removed(space: Namespace) -> bool:
    """Return whether a namespace is being removed."""
    return space.status is not None and space.status.phase == "Terminating"


@pytest.fixture(scope="session")
def pod_images(cluster: Cluster) -> Mapping[Image, PodImage]:
    """Runtime images of both kinds, in the registry of the cluster."""

    async def made() -> Mapping[Image, PodImage]:
        base = cluster.base_image.removeprefix(f"{cluster.registry}/")
        async with Registry(f"http://{cluster.registry}") as registry:
            kinds: tuple[Image, ...] = ("bare", "llm")
            return {kind: await runtime_image(registry, base, kind) for kind in kinds}

    with cluster.one_at_a_time():
        return asyncio.run(made())


@pytest.fixture
def pods(cluster: Cluster, namespace: str, kernel_account: Account, pod_images: Mapping[Image, PodImage]) -> Pods:
    """An empty namespace for the pods of this test."""
    return Pods(cluster, namespace, kernel_account.kubeconfig, pod_images)


@pytest.fixture(scope="module")
def shared_namespace(cluster: Cluster, pytestconfig: pytest.Config) -> Iterator[str]:
    """A namespace for all tests of a module that do not look at each other's pods."""
    yield from create_namespace(cluster, pytestconfig)


@pytest.fixture
def scratch() -> Iterator[Path]:
    """An empty folder that is not below /tmp: a pod's own /tmp is memory, and the folder of workspaces is not."""
    with tempfile.TemporaryDirectory(dir="/var/tmp", prefix="ramet-pods-") as folder:
        yield Path(folder)


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The paths of folders that are packed during the test, to be sent to another machine."""
    found = list[Path]()
    packed = OutgoingDir.pack

    async def noted(
        self: OutgoingDir, place: Path, known: KnownFiles | None, *, max_bytes: int, is_source: bool = False
    ) -> PackResult:
        found.append(place)
        return await packed(self, place, known, max_bytes=max_bytes, is_source=is_source)

    monkeypatch.setattr(OutgoingDir, "pack", noted)
    return found
