"""Tests of manifests: one whole reviewed pod, and the source of each field."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from ramet.core.errors import InvalidValue
from ramet.core.policy.policy import Grant
from ramet.isolation.kubernetes.api import labels, manifest
from ramet.isolation.kubernetes.api.manifest import PodRequest, PodTemplate
from ramet.isolation.kubernetes.connect.dial import egress_to
from tests.support.manifests import unknown_fields
from tests.unit.cli.golden import assert_golden

FORM = PodTemplate(
    namespace="agents",
    image="registry.example.org/ramet@sha256:0",
    command=("python3", "-I", "-c", "main()", "60"),
    runs="/srv/ramet/.ramet/runs",
    place="place",
    owner="owner",
    labels={"example.org/app": "research"},
    pull_secrets=("pull",),
    placement={"nodeSelector": {"pool": "agents"}},
)
BERTH = PodRequest(
    name="ramet-0123",
    run="run-0123",
    grant=Grant(memory_mb=512, cpu_cores=0.5, timeout_seconds=90.5, workspace_size_mb=100, tmpfs_size_mb=32),
    uid=1_234_567,
    pod_labels=labels.PodLabels(tree="run-0000", team="a team", path="main/searcher"),
    runtime_class="gvisor",
    folders=("/data/in",),
    files=("/data/in/one", "/opt/models/a.bin"),
    size_mb=7,
    secret="ramet-0123",
)


def _pod_with(**changes: Any) -> dict[str, Any]:
    return manifest.pod(FORM, replace(BERTH, **changes))


def test_a_pod_equals_the_reviewed_manifest() -> None:
    """`RAMET_GOLDEN=write` refreshes the golden file; review its diff as code."""
    assert_golden("pod.json", json.dumps(manifest.pod(FORM, BERTH), indent=2, sort_keys=True) + "\n")


@pytest.mark.parametrize(
    "manifest_json",
    [
        manifest.pod(FORM, BERTH),
        manifest.network_policy("agents"),
        manifest.egress_policy(FORM, egress_to("10.0.0.1", 8471)),
        manifest.secret(FORM, "ramet-0123", "run-0123", labels.PodLabels(), {"key": "value"}),
    ],
    ids=["pod", "policy", "policy-with-a-way-out", "secret"],
)
def test_every_field_is_part_of_the_schema(manifest_json: dict[str, Any]) -> None:
    """Kubernetes would silently ignore an unknown field."""
    assert unknown_fields(manifest_json) == []


def test_a_pod_is_hardened() -> None:
    """The settings do not depend on the run's request."""
    spec = manifest.pod(FORM, PodRequest(name="a", run="b", grant=Grant(), uid=1_000_001))["spec"]
    (container,) = spec["containers"]

    assert not any(spec[name] for name in ("hostNetwork", "hostPID", "hostIPC", "automountServiceAccountToken"))
    assert spec["securityContext"]["runAsNonRoot"]
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "privileged": False,
        "readOnlyRootFilesystem": True,
    }
    assert "runtimeClassName" not in spec
    assert not any("hostPath" in each for each in spec["volumes"])
    assert all("emptyDir" in each for each in spec["volumes"])


def test_a_pod_reserves_all_memory_and_a_share_of_processor_time() -> None:
    """The node agent's part is added to the run's."""
    limits = manifest.resources(Grant(memory_mb=100, tmpfs_size_mb=10, cpu_cores=1.0), cpu_reserved=0.1)

    assert limits["limits"]["memory"] == f"{100 + 20 + manifest.NODE_AGENT_MB + manifest.RUN_MB}Mi"
    assert limits["requests"]["memory"] == limits["limits"]["memory"]
    assert (limits["limits"]["cpu"], limits["requests"]["cpu"]) == ("1200m", "120m")


def test_the_clusters_deadline_is_later_than_the_runs_timeout() -> None:
    """The kernel's own clock ends the run first, if a kernel still exists."""
    assert _pod_with()["spec"]["activeDeadlineSeconds"] == 91 + manifest.SLACK_S


def test_the_pod_of_one_run_states_its_patience_for_another_kernel() -> None:
    """Shared pods and pods without a run end with their kernel, and state no patience."""
    form = replace(FORM, outlives_s=60.0)

    def noted(form: PodTemplate, berth: PodRequest) -> object:
        return manifest.pod(form, berth)["metadata"]["annotations"].get(labels.PATIENCE)

    assert noted(form, BERTH) == "60"
    assert noted(FORM, BERTH) is None
    assert noted(form, replace(BERTH, run="", shared_pids=64)) is None
    assert noted(form, replace(BERTH, run="")) is None


