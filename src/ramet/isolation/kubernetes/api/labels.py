"""The labels and annotations of ramet's objects in a cluster, by which any kernel can find, count and remove them."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from typing import NamedTuple

from ramet.core.errors import InvalidValue

DOMAIN = "ramet.dev"
MANAGED = "app.kubernetes.io/managed-by"
OURS = "ramet"

PLACE = f"{DOMAIN}/place"  #: the working directory, or the database, whose kernels may remove each other's objects
OWNER = f"{DOMAIN}/owner"  #: the kernel that created or adopted the object
NO_OWNER = "nobody"  #: the owner of a pod that is being deleted: no kernel can adopt it
RUN = f"{DOMAIN}/run"
TREE = f"{DOMAIN}/tree"
TEAM = f"{DOMAIN}/team"
WAITING = f"{DOMAIN}/waiting"  #: of a pod without a run
#: An annotation: the seconds that a pod waits for another kernel to adopt it; without it, none can.
PATIENCE = f"{DOMAIN}/patience"
NAME = f"{DOMAIN}/path"  #: an annotation, as are the ids in full

_VALUE = re.compile(r"([A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?)?\Z")
_PART = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?\Z")
_DOMAIN = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?\Z")
_RESERVED_DOMAINS = (DOMAIN, "kubernetes.io", "k8s.io")


class PodLabels(NamedTuple):
    """Facts of a run for people who look at the cluster; an empty string is unknown."""

    tree: str = ""
    team: str = ""
    path: str = ""


UNKNOWN = PodLabels()


def value_of(word: str) -> str:
    """Return a label's value for an id or a name: the word itself if it is valid, else a digest of it."""
    return word if _VALUE.match(word) else f"sha256-{hashlib.sha256(word.encode()).hexdigest()[:40]}"


def digest(*words: str) -> str:
    """Return one value for several words, in this order."""
    return hashlib.sha256("\0".join(words).encode()).hexdigest()[:32]


def of_run(run: str, pod_labels: PodLabels, *, place: str, owner: str) -> dict[str, str]:
    """Return the labels of an object of a run."""
    known = {RUN: run, TREE: pod_labels.tree, TEAM: pod_labels.team}
    return {
        MANAGED: OURS,
        PLACE: place,
        OWNER: owner,
        **{key: value_of(value) for key, value in known.items() if value},
    }


def in_full(run: str, pod_labels: PodLabels) -> dict[str, str]:
    """Return the annotations: the full words, because a label may hold only a digest."""
    known = {RUN: run, TREE: pod_labels.tree, TEAM: pod_labels.team, NAME: pod_labels.path}
    return {key: value for key, value in known.items() if value}


def check_labels(field: str, labels: Mapping[str, str]) -> dict[str, str]:
    """Return a user's labels.

    Raises InvalidValue for a label that the API would refuse, or whose key belongs to ramet or the system.
    """
    for key, value in labels.items():
        domain, slash, name = key.rpartition("/")
        if any(domain == each or domain.endswith(f".{each}") for each in _RESERVED_DOMAINS):
            raise InvalidValue(
                f"{field}[{key!r}]", value, f"a key outside {', '.join(_RESERVED_DOMAINS)}, which are not a user's"
            )
        if not _PART.match(name) or bool(slash) != bool(domain) or (domain and not _DOMAIN.match(domain)):
            raise InvalidValue(field, key, "a key as in 'example.org/name': at most 63 letters, digits, '.', '_', '-'")
        if not isinstance(value, str) or not _VALUE.match(value):
            raise InvalidValue(f"{field}[{key!r}]", value, "at most 63 letters, digits, '.', '_', '-'")
    return dict(labels)


def selector(*, place: str = "", owner: str = "") -> dict[str, str]:
    """Return the labels that select ramet's objects of a place or a kernel."""
    known = {PLACE: place, OWNER: owner}
    return {MANAGED: OURS, **{key: value for key, value in known.items() if value}}
