"""A cluster takes the manifests of `deploy/`, and the rights in them allow a kernel nothing that is not its work."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable
from functools import partial

import pytest
from lightkube import ApiError, Client
from lightkube.models.core_v1 import Container, PodSpec, ResourceQuotaSpec
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.models.rbac_v1 import RoleRef, Subject
from lightkube.resources.core_v1 import Namespace, Pod, ResourceQuota, Secret
from lightkube.resources.rbac_authorization_v1 import ClusterRole, RoleBinding

from tests.support.account import Account
from tests.support.cluster import MANAGED, Cluster, may, remove_namespaces, until
from tests.support.manifests import DEPLOY, built, relocated

pytestmark = pytest.mark.kubernetes


def kubectl(*words: str, said: str = "") -> subprocess.CompletedProcess[str]:
    """kubectl with the cluster of the tests."""
    return subprocess.run(["kubectl", *words], input=said, capture_output=True, text=True, check=False)


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not installed")
def test_a_cluster_takes_the_manifests(cluster: Cluster, namespace: str) -> None:
    """Checked by the server, without a change; what it is too old for is checked by its schema elsewhere."""
    versions = kubectl("api-versions").stdout.split()
    manifests = relocated(built(DEPLOY / "example"), namespace)
    known = [each for each in manifests if each["apiVersion"] in versions]
    if "ValidatingAdmissionPolicy" not in kubectl("api-resources").stdout:
        known = [each for each in known if not each["kind"].startswith("ValidatingAdmission")]

    document = {"apiVersion": "v1", "kind": "List", "items": known}
    answer = kubectl("apply", "--dry-run=server", "-f", "-", said=json.dumps(document))

    assert answer.returncode == 0, answer.stderr
    assert answer.stdout.count("server dry run") == len(known)
    assert {each["kind"] for each in known} >= {"StatefulSet", "NetworkPolicy", "ClusterRole", "RoleBinding", "Service"}


@pytest.fixture
def kernel(kernel_account: Account) -> Client:
    """The API with the rights of a kernel."""
    return Client(kernel_account.config, trust_env=False)


def status_of(call: Callable[[], object]) -> int:
    """What the API server refuses with; 0 where it does not."""
    try:
        call()
    except ApiError as problem:
        return int(problem.status.code or 0)
    return 0


def pod(image: str) -> Pod:
    """One that does nothing."""
    container = Container(name="agent", image=image, args=["sleep", "600"])
    return Pod(metadata=ObjectMeta(name="agent", labels=MANAGED), spec=PodSpec(containers=[container]))


def binding(role: str, namespace: str) -> RoleBinding:
    """A kernel's own, to a ClusterRole."""
    return RoleBinding(
        metadata=ObjectMeta(name="kernel", labels=MANAGED),
        roleRef=RoleRef(apiGroup="rbac.authorization.k8s.io", kind="ClusterRole", name=role),
        subjects=[Subject(kind="ServiceAccount", name="ramet-kernel", namespace=namespace)],
    )


def test_a_kernel_may_do_nothing_else(kernel: Client, namespace: str, base_image: str) -> None:
    """It enters no pod by exec, has nothing to do with other namespaces and their secrets, and grants nobody more."""
    with kernel:
        assert status_of(lambda: list(kernel.list(Secret, namespace="default"))) == 403
        assert status_of(lambda: kernel.create(pod(base_image), namespace="default")) == 403
        assert status_of(lambda: list(kernel.list(Pod, namespace="*"))) == 403
        assert status_of(lambda: kernel.create(binding("cluster-admin", namespace))) == 403
        assert status_of(lambda: kernel.patch(ClusterRole, f"{namespace}-ramet-agents", {"rules": []})) == 403
        for part in ("exec", "portforward", "eviction"):
            assert not may(kernel, "create", f"pods/{part}", namespace)
        for what in ("resourcequotas", "serviceaccounts", "nodes", "configmaps"):
            assert not any(may(kernel, verb, what, namespace) for verb in ("create", "update", "patch", "delete"))


def test_a_kernel_makes_a_namespace_for_a_team(
    kernel: Client, cluster: Cluster, namespace: str, base_image: str
) -> None:
    """It gives itself there what it may elsewhere, bounds it, and removes it with all that is in it."""
    team = f"{namespace}-team"
    try:
        with kernel:
            kernel.create(Namespace(metadata=ObjectMeta(name=team)))
            assert status_of(lambda: kernel.create(pod(base_image), namespace=team)) == 403
            for name, role in (("agents", "ramet-agents"), ("bounds", "ramet-team-bounds")):
                bound = binding(f"{namespace}-{role}", namespace)
                assert bound.metadata
                bound.metadata.name = name
                kernel.create(bound, namespace=team)
            assert until(partial(may, kernel, "create", "resourcequotas", team)), "what is granted is not in force"
            quota = ResourceQuota(metadata=ObjectMeta(name="team"), spec=ResourceQuotaSpec(hard={"pods": "1"}))
            kernel.create(quota, namespace=team)
            assert status_of(lambda: kernel.create(binding("cluster-admin", namespace), namespace=team)) == 403
            kernel.delete(Namespace, team)
            assert kernel.get(Namespace, team).status.phase == "Terminating"  # type: ignore[union-attr]  # it has one
    finally:
        with cluster.blocking_client() as kube:
            remove_namespaces(kube, team)
