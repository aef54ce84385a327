"""The pods of a kernel in one namespace: created, watched, connected, and removed in the end."""

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
from ramet.isolation.kubernetes.pods.pod import Pod, PodContext, on_failure
from ramet.isolation.kubernetes.pods.watch import PodWatch
from ramet.isolation.remote.host_agent import NodeClient, OnThreshold, OnUnreachable

#: User ids of pods: none of an ordinary image, and too many for two pods of a node to get the same one by chance.
UIDS = range(1_000_000, 2_000_000_000)
_CLOSE_S = 30.0
#: From the end of a pod's line to the cluster's reason for it, which is better than the line's, but later. Exceeded
#: only if the API is away, or a program lies.
_REPORT_S = 5.0

_log = logging.getLogger("ramet.kubernetes")
T = TypeVar("T")


class Pods:
    """The pods of one kernel; `owner` is its label. Create it on a running event loop."""

    def __init__(
        self,
        api: Api,
        reach: PodTransport,
        owner: str,
        *,
        unschedulable_s: float,
        on_unplaced: Callable[[], object] | None = None,
    ) -> None:
        """Create the set of pods. `on_unplaced` is called when no node takes a pod, or not yet."""
        self._api, self._reach, self._owner, self._on_unplaced = api, reach, owner, on_unplaced
        watch = PodWatch(api, labels.selector(owner=owner), self._remove_stray)
        self._context = PodContext(api=api, owner=owner, watch=watch, transport=reach, unschedulable_s=unschedulable_s)
        self._pods: set[Pod] = set()
        self._machines: set[NodeClient] = set()
        self._strays: set[asyncio.Task[None]] = set()

    @property
    def namespace(self) -> str:
        return self._api.namespace

    @property
    def outlives_s(self) -> float:
        return self._reach.outlives_s

    def make(self, form: manifest.PodTemplate, berth: manifest.PodRequest) -> Pod:
        """Begin the creation of a pod. Does not block. Raises InvalidValue for a mount that no pod can have."""
        files = self._reach.secret(berth.name)
        secret = manifest.secret(form, berth.name, berth.run, berth.pod_labels, files) if files else None
        try:
            pod_manifest = manifest.pod(form, replace(berth, secret=berth.name if files else None))
        except InvalidValue:
            self._reach.forget(berth.name)
            raise
        return self._register(Pod(self._context, pod_manifest, secret))

    def claim(self, claim: PodClaim) -> Pod:
        """Begin the claim of another kernel's pod. Does not block. Raises Gone for a pod of this kernel."""
        if any(each.name == claim.pod for each in self._pods):
            raise Gone(f"pod {claim.pod} belongs to this kernel and is in use")
        return self._register(OwnedPod(self._context, claim))

    def _register(self, pod: Pod) -> Pod:
        self._pods.add(pod)
        pod.removal.add_done_callback(lambda _: self._pods.discard(pod))
        if (on_unplaced := self._on_unplaced) is not None:
            pod.unschedulable.add_done_callback(lambda _: on_unplaced())
        return pod

    async def open(
        self,
        pod: Pod,
        *,
        ends: Callable[[PodFailure], Exit],
        level: Isolation | None = None,
        on_threshold: OnThreshold | None = None,
        on_deaf: OnUnreachable | None = None,
    ) -> NodeClient:
        """Return the client of a pod's sandboxes, once the pod is connected. Close it.

        `ends` converts the pod's failure into the exit of its sandboxes. Raises SandboxFailed, SpawnRefused if a quota
        leaves no room, Gone for a pod that could not be claimed.
        """
        try:
            connection = await asyncio.shield(pod.connection_future)
        except RametError as error:
            if isinstance(error, (Gone, SandboxFailed, SpawnRefused)):
                raise
            raise SandboxFailed(f"no pod: {error}") from error
        machine = NodeClient(
            connection.line,
            level=level,
            on_threshold=on_threshold,
            on_deaf=on_deaf,
            wait_reason=lambda: asyncio.wait(
                (pod.failure_future, pod.removal), timeout=_REPORT_S, return_when=asyncio.FIRST_COMPLETED
            ),
        )
        self._machines.add(machine)
        pod.removal.add_done_callback(lambda _: self._machines.discard(machine))
        on_failure(pod, lambda trouble: machine.on_lost(ends(trouble)))
        return machine

    async def close(self) -> None:
        """Delete all pods. Idempotent."""
        for pod in self._pods:
            pod.release()
        if self._pods:
            _, unfinished_removals = await asyncio.wait([pod.removal for pod in self._pods], timeout=_CLOSE_S)
            for (
                each
            ) in unfinished_removals:  # The API is away: these pods end by themselves, and the next reap removes them.
                each.cancel()
            await asyncio.gather(*unfinished_removals, return_exceptions=True)
        await asyncio.gather(*(machine.close() for machine in list(self._machines)))
        await asyncio.gather(*self._strays, return_exceptions=True)
        await self._context.watch.close()

    def _remove_stray(self, name: str) -> None:
        async def remove() -> None:
            try:
                await delete(self._api, ObservedPod(name), self._owner)
            except RametError as problem:
                _log.warning("pod %s could not be removed yet: %s", name, problem)

        task = asyncio.get_running_loop().create_task(remove())
        self._strays.add(task)
        task.add_done_callback(self._strays.discard)


async def until_failure(pod: Pod, work: Coroutine[Any, Any, T], *, drop: Callable[[T], object] | None = None) -> T:
    """Run `work` in a pod; return its result.

    Raises SandboxFailed, with the cluster's message, if the pod fails first. `drop` is called with the result if the
    caller is cancelled at the moment when `work` is done.
    """
    task = asyncio.ensure_future(work)
    try:
        await asyncio.wait((task, pod.failure_future), return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise SandboxFailed(_failure(pod, pod.failure_future.result()))
        return task.result()
    except asyncio.CancelledError:
        if drop is not None and task.done() and not task.cancelled() and task.exception() is None:
            drop(task.result())
        raise
    except SandboxFailed as error:
        if pod.failure_future.done() and pod.failure_future.result().message not in str(error):
            raise SandboxFailed(f"{error}; {_failure(pod, pod.failure_future.result())}") from error
        raise
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def new_name() -> str:
    return f"ramet-{secrets.token_hex(6)}"


def new_uid() -> int:
    """Return a user id for a pod."""
    return UIDS.start + secrets.randbelow(len(UIDS))


def _failure(pod: Pod, failure: PodFailure) -> str:
    suffix, last = "", pod.last_output.rpartition("\n")[2]
    if failure.kind == "exited" and last and last not in failure.message:
        suffix = f"; its last output: {pod.last_output}"
    return f"pod {pod.name}: {failure.message}{suffix}"
