"""Checks from inside a real pod: the rights of the run that owns the pod, and of its node agent."""

from __future__ import annotations

import importlib.util
import io
import json
import os
import pathlib
import subprocess
import tarfile
from typing import Any

import pytest

from tests.support import in_pod, pod_checks
from tests.support.cluster import Cluster

pytestmark = pytest.mark.kubernetes

PROJECT = pathlib.Path(__file__).parents[2]
USER = 1_234_577  #: of no other pod of the node
PROMISES = ("processor", "temporary_files", "descendants_end_with_the_guest", "the_level_is_as_requested")
IN_MEMORY = {"tmp": ("/tmp", 16), "shm": ("/dev/shm", 16), "run": ("/run", 4)}


def test_a_run_in_an_unprivileged_pod_keeps_all_promises(cluster: Cluster, namespace: str, base_image: str) -> None:
    """An unprivileged pod with a read-only root keeps the promises of every backend, and those of a pod of one run."""
    kube = ["kubectl", "--kubeconfig", str(cluster.kubeconfig), "-n", namespace]

    def run(*argv: str, given: bytes = b"") -> bytes:
        return subprocess.run([*kube, *argv], input=given, stdout=subprocess.PIPE, timeout=240, check=True).stdout

    run("apply", "-f", "-", given=json.dumps(_pod(base_image)).encode())
    run("wait", "--for=condition=Ready", "pod/room", "--timeout=60s")
    unpack = "import sys, tarfile; tarfile.open(fileobj=sys.stdin.buffer, mode='r|').extractall('/work')"
    run("exec", "-i", "room", "--", "python3", "-c", unpack, given=_sources())
    promises = (*PROMISES, *(each.__name__ for each in pod_checks.CHECKS))
    output = run(
        "exec",
        "room",
        "--",
        "sh",
        "-c",
        f"mkdir /work/here; python3 -m {in_pod.__name__} /work/here {' '.join(promises)}",
    )

    wrong = dict(map(json.loads, output.splitlines()))
    assert wrong == dict.fromkeys(promises, "")


def _pod(image: str) -> dict[str, Any]:
    volumes = [
        {"name": name, "emptyDir": {"medium": "Memory", "sizeLimit": f"{mb}Mi"}} for name, (_, mb) in IN_MEMORY.items()
    ]
    mounts = [{"name": name, "mountPath": path} for name, (path, _) in IN_MEMORY.items()]
    container = {
        "name": "main",
        "image": image,
        "command": ["python3", "-c", "import time; time.sleep(600)"],
        "env": [{"name": "PYTHONPATH", "value": "/work/src:/work"}]
        + [{"name": name, "value": "/work"} for name in ("HOME", "TMPDIR")],
        "resources": {"limits": {"cpu": "500m", "memory": "512Mi"}},
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": USER,
            "runAsGroup": USER,
            "readOnlyRootFilesystem": True,
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "volumeMounts": [{"name": "work", "mountPath": "/work"}, *mounts],
    }
    spec = {
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "containers": [container],
        "volumes": [{"name": "work", "emptyDir": {}}, *volumes],
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "room"}, "spec": spec}


def _sources() -> bytes:
    """Return a tar of the sources of ramet, of its tests and of other packages that the checks need."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        for path, name in ((PROJECT / "src" / "ramet", "src/ramet"), (PROJECT / "tests" / "support", "tests/support")):
            tar.add(path, name, filter=_plain)
        for name in ("msgspec", "cloudpickle"):
            spec = importlib.util.find_spec(name)
            assert spec is not None
            assert spec.origin is not None
            tar.add(os.path.dirname(spec.origin), f"src/{name}", filter=_plain)  # noqa: PTH120 - as it is told
    return packed.getvalue()


def _plain(found: tarfile.TarInfo) -> tarfile.TarInfo | None:
    return None if found.name.endswith("__pycache__") else found
