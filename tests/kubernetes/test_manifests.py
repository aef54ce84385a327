"""Manifests of `deploy/`: Kubernetes knows every field, the parts fit each other, and kernels run confined."""

from __future__ import annotations

import re
from typing import Any

import pytest

from ramet.core.policy.reservation import Reservation
from ramet.isolation.kubernetes.api import quotas
from ramet.services.config.load import load
from ramet.services.config.settings import TcpAddress
from ramet.services.http.connections import Bounds
from ramet.services.http.routes.table import OPERATIONS
from tests.support.manifests import DEPLOY, Manifest, build_manifests, files_of, find_manifest, unknown_fields
from tests.support.rights import rights_of

KUBERNETES = DEPLOY.parent / "docs" / "guides" / "kubernetes.md"


@pytest.fixture(scope="module")
def example() -> list[Manifest]:
    """The manifests that the example brings to a cluster."""
    return build_manifests(DEPLOY / "example")


@pytest.fixture(scope="module")
def pod(example: list[Manifest]) -> Any:
    """The pod of a kernel, as its StatefulSet declares it."""
    return find_manifest(example, "StatefulSet")["spec"]["template"]


def test_kubernetes_knows_every_field(example: list[Manifest]) -> None:
    """Each name is spelt right, and each value has the right type: a cluster ignores fields that it does not know."""
    assert {each["kind"] for each in example} >= {"StatefulSet", "PodDisruptionBudget", "ValidatingAdmissionPolicy"}
    assert [wrong for each in example for wrong in unknown_fields(each)] == []


def test_a_misspelt_field_is_found() -> None:
    """The strict reading finds a misspelt field at any depth, in lists as well."""
    spec = {"podSelector": {}, "egress": [{"ports": [{"port": 1, "potocol": "TCP"}]}]}
    manifest = {"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": {"name": "a"}, "spec": spec}

    assert unknown_fields(manifest) == ["NetworkPolicy.spec.egress[0].ports[0].potocol"]


def test_the_example_uses_every_manifest() -> None:
    """Each manifest in the folder is part of the example."""
    extra = {"kustomization.yaml", "ramet.yaml", "compose.yaml"}  # the last one is for a machine without a cluster
    there = {file for file in DEPLOY.rglob("*.yaml") if file.name not in extra}

    assert set(files_of(DEPLOY / "example")) == there


def test_selectors_and_ports_match_the_kernels(example: list[Manifest], pod: Any) -> None:
    """Services, the disruption budget and the policies select kernels by labels and ports that kernels have."""
    labels, ports = pod["metadata"]["labels"], {each["name"] for each in pod["spec"]["containers"][0]["ports"]}
    policy, way_out = (
        find_manifest(example, "NetworkPolicy", "kernels"),
        find_manifest(example, "NetworkPolicy", "to-kernels"),
    )
    services = [find_manifest(example, "Service", name)["spec"] for name in ("ramet", "ramet-kernels")]
    (rule,), inward = way_out["spec"]["egress"], policy["spec"]["ingress"]
    selectors = [
        find_manifest(example, "StatefulSet")["spec"]["selector"]["matchLabels"],
        find_manifest(example, "PodDisruptionBudget")["spec"]["selector"]["matchLabels"],
        policy["spec"]["podSelector"]["matchLabels"],
        rule["to"][0]["podSelector"]["matchLabels"],
        *(each["selector"] for each in services),
    ]

    assert all(selector and selector.items() <= labels.items() for selector in selectors)
    assert {each["ports"][0]["targetPort"] for each in services} <= ports
    assert {each["ports"][0]["port"] for each in (rule, *inward)} <= ports
    assert find_manifest(example, "StatefulSet")["spec"]["serviceName"] == "ramet-kernels"


def test_agents_reach_the_listener_of_pods_and_no_http(example: list[Manifest]) -> None:
    """Agents dial the port at which kernels accept pods, from the namespace of agents and from namespaces of teams."""
    (rule,) = find_manifest(example, "NetworkPolicy", "to-kernels")["spec"]["egress"]
    inside, agents = find_manifest(example, "NetworkPolicy", "kernels")["spec"]["ingress"]
    named, of_teams = (each["namespaceSelector"] for each in agents["from"])
    team = quotas.namespace(Reservation(name="a"), place="p", owner="o")

    assert rule["ports"] == agents["ports"] == [{"protocol": "TCP", "port": "door"}]
    assert (inside["from"], inside["ports"][0]["port"]) == ([{"podSelector": {}}], "http")
    assert named["matchExpressions"][0]["values"] == ["ramet-agents"]
    assert of_teams["matchLabels"].items() <= team["metadata"]["labels"].items()


