"""The Kubernetes cluster that KUBECONFIG names, for tests with the mark `kubernetes`: each test gets its own namespace.

`make test-kubernetes` starts one (tests/cluster). A module, or the conftest of a folder, imports the fixtures it uses.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import socket
import time
import urllib.parse
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import httpx2
import pytest
from lightkube import ApiError, AsyncClient, Client, KubeConfig, SingleConfig
from lightkube.models.authorization_v1 import ResourceAttributes, SelfSubjectAccessReviewSpec
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources import (
    authorization_v1,
    batch_v1,
    coordination_v1,
    core_v1,
    networking_v1,
    rbac_authorization_v1,
)

MANAGED = {"app.kubernetes.io/managed-by": "ramet"}  #: what ramet makes bears this
LEFTOVERS = "leftovers-in-the-cluster"  #: the plugin of that name, registered where a cluster is given
_GONE_S = 180.0  #: what an end may take, and a namespace its 5 s to begin with; passed only by a run that fails
_KINDS = (
    core_v1.Pod, core_v1.Secret, core_v1.ServiceAccount, core_v1.ConfigMap, core_v1.Service, core_v1.ResourceQuota,
    core_v1.LimitRange, core_v1.PersistentVolumeClaim, rbac_authorization_v1.Role, rbac_authorization_v1.RoleBinding,
    networking_v1.NetworkPolicy, coordination_v1.Lease, batch_v1.Job,
)  # fmt: skip
_WIDE_KINDS = (core_v1.Namespace, rbac_authorization_v1.ClusterRole, rbac_authorization_v1.ClusterRoleBinding)


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """The address of a cluster, and clients of its API."""

    kubeconfig: Path
    registry: str  #: host and port, as nodes and tests reach it, over plain HTTP
    host: str  #: the address of this machine, as pods reach it

    @property
    def base_image(self) -> str:
        """Return the reference of an image with Debian, python3.11 and nothing of ramet."""
        return f"{self.registry}/base:1"

    @property
    def config(self) -> SingleConfig:
        """Return the configuration for clients of lightkube."""
        found = KubeConfig.from_file(self.kubeconfig).get()
        assert found is not None, f"{self.kubeconfig} has no current context"
        return found

    def client(self, namespace: str = "default") -> AsyncClient:
        """Return a client with all rights. Close it: a test that leaves its connections behind fails."""
        return AsyncClient(self.config, namespace=namespace, trust_env=False)

    @contextlib.contextmanager
    def one_at_a_time(self) -> Iterator[None]:
        """Exclude other processes with the same cluster: an image that one process pushes, the next process finds."""
        with self.kubeconfig.open() as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def blocking_client(self, namespace: str = "default") -> Client:
        """Return a client with all rights for code that is not async."""
        return Client(self.config, namespace=namespace, timeout=httpx2.Timeout(30), trust_env=False)


class Leftovers:
    """The namespaces of this session. The session fails if an object of them, or of ramet, is left at its end.

    Each process of `pytest -n` reports its namespaces to the process that started it, which looks when all have ended.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster, self._names = cluster, list[str]()
        self._left = list[str]()

    def new_name(self) -> str:
        """Return the name of a new namespace. The check covers each namespace whose name begins with it."""
        self._names.append(f"ramet-test-{secrets.token_hex(4)}")
        return self._names[-1]

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """Take over the namespaces of a process of `pytest -n`. A process that crashed reports none."""
        self._names += getattr(node, "workeroutput", {}).get("namespaces", [])

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Wait until no object is left, or fail."""
        worker_output: dict[str, Any] | None = getattr(session.config, "workeroutput", None)
        if worker_output is not None:
            worker_output["namespaces"] = self._names
            return
        with self._cluster.blocking_client() as kube:
            wait_until(lambda: not self._look(kube))
        if self._left:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print the objects that are left."""
        if self._left:
            terminalreporter.section("left behind in the cluster", red=True)
            terminalreporter.write_line("\n".join(self._left))

    def _look(self, kube: Client) -> list[str]:
        self._left = [
            name for kind in _WIDE_KINDS for name in _names_of(kube, kind) if name.startswith(tuple(self._names))
        ]
        # Only where nobody else is at work can all that ramet has made be told from what is in use.
        if os.environ.get("RAMET_CLUSTER") == "own":
            labelled = [_names_of(kube, kind, labels=MANAGED) for kind in _WIDE_KINDS]
            labelled += [_names_of(kube, kind, labels=MANAGED, namespace="*") for kind in _KINDS]
            self._left += [name for names in labelled for name in names]
        return self._left


