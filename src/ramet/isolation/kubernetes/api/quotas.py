"""The manifests of a team's namespace: its quota, the defaults of its containers, and its role bindings."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from ramet.core.policy.policy import DEFAULTS, Grant
from ramet.core.policy.reservation import Reservation
from ramet.isolation.kubernetes.api import labels
from ramet.isolation.kubernetes.api.manifest import NODE_AGENT_CORES, NODE_AGENT_MB, RUN_MB, memory_of, millicores_of

PREFIX = "ramet-team-"  #: of each team's namespace, and of no other; deploy/teams/guard.yaml enforces it for kernels
BOUNDS = "ramet-team"  #: the name of a namespace's ResourceQuota and LimitRange
#: The roles that a kernel gives itself in a team's namespace (deploy/base/access.yaml, deploy/teams/access.yaml).
ROLES = ("ramet-team-bounds", "ramet-agents")
#: MiB that a pod has in addition to the memory of its agent: for the node agent, and for files in memory.
_OVERHEAD_MB = NODE_AGENT_MB + RUN_MB + 2 * DEFAULTS.tmpfs_size_mb
#: The assumed number of sandboxes if a reservation names none.
DEFAULT_SANDBOXES = 16

_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,40}[a-z0-9])?\Z")


class Account(NamedTuple):
    """The service account that a kernel uses."""

    namespace: str
    name: str


def name_of(reservation: str) -> str:
    """Return the namespace of a reservation: the reservation's name if that is valid, else a digest of it."""
    suffix = reservation.removeprefix("team-")
    if not _NAME.match(suffix):
        suffix = hashlib.sha256(reservation.encode()).hexdigest()[:32]
    return PREFIX + suffix


def namespace(reservation: Reservation, *, place: str, owner: str) -> dict[str, Any]:
    """Return the Namespace. The cluster enforces the restricted profile on its pods, if it supports profiles."""
    marks = {
        labels.MANAGED: labels.OURS,
        labels.PLACE: place,
        labels.OWNER: owner,
        labels.TEAM: labels.value_of(reservation.name),
        "pod-security.kubernetes.io/enforce": "restricted",
    }
    metadata = {"name": name_of(reservation.name), "labels": marks, "annotations": {labels.TEAM: reservation.name}}
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": metadata}


def quota(reservation: Reservation, shared: Grant | None = None) -> dict[str, Any]:
    """Return the quota of a team's pods: what it reserves, plus the overhead of each of its sandboxes.

    `shared` is what the team's shared pod uses. It is added, so that other pods may have as much as without it.
    """
    sandboxes = reservation.sandboxes or DEFAULT_SANDBOXES
    hard: dict[str, str] = {}  # The number of pods has no limit: child agents have pods, too.
    if reservation.cpu_cores is not None:
        cpu = math.ceil((reservation.cpu_cores + sandboxes * NODE_AGENT_CORES) * 1000)
        hard["limits.cpu"] = f"{cpu + (0 if shared is None else millicores_of(shared))}m"
    if reservation.memory_mb is not None:
        memory = math.ceil(reservation.memory_mb + sandboxes * _OVERHEAD_MB)
        hard["limits.memory"] = f"{memory + (0 if shared is None else memory_of(shared))}Mi"
    return _object("ResourceQuota", reservation, {"hard": hard})


def limit_range(reservation: Reservation) -> dict[str, Any]:
    """Return the defaults of a container without limits: those of an agent without limits.

    Every container of ramet has limits.
    """
    memory = f"{DEFAULTS.memory_mb}Mi"
    cpu = f"{math.ceil(DEFAULTS.cpu_cores * 1000)}m"
    container = {"type": "Container", "default": {"memory": memory, "cpu": cpu}, "defaultRequest": {"memory": memory}}
    return _object("LimitRange", reservation, {"limits": [container]})


def binding(reservation: Reservation, role: str, account: Account) -> dict[str, Any]:
    """Return a RoleBinding that gives a cluster's role in this namespace only."""
    return {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "RoleBinding",
        "metadata": _metadata(reservation, role),
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
        "subjects": [{"kind": "ServiceAccount", "name": account.name, "namespace": account.namespace}],
    }


def _object(kind: str, reservation: Reservation, spec: Mapping[str, Any]) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": kind, "metadata": _metadata(reservation, BOUNDS), "spec": dict(spec)}


def _metadata(reservation: Reservation, name: str) -> dict[str, Any]:
    return {"name": name, "namespace": name_of(reservation.name), "labels": {labels.MANAGED: labels.OURS}}
