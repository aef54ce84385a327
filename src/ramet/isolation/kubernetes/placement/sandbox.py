"""The sandbox of one run in a pod."""

from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from ramet.core.policy.policy import Isolation
from ramet.isolation.contract import KILL_GRACE_S, Exit, Metrics, Ran
from ramet.isolation.kubernetes.pods.pod import Pod, wait_removed
from ramet.isolation.remote.host_agent import NodeClient
from ramet.isolation.remote.sandbox import RemoteSandbox

#: How long `clean_up` waits for the deletion of the pod, which continues in any case.
_GONE_S = 10.0


class PodLease(Protocol):
    """The share of a pod that a run has: all of it, or a part."""

    @property
    def silence_s(self) -> float:
        """The time that a kill may be without an answer before the pod is deleted."""

    async def end(self) -> None:
        """Delete a pod that does not answer, with all its runs, and mark all of these as ended."""

    async def release(self) -> None:
        """Release the share after the run was cleaned up. Idempotent."""


class ExclusiveLease:
    """A `PodLease` of a whole pod, which is deleted with its run."""

    silence_s = 10.0

    def __init__(self, machine: NodeClient, pod: Pod) -> None:
        self._machine, self._pod = machine, pod

    async def end(self) -> None:
        self._pod.release()
        await wait_removed(self._pod)
        self._machine.on_lost(Exit(-signal.SIGKILL, "signalled", "its pod did not answer and was deleted"))

    async def release(self) -> None:
        try:
            await self._machine.close()
        finally:
            self._pod.release()
        await wait_removed(self._pod, _GONE_S)


class PodSandbox:
    """A `ramet.isolation.contract.Sandbox` in a pod."""

    def __init__(self, inner: RemoteSandbox, lease: PodLease, pod: str, description: Mapping[str, Any]) -> None:
        self._inner, self._lease, self.pod, self._description = inner, lease, pod, description

    @property
    def channel(self) -> socket.socket:
        return self._inner.channel

    @property
    def stdout(self) -> int:
        return self._inner.stdout

    @property
    def stderr(self) -> int:
        return self._inner.stderr

    @property
    def pid(self) -> int:
        return -1

    @property
    def level(self) -> Isolation:
        return self._inner.level

    async def wait(self) -> Exit:
        return await self._inner.wait()

    def signal(self, number: int) -> None:
        self._inner.signal(number)

    async def kill(self, grace_s: float = KILL_GRACE_S) -> Exit:
        """Kill the run over the line; if its pod does not answer, delete the pod."""
        try:
            async with asyncio.timeout(grace_s + self._lease.silence_s):
                return await self._inner.kill(grace_s)
        except TimeoutError:
            await self._lease.end()
            return await self._inner.wait()

    async def metrics(self) -> Metrics:
        return await self._inner.metrics()

    async def freeze(self) -> bool:
        return await self._inner.freeze()

    async def thaw(self) -> None:
        await self._inner.thaw()

    async def run_command(self, argv: Sequence[str], *, timeout_s: float, max_bytes: int) -> Ran:
        return await self._inner.run_command(argv, timeout_s=timeout_s, max_bytes=max_bytes)

    async def dial(self, port: int) -> socket.socket:
        return await self._inner.dial(port)

    async def sync(self) -> None:
        await self._inner.sync()

    async def clean_up(self) -> None:
        """Fetch the files that the run left, and then remove the run from its pod."""
        try:
            await self._inner.clean_up()
        finally:
            await self._lease.release()

    def drop(self) -> None:
        """Drop a sandbox without an owner: close it here and end it in its pod. Does not block."""
        self._inner.drop()

    def describe(self) -> Mapping[str, Any]:
        """Return the data for an adoption.

        Empty for a run that ends with its kernel: in its team's pod, or reached through the attach stream.
        """
        return self._description
