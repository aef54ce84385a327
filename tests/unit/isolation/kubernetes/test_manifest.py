"""The manifests: one whole pod that was looked at, and what each field follows."""

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
from tests.support.manifests import misread
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


def _changed(**changes: Any) -> dict[str, Any]:
    return manifest.pod(FORM, replace(BERTH, **changes))


def test_a_pod_as_it_was_approved() -> None:
    """`RAMET_GOLDEN=write` refreshes it; review the diff as code."""
    assert_golden("pod.json", json.dumps(manifest.pod(FORM, BERTH), indent=2, sort_keys=True) + "\n")


@pytest.mark.parametrize(
    "made",
    [
        manifest.pod(FORM, BERTH),
        manifest.network_policy("agents"),
        manifest.egress_policy(FORM, egress_to("10.0.0.1", 8471)),
        manifest.secret(FORM, "ramet-0123", "run-0123", labels.PodLabels(), {"key": "value"}),
    ],
    ids=["pod", "policy", "policy-with-a-way-out", "secret"],
)
def test_every_field_is_of_the_schema(made: dict[str, Any]) -> None:
    """A field that Kubernetes does not know would be passed over in silence."""
    assert misread(made) == []


def test_a_pod_is_hardened() -> None:
    """Whatever a run asks for."""
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


def test_what_a_node_keeps_for_a_run() -> None:
    """All memory that it may use is reserved, of processor time a share; the node agent's part comes on top."""
    limits = manifest.resources(Grant(memory_mb=100, tmpfs_size_mb=10, cpu_cores=1.0), cpu_reserved=0.1)

    assert limits["limits"]["memory"] == f"{100 + 20 + manifest.NODE_AGENT_MB + manifest.RUN_MB}Mi"
    assert limits["requests"]["memory"] == limits["limits"]["memory"]
    assert (limits["limits"]["cpu"], limits["requests"]["cpu"]) == ("1200m", "120m")


def test_the_cluster_ends_a_run_after_its_own_time() -> None:
    """Some time later: the kernel's own clock is the first to say so, if there still is a kernel."""
    assert _changed()["spec"]["activeDeadlineSeconds"] == 91 + manifest.SLACK_S


def test_a_pod_of_one_run_says_for_how_long_it_waits_for_another_kernel() -> None:
    """If one could take it up: what several runs share ends with its kernel, and so does what none has."""
    form = replace(FORM, outlives_s=60.0)

    def noted(form: PodTemplate, berth: PodRequest) -> object:
        return manifest.pod(form, berth)["metadata"]["annotations"].get(labels.PATIENCE)

    assert noted(form, BERTH) == "60"
    assert noted(FORM, BERTH) is None
    assert noted(form, replace(BERTH, run="", shared_pids=64)) is None
    assert noted(form, replace(BERTH, run="")) is None


def test_a_pod_that_has_waited_is_as_one_that_was_made_for_its_run() -> None:
    """In all that anybody goes by; its end comes as much later as it has waited, for it counts from its start."""
    form = replace(FORM, outlives_s=60.0)
    made = manifest.pod(form, BERTH)
    waiting = manifest.pod(form, replace(BERTH, run="", pod_labels=labels.UNKNOWN))
    patch = manifest.claim_patch(form, BERTH, waited_s=100.2)
    marks = waiting["metadata"]["labels"] | patch["metadata"]["labels"]

    assert (waiting["metadata"]["labels"][labels.WAITING], labels.RUN in waiting["metadata"]["labels"]) == (
        "true",
        False,
    )
    assert marks.pop(labels.WAITING) is None, "that is how a label is removed"
    assert marks == made["metadata"]["labels"]
    assert waiting["metadata"]["annotations"] | patch["metadata"]["annotations"] == made["metadata"]["annotations"]
    assert "activeDeadlineSeconds" not in waiting["spec"], "it can be set once"
    later = made["spec"]["activeDeadlineSeconds"] + 101
    assert waiting["spec"] | patch["spec"] == made["spec"] | {"activeDeadlineSeconds": later}


def test_a_claim_is_of_one_pod_at_one_moment() -> None:
    """As it was read; its Secret is whose the pod is."""
    assert manifest.adopt_patch("heir", uid="u", version="7") == {
        "metadata": {"uid": "u", "resourceVersion": "7", "labels": {labels.OWNER: "heir"}}
    }
    assert manifest.adopt_patch("heir") == {"metadata": {"labels": {labels.OWNER: "heir"}}}


def test_mounts_are_where_they_are_on_the_host() -> None:
    """Folders as such, of a file its folder; none for what lies in another one; the program is told of them."""
    (container,) = _changed(folders=("/a", "/a/b", "/ab"), files=("/a/c/d", "/e/f"))["spec"]["containers"]
    mounts = {each["mountPath"]: each for each in container["volumeMounts"] if each["name"] == "mounts"}

    assert sorted(mounts) == ["/a", "/ab", "/e"]
    assert len({each["subPath"] for each in mounts.values()}) == 3
    assert container["command"][-4:] == [FORM.runs, "/a", "/ab", "/e"]


def test_a_mount_among_the_workspaces_is_there_already() -> None:
    (container,) = _changed(folders=(f"{FORM.runs}/shared",), files=())["spec"]["containers"]

    assert not any(each["name"] == "mounts" for each in container["volumeMounts"])


@pytest.mark.parametrize("mount", [{"folders": ("/usr",)}, {"files": ("/etc/hosts",)}, {"files": ("/x",)}])
def test_a_mount_over_what_the_image_needs_is_refused(mount: dict[str, Any]) -> None:
    """It would not be a mount, but the end of the pod's own files."""
    with pytest.raises(InvalidValue, match=r"readonly_mounts"):
        _changed(**mount)


def test_agents_have_no_network() -> None:
    """Nothing in, nothing out; and the kernel's own pods are not meant."""
    spec = manifest.network_policy("agents")["spec"]

    assert (spec["ingress"], spec["egress"], spec["policyTypes"]) == ([], [], ["Ingress", "Egress"])
    marked = labels.of_run("r", labels.PodLabels(), place="p", owner="o")
    assert spec["podSelector"]["matchLabels"].items() <= marked.items()
    assert spec["podSelector"]["matchExpressions"] == [{"key": labels.OWNER, "operator": "Exists"}]


@pytest.mark.parametrize(("address", "cidr"), [("10.0.0.1", "10.0.0.1/32"), ("fd00::1", "fd00::1/128")])
def test_agents_get_to_their_kernels_door_alone(address: str, cidr: str) -> None:
    """One address and one port, for the pods of that kernel and of no other."""
    spec = manifest.egress_policy(FORM, egress_to(address, 8471))["spec"]

    assert spec["egress"] == [{"to": [{"ipBlock": {"cidr": cidr}}], "ports": [{"protocol": "TCP", "port": 8471}]}]
    assert spec["policyTypes"] == ["Egress"]
    own = labels.of_run("r", labels.PodLabels(), place=FORM.place, owner=FORM.owner)
    assert spec["podSelector"]["matchLabels"].items() <= own.items()
    assert spec["podSelector"]["matchLabels"][labels.OWNER] == FORM.owner
