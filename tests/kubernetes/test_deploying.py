"""A cluster accepts the manifests of `deploy/`. Their rights allow a kernel only what its work needs."""

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
from tests.support.cluster import MANAGED, Cluster, is_allowed, remove_namespaces, wait_until
from tests.support.manifests import DEPLOY, build_manifests, with_namespace

pytestmark = pytest.mark.kubernetes


def kubectl(*words: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    """Run kubectl on the cluster of the tests, with `stdin` as its input."""
    return subprocess.run(["kubectl", *words], input=stdin, capture_output=True, text=True, check=False)


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not installed")
def test_a_cluster_accepts_the_manifests(cluster: Cluster, namespace: str) -> None:
    """The server checks the manifests in a dry run. Another test checks kinds that are unknown to an old cluster."""
    versions = kubectl("api-versions").stdout.split()
    manifests = with_namespace(build_manifests(DEPLOY / "example"), namespace)
    known = [each for each in manifests if each["apiVersion"] in versions]
    if "ValidatingAdmissionPolicy" not in kubectl("api-resources").stdout:
        known = [each for each in known if not each["kind"].startswith("ValidatingAdmission")]

    document = {"apiVersion": "v1", "kind": "List", "items": known}
    answer = kubectl("apply", "--dry-run=server", "-f", "-", stdin=json.dumps(document))

    assert answer.returncode == 0, answer.stderr
    assert answer.stdout.count("server dry run") == len(known)
    assert {each["kind"] for each in known} >= {"StatefulSet", "NetworkPolicy", "ClusterRole", "RoleBinding", "Service"}


@pytest.fixture
def kernel(kernel_account: Account) -> Client:
    """A client of the API with the rights of a kernel."""
    return Client(kernel_account.config, trust_env=False)


def status_of(call: Callable[[], object]) -> int:
    """Return the status with which the API server refuses a call; 0 if it allows the call."""
    try:
        call()
    except ApiError as problem:
        return int(problem.status.code or 0)
    return 0


def pod(image: str) -> Pod:
    """Return a pod that does nothing."""
    container = Container(name="agent", image=image, args=["sleep", "600"])
    return Pod(metadata=ObjectMeta(name="agent", labels=MANAGED), spec=PodSpec(containers=[container]))


def binding(role: str, namespace: str) -> RoleBinding:
    """Return a binding of a kernel's account to a ClusterRole."""
    return RoleBinding(
        metadata=ObjectMeta(name="kernel", labels=MANAGED),
        roleRef=RoleRef(apiGroup="rbac.authorization.k8s.io", kind="ClusterRole", name=role),
        subjects=[Subject(kind="ServiceAccount", name="ramet-kernel", namespace=namespace)],
    )


def test_a_kernel_has_no_rights_beyond_its_work(kernel: Client, namespace: str, base_image: str) -> None:
    """A kernel enters no pod by exec, reaches no other namespace and its Secrets, and grants no further rights."""
    with kernel:
        assert status_of(lambda: list(kernel.list(Secret, namespace="default"))) == 403
        assert status_of(lambda: kernel.create(pod(base_image), namespace="default")) == 403
        assert status_of(lambda: list(kernel.list(Pod, namespace="*"))) == 403
        assert status_of(lambda: kernel.create(binding("cluster-admin", namespace))) == 403
        assert status_of(lambda: kernel.patch(ClusterRole, f"{namespace}-ramet-agents", {"rules": []})) == 403
        for part in ("exec", "portforward", "eviction"):
            assert not is_allowed(kernel, "create", f"pods/{part}", namespace)
        for resource in ("resourcequotas", "serviceaccounts", "nodes", "configmaps"):
            assert not any(
                is_allowed(kernel, verb, resource, namespace) for verb in ("create", "update", "patch", "delete")
            )


def test_a_kernel_makes_a_namespace_for_a_team(
    kernel: Client, cluster: Cluster, namespace: str, base_image: str
) -> None:
    """A kernel grants itself rights in the namespace, sets a quota there, and removes the namespace."""
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
            assert wait_until(partial(is_allowed, kernel, "create", "resourcequotas", team)), (
                "what is granted is not in force"
            )
            quota = ResourceQuota(metadata=ObjectMeta(name="team"), spec=ResourceQuotaSpec(hard={"pods": "1"}))
            kernel.create(quota, namespace=team)
            assert status_of(lambda: kernel.create(binding("cluster-admin", namespace), namespace=team)) == 403
            kernel.delete(Namespace, team)
            assert kernel.get(Namespace, team).status.phase == "Terminating"  # type: ignore[union-attr]  # it has one
    finally:
        with cluster.blocking_client() as kube:
            remove_namespaces(kube, team)