def test_a_kernel_may_bind_the_roles_that_it_needs(example: list[Manifest]) -> None:
    """A kernel binds these roles in a team's namespace: they exist, and the kernel may bind them."""
    (may_bind,) = (
        each for each in find_manifest(example, "ClusterRole", "ramet-teams")["rules"] if "resourceNames" in each
    )

    assert sorted(may_bind["resourceNames"]) == sorted(quotas.ROLES)
    assert all(find_manifest(example, "ClusterRole", name) for name in quotas.ROLES)
    named, safe = find_manifest(example, "ValidatingAdmissionPolicy", "ramet-teams")["spec"]["validations"]
    assert named["expression"].count(f"startsWith('{quotas.PREFIX}')") == 2
    team = quotas.namespace(Reservation(name="a"), place="p", owner="o")
    label, profile = re.search(r"labels\['(.*)'\] == '(.*)'", safe["expression"]).groups()  # type: ignore[union-attr]
    assert team["metadata"]["labels"][label] == profile


def test_the_documentation_explains_each_right(example: list[Manifest]) -> None:
    """The documentation names each resource and verb of the roles, and explains no right that the roles do not give."""
    rows = re.findall(r"^\| `([a-z/]+)` \| ([a-z, ]+) \| .+ \|$", KUBERNETES.read_text(), re.MULTILINE)
    explained = [(verb, resource) for resource, verbs in rows for verb in verbs.split(", ")]

    assert sorted(explained) == sorted({(each.verb, each.resource.partition(".")[0]) for each in rights_of(example)})


def test_agents_can_reach_nothing_but_kernels(example: list[Manifest]) -> None:
    """Network policies deny both directions, except one rule that lets agents reach kernels."""
    policies = [each["spec"] for each in example if each["kind"] == "NetworkPolicy"]
    (deny,) = (each for each in policies if len(each["policyTypes"]) == 2)

    assert deny == {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}
    assert find_manifest(example, "NetworkPolicy", "to-kernels")["spec"]["egress"][0].keys() == {"to", "ports"}


def test_probes_ask_for_paths_that_need_no_key(pod: Any) -> None:
    """Each probe asks for a path that a kernel answers without a key."""
    container = pod["spec"]["containers"][0]
    open_to_all = {each.endpoint.path for each in OPERATIONS if each.endpoint.method == "GET" and not each.needs_key}
    asked = {kind: container[kind]["httpGet"]["path"] for kind in ("startupProbe", "livenessProbe", "readinessProbe")}

    assert set(asked.values()) <= open_to_all
    assert asked["readinessProbe"] == "/readyz"


def test_agents_dial_the_port_of_the_listener(pod: Any) -> None:
    """Agents dial the pod's own address, at the port that the policies open."""
    (container,) = pod["spec"]["containers"]
    (port,) = (each["containerPort"] for each in container["ports"] if each["name"] == "door")

    assert {"name": "RAMET_PODS_DIAL", "value": f"$(POD_IP):{port}"} in container["env"]


def test_the_grace_period_is_long_enough_for_an_orderly_end(pod: Any) -> None:
    """The grace period of a pod is at least twice the sleep before the signal and all waiting of a server after it."""
    sleep = int(pod["spec"]["containers"][0]["lifecycle"]["preStop"]["exec"]["command"][1])

    assert pod["spec"]["terminationGracePeriodSeconds"] >= 2 * (sleep + 2 * Bounds().end_s)


def test_a_kernel_has_no_privileges(pod: Any) -> None:
    """The pod keeps the restricted pod security standard, has a read-only root, and has resource limits."""
    spec, container = pod["spec"], pod["spec"]["containers"][0]

    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["securityContext"]["runAsUser"] > 0
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert container["resources"]["limits"].keys() >= {"memory", "ephemeral-storage"}
    assert not any("hostPath" in each for each in spec["volumes"])
    assert spec["enableServiceLinks"] is False


def test_no_secret_is_in_a_manifest(example: list[Manifest], pod: Any) -> None:
    """Manifests name Secrets, and the operator makes them."""
    assert not [each for each in example if each["kind"] == "Secret"]
    env = {each["name"]: each.get("valueFrom", {}) for each in pod["spec"]["containers"][0]["env"]}
    assert all("secretKeyRef" in env[name] for name in ("RAMET_STORE", "RAMET_OPERATOR_TOKEN"))


@pytest.mark.parametrize("folder", ["base", "example"])
def test_ramet_serve_reads_the_settings(folder: str) -> None:
    """`ramet serve` reads the file unchanged, with the environment of the pod."""
    environ = {"RAMET_KERNEL": "ramet-0", "RAMET_ADDRESS": "http://10.0.0.1:8470", "RAMET_STORE": "postgresql://d/r"}
    environ["RAMET_PODS_DIAL"] = "10.0.0.1:8471"

    config = load(DEPLOY / folder / "ramet.yaml", environ, {})

    assert (config.backend, config.namespace) == ("kubernetes", "ramet-agents")
    assert (config.kernel, config.address) == ("ramet-0", "http://10.0.0.1:8470")
    assert (config.listen, config.pods.dial) == (TcpAddress("0.0.0.0", 8470), TcpAddress("10.0.0.1", 8471))
    assert (config.base_image is not None) == (folder == "example")
