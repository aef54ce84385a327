"""All pods of a kernel in one namespace: made, watched, reached, and removed in the end."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any, TypeVar

from ramet.core.errors import Gone, InvalidValue, RametError, SandboxFailed, SpawnRefused
from ramet.core.policy.policy import Isolation
from ramet.isolation.contract import Exit
from ramet.isolation.kubernetes.api import labels, manifest
from ramet.isolation.kubernetes.api.client import Api
from ramet.isolation.kubernetes.api.pod_status import ObservedPod, PodFailure
from ramet.isolation.kubernetes.connect.attach import PodTransport
from ramet.isolation.kubernetes.pods.claim import OwnedPod, PodClaim
from ramet.isolation.kubernetes.pods.delete import delete
from ramet.isolation.kubernetes.pods.line import PodLine
from ramet.isolation.kubernetes.pods.pod import Pod, PodContext, on_failure
from ramet.isolation.kubernetes.pods.watch import PodWatch
from ramet.isolation.remote.host_agent import NodeClient, OnDeaf, OnThreshold

#: Users of pods: none of an ordinary image, and far too many for two pods of a node to get the same by chance.
UIDS = range(1_000_000, 2_000_000_000)
_CLOSE_S = 30.0

_log = logging.getLogger("ramet.kubernetes")
T = TypeVar("T")


class Pods:
    """The pods of one kernel, `owner` by its label. Make it on a running event loop."""

    def __init__(
        self,
        api: Api,
        reach: PodTransport,
        owner: str,
        *,
        unschedulable_s: float,
        on_unplaced: Callable[[], object] | None = None,
    ) -> None:
        """`on_unplaced` is told when no node takes one of them, or not yet."""
        self._api, self._reach, self._owner, self._on_unplaced = api, reach, owner, on_unplaced
        lookout = PodWatch(api, labels.selector(owner=owner), self._remove_stray)
        self._ground = PodContext(api=api, owner=owner, lookout=lookout, reach=reach, unschedulable_s=unschedulable_s)
        self._pods: set[Pod] = set()
        self._machines: set[NodeClient] = set()
        self._strays: set[asyncio.Task[None]] = set()

    @property
    def namespace(self) -> str:
        """Where they are."""
        return self._api.namespace

    @property
    def owner(self) -> str:
        """Whose they are, by their labels."""
        return self._owner

    @property
    def outlives_s(self) -> float:
        """See `PodTransport`."""
        return self._reach.outlives_s

    def make(self, form: manifest.PodTemplate, berth: manifest.PodRequest) -> Pod:
        """Have one made; waits for nothing. Raises InvalidValue for a mount that no pod can have."""
        files = self._reach.secret(berth.name)
        secret = manifest.secret(form, berth.name, berth.run, berth.about, files) if files else None
        try:
            made = manifest.pod(form, replace(berth, secret=berth.name if files else None))
        except InvalidValue:
            self._reach.forget(berth.name)
            raise
        return self._known(Pod(self._ground, made, secret))

    def claim(self, claim: PodClaim) -> Pod:
        """Have one be this kernel's that another one had made; waits for nothing. Raises Gone for one of our own."""
        if any(each.name == claim.pod for each in self._pods):
            raise Gone(f"pod {claim.pod} is this kernel's own, and at work")
        return self._known(OwnedPod(self._ground, claim))

    def _known(self, pod: Pod) -> Pod:
        self._pods.add(pod)
        pod.gone.add_done_callback(lambda _: self._pods.discard(pod))
        if (on_unplaced := self._on_unplaced) is not None:
            pod.unplaced.add_done_callback(lambda _: on_unplaced())
        return pod

    async def open(
        self,
        pod: Pod,
        *,
        ends: Callable[[PodFailure], Exit],
        level: Isolation | None = None,
        on_threshold: OnThreshold | None = None,
        on_deaf: OnDeaf | None = None,
    ) -> NodeClient:
        """What keeps sandboxes in a pod, once that is there; `ends` says how they end by its trouble. Close it.

        Raises SandboxFailed, SpawnRefused where a quota leaves no room, Gone for one that could not be claimed.
        """
        try:
            reached = await asyncio.shield(pod.reached)
        except RametError as error:
            if isinstance(error, (Gone, SandboxFailed, SpawnRefused)):
                raise
            raise SandboxFailed(f"no pod: {error}") from error
        machine = NodeClient(PodLine(reached.line, pod), level=level, on_threshold=on_threshold, on_deaf=on_deaf)
        self._machines.add(machine)
        pod.gone.add_done_callback(lambda _: self._machines.discard(machine))
        on_failure(pod, lambda trouble: machine.lost(ends(trouble)))
        return machine

    async def close(self) -> None:
        """Delete all of them. Idempotent."""
        for pod in self._pods:
            pod.release()
        if self._pods:
            _, late = await asyncio.wait([pod.gone for pod in self._pods], timeout=_CLOSE_S)
            for each in late:  # The API is away: they end by themselves, and go with the next reap.
                each.cancel()
            await asyncio.gather(*late, return_exceptions=True)
        await asyncio.gather(*(machine.close() for machine in list(self._machines)))
        await asyncio.gather(*self._strays, return_exceptions=True)
        await self._ground.lookout.close()

    def _remove_stray(self, name: str) -> None:
        async def remove() -> None:
            try:
                await delete(self._api, ObservedPod(name), self._owner)
            except RametError as problem:
                _log.warning("pod %s stays for now: %s", name, problem)

        task = asyncio.get_running_loop().create_task(remove())
        self._strays.add(task)
        task.add_done_callback(self._strays.discard)


async def unless_troubled(pod: Pod, work: Coroutine[Any, Any, T], *, drop: Callable[[T], object] | None = None) -> T:
    """Have something done in a pod. Raises SandboxFailed with the cluster's words if that gets into trouble first.

    `drop` is told of what was done in the moment in which whoever wants it is cancelled.
    """
    working = asyncio.ensure_future(work)
    try:
        await asyncio.wait((working, pod.troubled), return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise SandboxFailed(_failure(pod, pod.troubled.result()))
        return working.result()
    except asyncio.CancelledError:
        if drop is not None and working.done() and not working.cancelled() and working.exception() is None:
            drop(working.result())
        raise
    except SandboxFailed as error:
        if pod.troubled.done() and pod.troubled.result().words not in str(error):
            raise SandboxFailed(f"{error}; {_failure(pod, pod.troubled.result())}") from error
        raise
    finally:
        working.cancel()
        await asyncio.gather(working, return_exceptions=True)


def new_name() -> str:
    """For a pod; no other has it."""
    return f"ramet-{secrets.token_hex(6)}"


def new_uid() -> int:
    """A user for a pod."""
    return UIDS.start + secrets.randbelow(len(UIDS))


def _failure(pod: Pod, trouble: PodFailure) -> str:
    said, last = "", pod.words.rpartition("\n")[2]
    if trouble.kind == "exited" and last and last not in trouble.words:
        said = f"; it said: {pod.words}"
    return f"pod {pod.name}: {trouble.words}{said}"
