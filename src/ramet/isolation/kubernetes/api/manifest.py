"""The manifests that are sent to a cluster: the pod of one run or of several, Secrets, and NetworkPolicies."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any

from ramet.core.errors import InvalidValue
from ramet.core.policy.policy import Grant
from ramet.isolation.contract import Image
from ramet.isolation.kubernetes import pod_args
from ramet.isolation.kubernetes.api import labels

CONTAINER = "agent"
POLICY = "ramet-agents"  #: the name of a namespace's NetworkPolicy; others, of a kernel each, begin with it

#: MiB that the node agent and the zygote need in addition to an agent's memory. 35 were measured, and 80 with
#: langchain-core.
NODE_AGENT_MB = 96
#: Cores of the node agent, in addition to an agent's: an agent that uses its whole share does not stop it.
NODE_AGENT_CORES = 0.2
#: MiB of an attach stream's data that a node keeps as the container's log: the kubelet's default.
LOGS_MB = 64
#: Seconds added to the agent's timeout: for the start of the pod, and until the cluster ends the pod.
SLACK_S = 120
RUN_MB = 8  #: of /run, in memory: sockets and secrets

#: Folders that cannot contain a mount of one file: the mount would hide the other files of the folder.
_FULL = frozenset(
    map(PurePosixPath, ("/", "/bin", "/dev", "/etc", "/lib", "/lib64", "/opt", "/proc", "/sbin", "/sys", "/usr"))
)
#: The fields of a pod's spec by which a user may control its placement.
PLACEMENT = ("affinity", "nodeSelector", "priorityClassName", "schedulerName", "tolerations")


@dataclass(frozen=True, kw_only=True)
class PodTemplate:
    """The settings that all pods of a kernel have in common."""

    namespace: str
    image: str
    command: Sequence[str]
    runs: str  #: the folder of all workspaces, at the same path as on the kernel's host
    place: str
    owner: str
    labels: Mapping[str, str] = field(default_factory=dict)
    pull_secrets: Sequence[str] = ()
    placement: Mapping[str, Any] = field(default_factory=dict)  #: with keys of PLACEMENT
    cpu_reserved: float = 0.1  #: the share of a processor's limit that a node keeps free for it
    outlives_s: float = 0.0  #: how long a pod of one run waits for another kernel to adopt it; 0: not at all


@dataclass(frozen=True, kw_only=True)
class PodRequest:
    """The settings of one pod: what its run needs, or what several runs need together."""

    name: str
    run: str  #: empty: several runs, or one that is not known yet
    grant: Grant
    uid: int  #: unique on any node: the limit of processes counts for all pods of a user there
    pod_labels: labels.PodLabels = labels.UNKNOWN
    image: Image = "bare"  #: of its run: the pod imports what that needs while it connects
    runtime_class: str | None = None
    folders: Sequence[str] = ()  #: of the host, at the same path in the pod: readonly mounts that are folders
    files: Sequence[str] = ()  #: likewise, single files, and links to files of the image
    size_mb: int = 0  #: of folders and files together
    secret: str | None = None  #: a Secret whose keys are files below SECRET
    shared_pids: int | None = None  #: limit of processes of a pod that several runs share; it has no deadline


SECRET = "/run/ramet/secret"


def pod(template: PodTemplate, request: PodRequest) -> dict[str, Any]:
    """Return the Pod of a request. Raises InvalidValue for a mount that no pod can have."""
    grant = request.grant
    shared = () if request.shared_pids is None else (pod_args.SHARED, str(request.shared_pids))
    image = (pod_args.LLM,) if request.image == "llm" else ()
    places = _places(template.runs, request)
    volumes, mounts = _volumes(template, request, places)
    spec = {
        **template.placement,
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "hostNetwork": False,
        "hostPID": False,
        "hostIPC": False,
        "shareProcessNamespace": False,
        "hostname": "sandbox",
        "dnsPolicy": "None",
        "dnsConfig": {"nameservers": ["127.0.0.1"]},  # One is required; nothing listens there.
        "terminationGracePeriodSeconds": 0,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": request.uid,
            "runAsGroup": request.uid,
            "fsGroup": request.uid,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [
            {
                "name": CONTAINER,
                "image": template.image,
                "imagePullPolicy": "IfNotPresent",
                "command": [*template.command, *shared, *image, template.runs, *places],
                "stdin": True,
                "stdinOnce": False,
                "tty": False,
                "env": [
                    {"name": "PYTHONDONTWRITEBYTECODE", "value": "1"},
                    {"name": "RAMET_POD_UID", "valueFrom": {"fieldRef": {"fieldPath": "metadata.uid"}}},
                ],
                "resources": resources(grant, cpu_reserved=template.cpu_reserved, extra_mb=request.size_mb),
                "securityContext": {
                    "allowPrivilegeEscalation": False,
                    "capabilities": {"drop": ["ALL"]},
                    "privileged": False,
                    "readOnlyRootFilesystem": True,
                },
                "terminationMessagePolicy": "File",
                "volumeMounts": mounts,
            }
        ],
        "volumes": volumes,
    }
    if request.run:
        spec["activeDeadlineSeconds"] = math.ceil(grant.timeout_seconds) + SLACK_S
    if request.runtime_class is not None:
        spec["runtimeClassName"] = request.runtime_class
    if template.pull_secrets:
        spec["imagePullSecrets"] = [{"name": name} for name in template.pull_secrets]
    waiting = {} if request.run or shared else {labels.WAITING: "true"}
    patience = {labels.PATIENCE: f"{template.outlives_s:g}"} if request.run and template.outlives_s else {}
    marks = labels.of_run(request.run, request.pod_labels, place=template.place, owner=template.owner)
    metadata: dict[str, Any] = {
        "name": request.name,
        "namespace": template.namespace,
        "labels": {**template.labels, **marks, **waiting},
        "annotations": {**labels.in_full(request.run, request.pod_labels), **patience},
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def claim_patch(template: PodTemplate, request: PodRequest, *, waited_s: float) -> dict[str, Any]:
    """Return the patch that turns a waiting pod into the pod of this run.

    The deadline of a pod counts from the pod's own start, so the waiting time is added.
    """
    manifest = pod(template, request)
    marks = {**manifest["metadata"]["labels"], labels.WAITING: None}
    return {
        "metadata": {"labels": marks, "annotations": manifest["metadata"]["annotations"]},
        "spec": {"activeDeadlineSeconds": manifest["spec"]["activeDeadlineSeconds"] + math.ceil(waited_s)},
    }


def resources(grant: Grant, *, cpu_reserved: float, extra_mb: int = 0) -> dict[str, dict[str, str]]:
    """Return what a node reserves for a run, and its limits.

    Memory is reserved in full, processor time in part.
    """
    memory, cpu = memory_of(grant), millicores_of(grant)
    disk = grant.workspace_size_mb + extra_mb + LOGS_MB
    limits = {"cpu": f"{cpu}m", "memory": f"{memory}Mi", "ephemeral-storage": f"{disk}Mi"}
    return {"limits": limits, "requests": {**limits, "cpu": f"{max(1, math.ceil(cpu * cpu_reserved))}m"}}


def memory_of(grant: Grant) -> int:
    """Return the memory of the whole pod in MiB."""
    return grant.memory_mb + NODE_AGENT_MB + 2 * grant.tmpfs_size_mb + RUN_MB


def millicores_of(grant: Grant) -> int:
    """Return the processor of the whole pod in thousandths of a core."""
    return math.ceil((grant.cpu_cores + NODE_AGENT_CORES) * 1000)


def _volumes(
    template: PodTemplate, request: PodRequest, folders: Sequence[str]
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    grant = request.grant
    in_memory = {
        "tmp": ("/tmp", grant.tmpfs_size_mb),
        "shm": ("/dev/shm", grant.tmpfs_size_mb),
        "run": ("/run", RUN_MB),
    }
    volumes: list[dict[str, Any]] = [
        {"name": name, "emptyDir": {"medium": "Memory", "sizeLimit": f"{size}Mi"}}
        for name, (_, size) in in_memory.items()
    ]
    mounts: list[dict[str, Any]] = [{"name": name, "mountPath": path} for name, (path, _) in in_memory.items()]
    volumes.append({"name": "runs", "emptyDir": {"sizeLimit": f"{grant.workspace_size_mb + 8}Mi"}})
    mounts.append({"name": "runs", "mountPath": template.runs})
    if folders:
        volumes.append({"name": "mounts", "emptyDir": {"sizeLimit": f"{request.size_mb + 8}Mi"}})
        mounts += [{"name": "mounts", "mountPath": path, "subPath": str(index)} for index, path in enumerate(folders)]
    if request.secret is not None:
        secret = {"secretName": request.secret, "defaultMode": 0o440, "optional": False}
        volumes.append({"name": "secret", "secret": secret})
        mounts.append({"name": "secret", "mountPath": SECRET, "readOnly": True})
    return volumes, mounts


def _places(runs: str, request: PodRequest) -> list[str]:
    """Return the folders that must exist for mounts.

    Folders inside another one, or inside the folder of all workspaces, are left out.
    """
    folders = set(map(PurePosixPath, request.folders))
    for file in map(PurePosixPath, request.files):
        if file.parent in _FULL:
            raise InvalidValue(
                "readonly_mounts", str(file), "a file in a folder that the image does not need, or a folder"
            )
        folders.add(file.parent)
    for each in folders & _FULL:
        raise InvalidValue("readonly_mounts", str(each), "a folder that the image does not need")
    folders = {each for each in folders if not each.is_relative_to(runs)}
    return sorted(str(each) for each in folders if not folders.intersection(each.parents))


def network_policy(namespace: str) -> dict[str, Any]:
    """Return the NetworkPolicy that denies all traffic of all agents of a namespace."""
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": POLICY, "namespace": namespace, "labels": {labels.MANAGED: labels.OURS}},
        "spec": {
            "podSelector": {
                "matchLabels": {labels.MANAGED: labels.OURS},
                "matchExpressions": [{"key": labels.OWNER, "operator": "Exists"}],
            },
            "policyTypes": ["Ingress", "Egress"],
            "ingress": [],
            "egress": [],
        },
    }


def egress_name_of(owner: str) -> str:
    """Return the name of the policy that lets a kernel's agents reach the kernel."""
    return f"{POLICY}-{owner[:16]}"


