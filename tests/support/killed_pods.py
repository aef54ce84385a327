"""A kernel that stops at one step of the life of a pod, prints the step, and waits to be killed there.

Arguments: the folder of all workspaces, the namespace, the image, the step (one of STEPS), and the address at which
pods find this machine, or "" for the attach stream.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ramet.isolation.kubernetes.api.client import Api
from ramet.isolation.kubernetes.api.pod_status import ObservedPod
from ramet.isolation.kubernetes.backend import KubernetesBackend
from ramet.isolation.kubernetes.connect.attach import Attach, AttachConnection, PodTransport
from ramet.isolation.kubernetes.connect.dial import DialTransport
from ramet.isolation.kubernetes.pods.pod import Pod
from ramet.isolation.remote.host_agent import NodeClient
from ramet.isolation.transport import certificates
from ramet.isolation.transport.listener import PATH, PodListener
from ramet.services.packaging.runtime_image.build import RuntimeImage
from ramet.services.packaging.runtime_image.files import PYTHON
from tests.support.pod_runs import SMALL, spec

_LONG_S = 600  #: of both ends: whoever is gone, is gone because somebody came
#: By whether pods dial.
STEPS = {
    False: ("created", "scheduled", "attached", "greeted", "started", "ended"),
    True: ("sworn", "created", "owned", "greeted", "deleted"),
}


def stop(here: str) -> None:
    """Print this step and wait to be killed, if it is the chosen step. All work in progress stays as it is."""
    if here == sys.argv[4]:
        sys.stdout.write(f"{here}\n")
        sys.stdout.flush()
        while True:
            signal.pause()


def _stop_after(owner: Any, name: str, here: str, condition: Callable[[Any], bool] = lambda _: True) -> None:
    """Make a coroutine method stop here once it has done its work."""
    method = getattr(owner, name)

    async def stopped(*given: Any, **more: Any) -> Any:
        result = await method(*given, **more)
        if condition(more):
            stop(here)
        return result

    setattr(owner, name, stopped)


async def main(runs: Path, namespace: str, image: str, host: str) -> None:
    """Take a pod through its life, as far as the chosen step."""
    _stop_after(Api, "create_secret", "sworn")
    _stop_after(Api, "create_pod", "created", lambda more: not more.get("dry_run"))
    _stop_after(Api, "patch_secret", "owned")
    _stop_after(Api, "delete_pod", "deleted")
    _stop_after(NodeClient, "hello", "greeted")
    see, carry = Pod._see, AttachConnection._carry

    def seen(self: Pod, seen: ObservedPod) -> None:
        see(self, seen)
        if seen.node:
            stop("scheduled")

    async def carried(self: AttachConnection, *given: Any) -> None:
        stop("attached")
        await carry(self, *given)

    setattr(Pod, "_see", seen)  # noqa: B010 - mypy takes no assignment to a method
    setattr(AttachConnection, "_carry", carried)  # noqa: B010
    async with contextlib.AsyncExitStack() as stack:
        reach: PodTransport = Attach(patience_s=_LONG_S)
        if host:
            identity = certificates.make([host])
            landing = await stack.enter_async_context(PodListener(host, 0, identity.context))
            url = f"wss://{host}:{landing.port}{PATH}"
            reach = DialTransport(landing, url=url, ca=identity.ca, patience_s=_LONG_S)
        program = RuntimeImage(image, "", f"python{PYTHON}")
        await run_pod(runs, KubernetesBackend(runs, namespace=namespace, image=program, reach=reach))


async def run_pod(runs: Path, backend: KubernetesBackend) -> None:
    """Take a pod of a backend through its life, once all stops are set."""
    sandbox = await backend.start(spec(runs, sys.argv[4], SMALL))
    stop("started")
    sandbox.channel.close()
    await sandbox.wait()
    stop("ended")
    await sandbox.clean_up()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), sys.argv[2], sys.argv[3], sys.argv[5]))
