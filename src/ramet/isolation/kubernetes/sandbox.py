"""One run in a pod, as its owner sees it."""

from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import Mapping, Sequence
from typing import Any

from ramet.core.policy import Isolation
from ramet.isolation.contract import KILL_GRACE_S, Exit, Metrics, Ran
from ramet.isolation.kubernetes.life import Pod, removed
from ramet.isolation.remote.boxed import RemoteSandbox
from ramet.isolation.remote.outside import Machine

#: How long a pod may take to answer a kill before it is deleted.
_DEAF_S = 10.0
#: How long `clean_up` waits for the API to have deleted the pod, which goes in any case.
_GONE_S = 10.0


class PodSandbox:
    """A sandbox that has a pod to itself; the pod goes when it is cleaned up."""

    def __init__(self, inner: RemoteSandbox, machine: Machine, pod: Pod, namespace: str, run: str) -> None:
        self._inner, self._machine, self._pod = inner, machine, pod
        self._described = {"run": run, "pod": pod.name, "uid": pod.uid, "namespace": namespace}

    @property
    def channel(self) -> socket.socket:
        """See `ramet.isolation.contract.Sandbox`, here and below."""
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
        """Over the line; whoever cannot be reached so is deleted with its pod."""
        try:
            async with asyncio.timeout(grace_s + _DEAF_S):
                return await self._inner.kill(grace_s)
        except TimeoutError:
            self._pod.release()
            await asyncio.shield(self._pod.gone)
            self._machine.lost(Exit(-signal.SIGKILL, "signalled", "its pod did not answer and was deleted"))
            return await self._inner.wait()

    async def metrics(self) -> Metrics:
        return await self._inner.metrics()

    async def run_command(self, argv: Sequence[str], *, timeout_s: float, max_bytes: int) -> Ran:
        return await self._inner.run_command(argv, timeout_s=timeout_s, max_bytes=max_bytes)

    async def sync(self) -> None:
        await self._inner.sync()

    async def clean_up(self) -> None:
        """What it left comes here, and then the pod goes."""
        try:
            await self._inner.clean_up()
            await self._machine.close()
        finally:
            self._pod.release()
        await removed(self._pod, _GONE_S)

    def describe(self) -> Mapping[str, Any]:
        return self._described