def is_allowed(kube: Client, verb: str, resource: str, namespace: str) -> bool:
    """Return whether the API server lets a client do something; a resource is `pods`, or a part of one, `pods/log`."""
    name, _, part = resource.partition("/")
    asked = ResourceAttributes(verb=verb, resource=name, subresource=part, namespace=namespace)
    answer = kube.create(
        authorization_v1.SelfSubjectAccessReview(spec=SelfSubjectAccessReviewSpec(resourceAttributes=asked))
    )
    assert answer.status
    return answer.status.allowed


def _names_of(kube: Any, kind: Any, **options: Any) -> list[str]:
    return [f"{each.metadata.name} ({kind.__name__})" for each in kube.list(kind, **options)]


def wait_until(holds: Callable[[], bool]) -> bool:
    """Wait until something is true, for three minutes at most; return whether it is true. Blocks the thread."""
    deadline = time.monotonic() + _GONE_S
    while not (held := holds()) and time.monotonic() < deadline:
        time.sleep(0.1)  # no loop runs where this waits
    return held


def _host_of(server: str) -> str:
    """Return the address of this machine on the way to a server."""
    url = urllib.parse.urlsplit(server)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp_socket:
        udp_socket.connect((url.hostname or "", url.port or 443))
        return str(udp_socket.getsockname()[0])


def available_cluster() -> Cluster | None:
    """Return the cluster that tests may use, or None. A KUBECONFIG alone may name a cluster in production."""
    kubeconfig, registry = os.environ.get("KUBECONFIG"), os.environ.get("REGISTRY")
    if not (kubeconfig and registry):
        return None
    found = Cluster(kubeconfig=Path(kubeconfig), registry=registry, host="")
    return Cluster(kubeconfig=Path(kubeconfig), registry=registry, host=_host_of(found.config.cluster.server))


@pytest.fixture(scope="session")
def cluster() -> Cluster:
    """The cluster of this session; without one, tests marked `kubernetes` are skipped before they ask for it."""
    found = available_cluster()
    assert found is not None, "a test that uses `cluster` is marked `kubernetes`"
    return found


@pytest.fixture
def base_image(cluster: Cluster) -> str:
    """An image for pods: Debian with python3.11."""
    return cluster.base_image


@pytest.fixture
def namespace(cluster: Cluster, pytestconfig: pytest.Config) -> Iterator[str]:
    """A fresh namespace that is ready for pods. Its pods are gone in the end, and all other objects soon after.

    The removal of a namespace takes 5 s to begin: the end of the session waits for it, and fails if a namespace stays.
    """
    yield from create_namespace(cluster, pytestconfig)


def create_namespace(cluster: Cluster, pytestconfig: pytest.Config) -> Iterator[str]:
    """Make the namespace of the fixture `namespace`, for fixtures of another scope."""
    leftovers = pytestconfig.pluginmanager.get_plugin(LEFTOVERS)
    assert isinstance(leftovers, Leftovers)
    name = leftovers.new_name()
    with cluster.blocking_client(name) as kube:
        kube.create(core_v1.Namespace(metadata=ObjectMeta(name=name)))
    try:
        with cluster.blocking_client(name) as kube:
            assert wait_until(partial(_accepts_pods, kube)), "no service account for pods"
        yield name
    finally:
        with cluster.blocking_client(name) as kube:
            remove_namespaces(kube, name)


def remove_namespaces(kube: Client, prefix: str) -> None:
    """Remove each namespace whose name begins so. Returns when their pods are gone; the rest follows."""
    for each in kube.list(core_v1.Namespace):
        if each.metadata and (name := each.metadata.name) and name.startswith(prefix):
            with _ignore_missing():
                kube.delete(core_v1.Namespace, name)
            with _ignore_missing():
                kube.deletecollection(core_v1.Pod, namespace=name, grace_period=0)
            assert wait_until(partial(_is_empty, kube, name)), f"pods of {name} do not end"


def _is_empty(kube: Client, namespace: str) -> bool:
    return not list(kube.list(core_v1.Pod, namespace=namespace))


def _accepts_pods(kube: Client) -> bool:
    return any(each.metadata and each.metadata.name == "default" for each in kube.list(core_v1.ServiceAccount))


@contextlib.contextmanager
def _ignore_missing() -> Iterator[None]:
    try:
        yield
    except ApiError as problem:
        if problem.status.code != 404:
            raise