def egress_policy(template: PodTemplate, egress: Mapping[str, Any]) -> dict[str, Any]:
    """Return the exception to `network_policy`: `egress` (`to` and `ports`) lets a kernel's own agents reach it.

    Policies add up.
    """
    marks = labels.selector(place=template.place, owner=template.owner)
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": egress_name_of(template.owner), "namespace": template.namespace, "labels": marks},
        "spec": {"podSelector": {"matchLabels": marks}, "policyTypes": ["Egress"], "egress": [dict(egress)]},
    }


def secret(
    template: PodTemplate, name: str, run: str, pod_labels: labels.PodLabels, data: Mapping[str, str]
) -> dict[str, Any]:
    """Return a Secret of a run; `data` as text.

    The Secret gets its pod as owner once the pod exists (`owned_by`).
    """
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "type": "Opaque",
        "immutable": True,
        "metadata": {
            "name": name,
            "namespace": template.namespace,
            "labels": {**template.labels, **labels.of_run(run, pod_labels, place=template.place, owner=template.owner)},
        },
        "stringData": dict(data),
    }


def adopt_patch(owner: str, *, uid: str = "", version: str = "") -> dict[str, Any]:
    """Return the patch that gives an object to a kernel.

    With `uid` and `version`, the API applies it only to an object that has these.
    """
    known = {"uid": uid, "resourceVersion": version}
    return {"metadata": {**{key: each for key, each in known.items() if each}, "labels": {labels.OWNER: owner}}}


def owned_by(name: str, uid: str) -> dict[str, Any]:
    """Return the patch that makes the cluster delete an object together with a pod."""
    reference = {"apiVersion": "v1", "kind": "Pod", "name": name, "uid": uid, "blockOwnerDeletion": False}
    return {"metadata": {"ownerReferences": [reference]}}
