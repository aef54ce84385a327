"""A kernel that is killed during a function in its own pod, at a moment that the next kernel knows.

Arguments: the folder of all workspaces, the namespace, the image, the address at which pods find this machine, their
patience, and the number of warm pods: the function is in one of these, if there are any. The kernel prints one line of
JSON for the next kernel, once it has answered some requests and received one more.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

from ramet.core.policy.policy import Grant
from ramet.isolation.contract import Backend, Sandbox, SandboxSpec
from ramet.isolation.kubernetes.backend import KubernetesBackend
from ramet.isolation.kubernetes.connect.dial import DialTransport
from ramet.isolation.transport import certificates
from ramet.isolation.transport.listener import PATH, PodListener
from ramet.services.packaging.runtime_image.build import RuntimeImage
from ramet.services.packaging.runtime_image.files import PYTHON
from ramet.wire import frames
from ramet.wire.code.capsule import pack
from ramet.wire.frames import Frame, FrameReader
from ramet.wire.guest_protocol import message_codec
from ramet.wire.guest_protocol.guest_to_host import Done, GuestMessage, Request
from ramet.wire.guest_protocol.host_to_guest import Answer, HostMessage, StartFunction
from tests.support.left_function import steps
from tests.support.pod_runs import wait_for

GRANT = Grant(memory_mb=64, tmpfs_size_mb=8, workspace_size_mb=8)
STEPS, ANSWERED = 6, 3  #: requests of a function, and how many of them have an answer when its kernel is killed
REMAINING_REQUESTS = STEPS - ANSWERED - 1  #: requests behind the one that is open then


def spec_of(runs: Path, grant: Grant = GRANT) -> SandboxSpec:
    """Return the specification that both kernels use."""
    return SandboxSpec(run="left", grant=grant, workspace=runs / "left")


class FunctionConversation:
    """The conversation of a kernel with a function in a sandbox."""

    def __init__(self, sandbox: Sandbox) -> None:
        self.sandbox = sandbox
        self._reader, self._frames = FrameReader(), list[Frame]()

    async def tell(self, message: HostMessage, body: bytes = b"") -> None:
        """Send a message."""
        for piece in frames.pack(message_codec.encode(message), body):
            await asyncio.get_running_loop().sock_sendall(self.sandbox.channel, piece)

    async def start(self) -> None:
        """Start a function that saves one checkpoint after the other, and returns their number."""
        capsule = pack(steps, (STEPS,))
        first = StartFunction(run="left", path="main", name=capsule.name, capsule_tag=capsule.tag)
        await self.tell(first, capsule.data)

    async def hear(self) -> GuestMessage:
        """Return the next message of the function."""
        async with asyncio.timeout(180):
            while not self._frames:
                data = await asyncio.get_running_loop().sock_recv(self.sandbox.channel, 1 << 16)
                assert data, "it has closed"
                self._frames += self._reader.feed(data)
        return message_codec.from_guest(self._frames.pop(0).control)

    async def asked(self) -> int:
        """Return the number of the function's next request."""
        request = await self.hear()
        assert isinstance(request, Request), request
        return request.id

    async def answer(self, number: int) -> None:
        """Send an empty answer to a request."""
        await self.tell(Answer(id=number))

    async def finish(self, number: int) -> int:
        """Answer this request and all that follow; return how many followed."""
        count = 0
        await self.answer(number)
        while not isinstance(message := await self.hear(), Done):
            assert isinstance(message, Request), message
            count += 1
            await self.answer(message.id)
        assert message.ok, message
        return count


@contextlib.asynccontextmanager
async def start_function(
    backend: Backend, runs: Path, grant: Grant = GRANT
) -> AsyncIterator[tuple[FunctionConversation, int]]:
    """Start a function and answer some of its requests; yield it with the number of its open request."""
    spec = spec_of(runs, grant)
    spec.workspace.mkdir(parents=True, exist_ok=True)
    talk = FunctionConversation(await backend.start(spec))
    await talk.start()
    for _ in range(ANSWERED):
        await talk.answer(await talk.asked())
    yield talk, await talk.asked()


async def main(runs: Path, namespace: str, image: str, host: str, patience_s: float, warm: int) -> None:
    """Hold an active function until this process is killed."""
    identity = certificates.make([host])
    async with PodListener(host, 0, identity.context) as landing:
        reach = DialTransport(landing, url=f"wss://{host}:{landing.port}{PATH}", ca=identity.ca, patience_s=patience_s)
        program = RuntimeImage(image, "", f"python{PYTHON}")
        backend = KubernetesBackend(runs, namespace=namespace, image=program, reach=reach, warm=warm)
        if warm:
            await wait_for(backend, spec_of(runs), warm)
        async with start_function(backend, runs) as (talk, number):
            sys.stdout.write(json.dumps([dict(talk.sandbox.describe()), number]) + "\n")
            sys.stdout.flush()
            await asyncio.Event().wait()


@contextlib.contextmanager
def abandon_function(
    pods: Any, runs: Path, *, patience_s: float = 600, warm: int = 0
) -> Iterator[tuple[dict[str, Any], int]]:
    """Start a kernel and kill it; yield the description of its sandbox and the number of the open request."""
    words = [str(runs), pods.namespace, pods.images["bare"].reference, pods.cluster.host, str(patience_s), str(warm)]
    with subprocess.Popen(
        [sys.executable, "-m", "tests.support.left_pods", *words],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "KUBECONFIG": str(pods.kubeconfig)},
    ) as process:
        try:
            assert process.stdout is not None, "asked for"
            description, number = json.loads(process.stdout.readline())
        finally:
            process.kill()
    yield description, number


if __name__ == "__main__":
    folder, namespace, image, host, patience, warm = sys.argv[1:]
    asyncio.run(main(Path(folder), namespace, image, host, float(patience), int(warm)))
