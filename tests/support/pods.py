"""A backend of pods for checks that name one, and eyes to see whether anybody lives in them.

Both take namespace and image from the environment, for another process has to find the same.
"""

from __future__ import annotations

import os
from pathlib import Path

from httpx2.websockets import WebSocketUpgradeError
from lightkube import ApiError, AsyncClient
from lightkube.resources.core_v1 import Pod

from ramet.isolation.kubernetes.backend import KubernetesBackend
from ramet.isolation.kubernetes.reach import Attach

NAMESPACE, IMAGE = "RAMET_TEST_NAMESPACE", "RAMET_TEST_IMAGE"
PATIENCE_S = 15.0  #: of both ends of a line: so long a pod outlives its kernel

_LOOK = """
import fcntl, sys
try:
    with open(sys.argv[1], "rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
except FileNotFoundError:
    pass
except BlockingIOError:
    print("held")
"""


def backend(runs: Path) -> KubernetesBackend:
    """Of this cluster."""
    namespace, image = os.environ[NAMESPACE], os.environ[IMAGE]
    return KubernetesBackend(runs, namespace=namespace, image=image, reach=Attach(patience_s=PATIENCE_S))


async def eyes(runs: Path, file: Path) -> bool:
    """Whether a process in any pod of the namespace holds the lock on a file there."""
    async with AsyncClient(namespace=os.environ[NAMESPACE]) as kube:
        async for pod in kube.list(Pod):
            assert pod.metadata is not None, "the API gives no pod without metadata"
            assert pod.metadata.name is not None, "nor without a name"
            try:
                said = await kube.exec(
                    pod.metadata.name, command=["python3", "-I", "-c", _LOOK, str(file)], stdout=True, decode="utf-8"
                )
            except (ApiError, WebSocketUpgradeError):  # It has just ended.
                continue
            if "held" in (said.stdout or ""):
                return True
    return False
