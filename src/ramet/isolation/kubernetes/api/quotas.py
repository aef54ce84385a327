"""What makes a namespace a team's: its quota, what its containers get by default, and who may work in it. As data."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from ramet.core.policy.policy import DEFAULTS, Grant
from ramet.core.policy.reservation import Reservation
from ramet.isolation.kubernetes.api import labels
from ramet.isolation.kubernetes.api.manifest import KEEPER_CORES, KEEPER_MB, RUN_MB, memory_of, millicores_of

PREFIX = "ramet-team-"  #: of each namespace of a team, and of no other: deploy/teams/guard.yaml holds kernels to it
BOUNDS = "ramet-team"  #: the name of a namespace's ResourceQuota and LimitRange
#: The roles that a kernel gives itself there (deploy/base/access.yaml, deploy/teams/access.yaml).
ROLES = ("ramet-team-bounds", "ramet-agents")
#: MiB that a pod has beside the memory of its agent: what keeps it, and files in memory.
_BESIDE_MB = KEEPER_MB + RUN_MB + 2 * DEFAULTS.tmpfs_size_mb
#: How many sandboxes are counted on where nobody says how many.
USUAL = 16

_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,40}[a-z0-9])?\Z")


class Account(NamedTuple):
    """A service account that a kernel works as."""

    namespace: str
    name: str


def name_of(reservation: str) -> str:
    """The namespace of a reservation: its own name if it can be one, else a digest of it."""
    word = reservation.removeprefix("team-")
    if not _NAME.match(word):
        word = hashlib.sha256(reservation.encode()).hexdigest()[:32]
    return PREFIX + word


def namespace(reservation: Reservation, *, place: str, owner: str) -> dict[str, Any]:
    """The namespace itself; its pods are held to the restricted profile where the cluster knows that."""
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
    """All pods of a team together: what it reserves, and what each of its sandboxes costs beside that.

    `shared` is what a pod has that its runs share: what other pods may have is as it would be without that one.
    """
    many = reservation.sandboxes or USUAL
    hard: dict[str, str] = {}  # Not how many pods: what agents start below them has pods, too.
    if reservation.cpu_cores is not None:
        cpu = math.ceil((reservation.cpu_cores + many * KEEPER_CORES) * 1000)
        hard["limits.cpu"] = f"{cpu + (0 if shared is None else millicores_of(shared))}m"
    if reservation.memory_mb is not None:
        memory = math.ceil(reservation.memory_mb + many * _BESIDE_MB)
        hard["limits.memory"] = f"{memory + (0 if shared is None else memory_of(shared))}Mi"
    return _object("ResourceQuota", reservation, {"hard": hard})


def limit_range(reservation: Reservation) -> dict[str, Any]:
    """What a container has that says nothing: as much as an agent that says nothing. None of ours does."""
    memory = f"{DEFAULTS.memory_mb}Mi"
    cpu = f"{math.ceil(DEFAULTS.cpu_cores * 1000)}m"
    container = {"type": "Container", "default": {"memory": memory, "cpu": cpu}, "defaultRequest": {"memory": memory}}
    return _object("LimitRange", reservation, {"limits": [container]})


def binding(reservation: Reservation, role: str, account: Account) -> dict[str, Any]:
    """A role of the cluster, in this namespace only."""
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