def test_a_claimed_warm_pod_equals_a_pod_made_for_its_run() -> None:
    """The deadline counts from the pod's start, so it is later by the time that the pod waited."""
    form = replace(FORM, outlives_s=60.0)
    pod = manifest.pod(form, BERTH)
    waiting = manifest.pod(form, replace(BERTH, run="", pod_labels=labels.UNKNOWN))
    patch = manifest.claim_patch(form, BERTH, waited_s=100.2)
    marks = waiting["metadata"]["labels"] | patch["metadata"]["labels"]

    assert (waiting["metadata"]["labels"][labels.WAITING], labels.RUN in waiting["metadata"]["labels"]) == (
        "true",
        False,
    )
    assert marks.pop(labels.WAITING) is None, "that is how a label is removed"
    assert marks == pod["metadata"]["labels"]
    assert waiting["metadata"]["annotations"] | patch["metadata"]["annotations"] == pod["metadata"]["annotations"]
    assert "activeDeadlineSeconds" not in waiting["spec"], "it can be set once"
    deadline = pod["spec"]["activeDeadlineSeconds"] + 101
    assert waiting["spec"] | patch["spec"] == pod["spec"] | {"activeDeadlineSeconds": deadline}


def test_a_claim_names_the_uid_and_version_of_its_pod() -> None:
    """The Secret of the pod gets the owner of the pod."""
    assert manifest.adopt_patch("heir", uid="u", version="7") == {
        "metadata": {"uid": "u", "resourceVersion": "7", "labels": {labels.OWNER: "heir"}}
    }
    assert manifest.adopt_patch("heir") == {"metadata": {"labels": {labels.OWNER: "heir"}}}


def test_mounts_have_their_paths_on_the_host() -> None:
    """A file is mounted with its folder, a path inside another mount is left out, and the program gets the list."""
    (container,) = _pod_with(folders=("/a", "/a/b", "/ab"), files=("/a/c/d", "/e/f"))["spec"]["containers"]
    mounts = {each["mountPath"]: each for each in container["volumeMounts"] if each["name"] == "mounts"}

    assert sorted(mounts) == ["/a", "/ab", "/e"]
    assert len({each["subPath"] for each in mounts.values()}) == 3
    assert container["command"][-4:] == [FORM.runs, "/a", "/ab", "/e"]


def test_a_mount_below_the_workspaces_needs_no_volume() -> None:
    (container,) = _pod_with(folders=(f"{FORM.runs}/shared",), files=())["spec"]["containers"]

    assert not any(each["name"] == "mounts" for each in container["volumeMounts"])


@pytest.mark.parametrize("mount", [{"folders": ("/usr",)}, {"files": ("/etc/hosts",)}, {"files": ("/x",)}])
def test_a_mount_over_files_of_the_image_is_refused(mount: dict[str, Any]) -> None:
    """Such a mount would hide files that the pod needs."""
    with pytest.raises(InvalidValue, match=r"readonly_mounts"):
        _pod_with(**mount)


def test_the_network_policy_denies_agents_all_traffic() -> None:
    """The kernel's own pods are not selected."""
    spec = manifest.network_policy("agents")["spec"]

    assert (spec["ingress"], spec["egress"], spec["policyTypes"]) == ([], [], ["Ingress", "Egress"])
    marked = labels.of_run("r", labels.PodLabels(), place="p", owner="o")
    assert spec["podSelector"]["matchLabels"].items() <= marked.items()
    assert spec["podSelector"]["matchExpressions"] == [{"key": labels.OWNER, "operator": "Exists"}]


@pytest.mark.parametrize(("address", "cidr"), [("10.0.0.1", "10.0.0.1/32"), ("fd00::1", "fd00::1/128")])
def test_the_egress_policy_allows_only_the_kernels_listener(address: str, cidr: str) -> None:
    """The policy allows one address and one port, for the pods of this kernel only."""
    spec = manifest.egress_policy(FORM, egress_to(address, 8471))["spec"]

    assert spec["egress"] == [{"to": [{"ipBlock": {"cidr": cidr}}], "ports": [{"protocol": "TCP", "port": 8471}]}]
    assert spec["policyTypes"] == ["Egress"]
    own_labels = labels.of_run("r", labels.PodLabels(), place=FORM.place, owner=FORM.owner)
    assert spec["podSelector"]["matchLabels"].items() <= own_labels.items()
    assert spec["podSelector"]["matchLabels"][labels.OWNER] == FORM.owner
