"""A kernel that stops at one step of a pod's life, says so, and waits to be killed there.

Told: the folder of all workspaces, the namespace, the image, and the step, one of STEPS.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ramet.core.policy import Grant
from ramet.isolation.contract import SandboxSpec
from ramet.isolation.kubernetes.api import Api
from ramet.isolation.kubernetes.backend import KubernetesBackend
from ramet.isolation.kubernetes.life import Pod
from ramet.isolation.kubernetes.reach import Attach, Attached
from ramet.isolation.kubernetes.seen import Seen
from ramet.isolation.remote.outside import Machine
from ramet.services.packaging.runtime_files import PYTHON
from ramet.services.packaging.runtime_image import RuntimeImage

STEPS = ("created", "scheduled", "attached", "greeted", "started", "ended")


def stop(here: str) -> None:
    """If this is the step: whatever is under way stays as it is."""
    if here == sys.argv[4]:
        sys.stdout.write(f"{here}\n")
        sys.stdout.flush()
        while True:
            signal.pause()


def _after(owner: Any, name: str, here: str, when: Callable[[Any], bool] = lambda _: True) -> None:
    """Have a coroutine method stop here once it has done its work."""
    method = getattr(owner, name)

    async def stopped(*given: Any, **more: Any) -> Any:
        result = await method(*given, **more)
        if when(more):
            stop(here)
        return result

    setattr(owner, name, stopped)


async def main(runs: Path, namespace: str, image: str) -> None:
    """One life of a pod, as far as it goes."""
    _after(Api, "create_pod", "created", lambda more: not more.get("dry_run"))
    _after(Machine, "hello", "greeted")
    see, carry = Pod._see, Attached._carry

    def seen(self: Pod, seen: Seen) -> None:
        see(self, seen)
        if seen.node:
            stop("scheduled")

    async def carried(self: Attached, *given: Any) -> None:
        stop("attached")
        await carry(self, *given)

    setattr(Pod, "_see", seen)  # noqa: B010 - mypy takes no assignment to a method
    setattr(Attached, "_carry", carried)  # noqa: B010
    backend = KubernetesBackend(
        runs,
        namespace=namespace,
        image=RuntimeImage(image, "", f"python{PYTHON}"),
        reach=Attach(patience_s=600),  # Whoever is gone, is gone because somebody came.
    )
    workspace = runs / sys.argv[4]
    workspace.mkdir(parents=True)
    grant = Grant(memory_mb=64, tmpfs_size_mb=8, workspace_size_mb=8)
    entry = "ramet.isolation.conformance.guest:main"
    sandbox = await backend.start(SandboxSpec(run=sys.argv[4], grant=grant, workspace=workspace, entry=entry))
    stop("started")
    sandbox.channel.close()
    await sandbox.wait()
    stop("ended")


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), sys.argv[2], sys.argv[3]))
