"""Pods that wait for runs: the slow part of a pod's start is done before a run needs it.

A waiting pod equals a pod created for such a run, except for labels and a deadline, which it gets when it is taken. No
run was in it before, and it is deleted with its run. Waiting pods never take capacity from a run: they are released for
a run that has none.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from ramet.core.errors import Gone
from ramet.core.policy.policy import Grant, Isolation
from ramet.isolation.contract import SandboxSpec
from ramet.isolation.kubernetes.api import labels, manifest
from ramet.isolation.kubernetes.api.errors import message_of
from ramet.isolation.kubernetes.api.manifest import PodRequest, PodTemplate
from ramet.isolation.kubernetes.placement import single
from ramet.isolation.kubernetes.placement.sandbox import PodSandbox
from ramet.isolation.kubernetes.pods.pod import Pod, on_failure
from ramet.isolation.kubernetes.pods.pods import Pods, new_name, new_uid, until_failure
from ramet.isolation.remote.host_agent import OnThreshold

_SHAPES = 4  #: at the same time: agents are of few kinds, and a waiting pod occupies its share of a node
_KEEP_S = 600.0  #: after the last request for a shape: a person who pauses for longer is probably gone
_AGAIN_S = 60.0  #: after a pod could not be created, or its capacity was needed
_GONE_S = 10.0  #: for the deletion of pods whose capacity is needed
_COUNTED_S = 5.0  #: from their deletion until the cluster no longer counts them, at the latest
_LOOK_S = 0.1  #: between two attempts during that time

_log = logging.getLogger("ramet.kubernetes")


class PodShape(NamedTuple):
    """The properties that cannot be changed in an existing pod. Any pod with the same shape suits a run."""

    template: PodTemplate
    request: PodRequest
    level: Isolation

    @classmethod
    def of(cls, template: PodTemplate, request: PodRequest, level: Isolation) -> PodShape | None:
        """Return the shape of a run's pod; None if files of the host are copied to it.

        Such a pod has a volume of the size of these files.
        """
        if request.size_mb:
            return None
        grant = request.grant
        amounts = Grant(
            cpu_cores=grant.cpu_cores,
            memory_mb=grant.memory_mb,
            tmpfs_size_mb=grant.tmpfs_size_mb,
            workspace_size_mb=grant.workspace_size_mb,
        )
        return cls(template, replace(request, name="", run="", uid=0, grant=amounts, pod_labels=labels.UNKNOWN), level)


@dataclass(eq=False)
class _Spare:
    pod: Pod
    since: float  #: by the loop's clock
    opening: asyncio.Task[single.ConnectedPod]

    @property
    def is_ready(self) -> bool:
        """Return whether a run can start in this pod now, as far as this kernel knows."""
        if not self.opening.done() or self.opening.cancelled() or self.opening.exception() is not None:
            return False
        return self.opening.result().machine.is_open and not self.pod.failure_future.done()


@dataclass(eq=False)
class PodKind:
    shape: PodShape
    spares: list[_Spare] = field(default_factory=list)
    end: asyncio.TimerHandle | None = None


class WarmPool:
    """The waiting pods of one namespace. Create it on a running event loop; close it before its `Pods`."""

    def __init__(self, pods: Pods, each: int, *, within_s: float, on_threshold: OnThreshold) -> None:
        """Create the pool.

        `each` is the number of waiting pods of a shape. `within_s` is how long a pod may take to become ready, and then
        again to start a run.
        """
        self._pods, self._each, self._within_s, self._on_threshold = pods, each, within_s, on_threshold
        self._kinds: list[PodKind] = []  #: ordered by last request, the most recent last
        self._opening: set[asyncio.Task[single.ConnectedPod]] = set()
        self._removing: set[Pod] = set()
        self._not_before = self._capacity_free_at = 0.0

    @property
    def ready_pods(self) -> list[str]:
        """The names of the pods in which a run can start now."""
        return [each.pod.name for kind in self._kinds for each in kind.spares if each.is_ready]

    async def start(
        self, spec: SandboxSpec, shape: PodShape | None, request: PodRequest, places: Mapping[str, str]
    ) -> PodSandbox | None:
        """Start a run in a waiting pod; return None if there is none of this shape.

        Raises what `single.start_in` raises, except Gone.
        """
        while shape is not None and (spare := self._take(shape)) is not None:
            waited_s = asyncio.get_running_loop().time() - spare.since
            patch = manifest.claim_patch(shape.template, request, waited_s=waited_s)
            connected_pod = spare.opening.result()
            try:
                return await single.start_in(
                    connected_pod, spec, pods=self._pods, patch=patch, places=places, within_s=self._within_s
                )
            except Gone as problem:
                _log.info("run %s gets a new pod instead of the waiting one: %s", spec.run, problem)
        return None

    def request(self, shape: PodShape | None) -> None:
        """Fill up the waiting pods of a shape, because a run of that shape was started. Does not block."""
        if shape is None or not self._each:
            return
        loop = asyncio.get_running_loop()
        if (kind := self._kind_of(shape)) is None:
            if len(self._kinds) == _SHAPES:
                self._drop(self._kinds[0])
            kind = PodKind(shape)
        else:
            self._kinds.remove(kind)
        self._kinds.append(kind)
        if kind.end is not None:
            kind.end.cancel()
        kind.end = loop.call_later(_KEEP_S, self._drop, kind)
        while len(kind.spares) < self._each and loop.time() >= self._not_before:
            kind.spares.append(self._make(kind))

    def release_waiting_pods(self) -> None:
        """Release all waiting pods and create none for a while: a run needs their capacity. Does not block."""
        self._not_before = asyncio.get_running_loop().time() + _AGAIN_S
        for kind in self._kinds:
            self._empty(kind)

    async def wait_for_capacity(self) -> bool:
        """Release as `release_waiting_pods` does, and wait until a pod is gone.

        Return whether there may be more capacity than before.
        """
        self.release_waiting_pods()
        loop = asyncio.get_running_loop()
        if self._removing:
            removals, _ = await asyncio.wait([each.removal for each in self._removing], timeout=_GONE_S)
            if not removals:
                return False
            self._capacity_free_at = loop.time() + _COUNTED_S
        elif loop.time() < self._capacity_free_at:
            await asyncio.sleep(_LOOK_S)
        else:
            return False
        return True

    async def close(self) -> None:
        """Release all pods, and create no more. Idempotent."""
        self._each = 0
        for kind in [*self._kinds]:
            self._drop(kind)
        for each in self._opening:
            each.cancel()
        await asyncio.gather(*self._opening, return_exceptions=True)

    def _kind_of(self, shape: PodShape) -> PodKind | None:
        return next((each for each in self._kinds if each.shape == shape), None)

    def _take(self, shape: PodShape) -> _Spare | None:
        """Return the ready pod that has waited longest; release pods that are of no use."""
        if (kind := self._kind_of(shape)) is None:
            return None
        for spare in [*kind.spares]:
            if spare.is_ready:
                kind.spares.remove(spare)
                return spare
            if spare.opening.done():
                self._release(kind, spare)
        return None

    def _make(self, kind: PodKind) -> _Spare:
        loop, (template, request, level) = asyncio.get_running_loop(), kind.shape
        since, pod = loop.time(), self._pods.make(template, replace(request, name=new_name(), uid=new_uid()))

        async def open_spare() -> single.ConnectedPod:
            async with asyncio.timeout(self._within_s):
                return await until_failure(pod, single.connect(self._pods, pod, level, self._on_threshold))

        spare = _Spare(pod, since, loop.create_task(open_spare()))
        self._opening.add(spare.opening)
        spare.opening.add_done_callback(lambda _: self._was_opened(kind, spare))
        pod.unschedulable.add_done_callback(lambda done: self._fail(kind, spare, done.result().message))
        on_failure(pod, lambda _: self._release(kind, spare) if spare.opening.done() else None)
        return spare

    def _was_opened(self, kind: PodKind, spare: _Spare) -> None:
        self._opening.discard(spare.opening)
        if not spare.opening.cancelled() and (problem := spare.opening.exception()) is not None:
            self._fail(kind, spare, message_of(problem))

    def _fail(self, kind: PodKind, spare: _Spare, reason: str) -> None:
        """Log that no pod can wait now, and delay the next attempt."""
        if not self._release(kind, spare):
            return
        now = asyncio.get_running_loop().time()
        if now >= self._not_before:
            _log.warning("no pod waits for the next run, which will start more slowly: %s", reason)
        self._not_before = now + _AGAIN_S

    def _release(self, kind: PodKind, spare: _Spare) -> bool:
        """Release a pod; return False if it was released before, or a run has it."""
        if spare not in kind.spares:
            return False
        kind.spares.remove(spare)
        self._removing.add(spare.pod)
        spare.pod.removal.add_done_callback(lambda _: self._removing.discard(spare.pod))
        spare.pod.release()
        return True

    def _empty(self, kind: PodKind) -> None:
        for spare in [*kind.spares]:
            self._release(kind, spare)

    def _drop(self, kind: PodKind) -> None:
        """Remove a shape: its last request was too long ago, or there are too many shapes."""
        if kind.end is not None:
            kind.end.cancel()
        self._kinds.remove(kind)
        self._empty(kind)
