"""Pods that wait for runs: what takes long of a pod is done before anybody asks for it.

One is as if it had been made for such a run, but for labels and a deadline, which it gets when it is taken. Nobody was
in it before, and it goes with its run. It never keeps room from a run: for one that has none, those that wait are let
go of.
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
from ramet.isolation.kubernetes.api.errors import said
from ramet.isolation.kubernetes.api.manifest import PodRequest, PodTemplate
from ramet.isolation.kubernetes.placement import single
from ramet.isolation.kubernetes.placement.sandbox import PodSandbox
from ramet.isolation.kubernetes.pods.pod import Pod, on_failure
from ramet.isolation.kubernetes.pods.pods import Pods, new_name, new_uid, unless_troubled
from ramet.isolation.remote.host_agent import OnThreshold

_SHAPES = 4  #: at once: agents are of few kinds, and what waits has its share of a node all the time
_KEPT_S = 600.0  #: after a shape was asked for last: a person may have thought for so long, and then has gone
_AGAIN_S = 60.0  #: after one could not be had, or its room was needed
_GONE_S = 10.0  #: for pods to be deleted whose room is needed
_COUNTED_S = 5.0  #: from then until the cluster does not count them any more, at the latest
_LOOK_S = 0.1  #: meanwhile, between two tries

_log = logging.getLogger("ramet.kubernetes")


class PodShape(NamedTuple):
    """What cannot be changed of a pod that is there: any that has the same will do for a run."""

    form: PodTemplate
    berth: PodRequest
    level: Isolation

    @classmethod
    def of(cls, form: PodTemplate, berth: PodRequest, level: Isolation) -> PodShape | None:
        """That of the pod of a run; None if something of the host travels to it, which has a place by its size."""
        if berth.size_mb:
            return None
        asked = berth.grant
        amounts = Grant(
            cpu_cores=asked.cpu_cores,
            memory_mb=asked.memory_mb,
            tmpfs_size_mb=asked.tmpfs_size_mb,
            workspace_size_mb=asked.workspace_size_mb,
        )
        return cls(form, replace(berth, name="", run="", uid=0, grant=amounts, about=labels.UNKNOWN), level)


@dataclass(eq=False)
class _Spare:
    pod: Pod
    since: float  #: by the loop's clock
    opening: asyncio.Task[single.ConnectedPod]

    @property
    def is_ready(self) -> bool:
        """Whether a run can start in it now, for all that is known here."""
        if not self.opening.done() or self.opening.cancelled() or self.opening.exception() is not None:
            return False
        return self.opening.result().machine.is_open and not self.pod.troubled.done()


@dataclass(eq=False)
class PodKind:
    shape: PodShape
    spares: list[_Spare] = field(default_factory=list)
    end: asyncio.TimerHandle | None = None


class WarmPool:
    """Those of one namespace. Make it on a running event loop; close it before its pods."""

    def __init__(self, pods: Pods, each: int, *, within_s: float, on_threshold: OnThreshold) -> None:
        """`each` is how many wait of a shape; `within_s` how long one may take to be ready, and then to start a run."""
        self._pods, self._each, self._within_s, self._on_threshold = pods, each, within_s, on_threshold
        self._shelves: list[PodKind] = []  #: what was asked for last is the last
        self._opening: set[asyncio.Task[single.ConnectedPod]] = set()
        self._leaving: set[Pod] = set()
        self._not_before = self._counted_at = 0.0

    @property
    def ready(self) -> list[str]:
        """The names of those in which a run could start now."""
        return [each.pod.name for shelf in self._shelves for each in shelf.spares if each.is_ready]

    async def start(
        self, spec: SandboxSpec, shape: PodShape | None, berth: PodRequest, places: Mapping[str, str]
    ) -> PodSandbox | None:
        """A run in a pod that waited; None if there is none of this shape. Raises what `alone.start_in` does."""
        while shape is not None and (spare := self._take(shape)) is not None:
            waited_s = asyncio.get_running_loop().time() - spare.since
            patch = manifest.claim_patch(shape.form, berth, waited_s=waited_s)
            home = spare.opening.result()
            try:
                return await single.start_in(
                    home, spec, pods=self._pods, patch=patch, places=places, within_s=self._within_s
                )
            except Gone as problem:
                _log.info("run %s has another pod than the one that waited: %s", spec.run, problem)
        return None

    def want(self, shape: PodShape | None) -> None:
        """Have as many wait as there should: a run of that shape was started. Waits for nothing."""
        if shape is None or not self._each:
            return
        loop = asyncio.get_running_loop()
        if (shelf := self._shelf(shape)) is None:
            if len(self._shelves) == _SHAPES:
                self._drop(self._shelves[0])
            shelf = PodKind(shape)
        else:
            self._shelves.remove(shelf)
        self._shelves.append(shelf)
        if shelf.end is not None:
            shelf.end.cancel()
        shelf.end = loop.call_later(_KEPT_S, self._drop, shelf)
        while len(shelf.spares) < self._each and loop.time() >= self._not_before:
            shelf.spares.append(self._make(shelf))

    def make_way(self) -> None:
        """Let go of all that wait, and have none for a while: a run needs their room. Waits for nothing."""
        self._not_before = asyncio.get_running_loop().time() + _AGAIN_S
        for shelf in self._shelves:
            self._empty(shelf)

    async def make_room(self) -> bool:
        """The same, until they are gone; whether there may be more room now than there was just before."""
        self.make_way()
        loop = asyncio.get_running_loop()
        if self._leaving:
            gone, _ = await asyncio.wait([each.gone for each in self._leaving], timeout=_GONE_S)
            if not gone:
                return False
            self._counted_at = loop.time() + _COUNTED_S
        elif loop.time() < self._counted_at:
            await asyncio.sleep(_LOOK_S)
        else:
            return False
        return True

    async def close(self) -> None:
        """Let go of all, and have none any more. Idempotent."""
        self._each = 0
        for shelf in [*self._shelves]:
            self._drop(shelf)
        for each in self._opening:
            each.cancel()
        await asyncio.gather(*self._opening, return_exceptions=True)

    def _shelf(self, shape: PodShape) -> PodKind | None:
        return next((each for each in self._shelves if each.shape == shape), None)

    def _take(self, shape: PodShape) -> _Spare | None:
        """The one that has waited for longest. What is of no use by now goes."""
        if (shelf := self._shelf(shape)) is None:
            return None
        for spare in [*shelf.spares]:
            if spare.is_ready:
                shelf.spares.remove(spare)
                return spare
            if spare.opening.done():
                self._let_go(shelf, spare)
        return None

    def _make(self, shelf: PodKind) -> _Spare:
        loop, (form, berth, level) = asyncio.get_running_loop(), shelf.shape
        since, pod = loop.time(), self._pods.make(form, replace(berth, name=new_name(), uid=new_uid()))

        async def opened() -> single.ConnectedPod:
            async with asyncio.timeout(self._within_s):
                return await unless_troubled(pod, single.opened(self._pods, pod, level, self._on_threshold))

        spare = _Spare(pod, since, loop.create_task(opened()))
        self._opening.add(spare.opening)
        spare.opening.add_done_callback(lambda _: self._was_opened(shelf, spare))
        pod.unplaced.add_done_callback(lambda done: self._fail(shelf, spare, done.result().words))
        on_failure(pod, lambda _: self._let_go(shelf, spare) if spare.opening.done() else None)
        return spare

    def _was_opened(self, shelf: PodKind, spare: _Spare) -> None:
        self._opening.discard(spare.opening)
        if not spare.opening.cancelled() and (problem := spare.opening.exception()) is not None:
            self._fail(shelf, spare, said(problem))

    def _fail(self, shelf: PodKind, spare: _Spare, words: str) -> None:
        """One cannot be had: that is told, and not tried again at once."""
        if not self._let_go(shelf, spare):
            return
        now = asyncio.get_running_loop().time()
        if now >= self._not_before:
            _log.warning("no pod waits for the next run, which starts later by that: %s", words)
        self._not_before = now + _AGAIN_S

    def _let_go(self, shelf: PodKind, spare: _Spare) -> bool:
        """False if that was done before, or a run has it."""
        if spare not in shelf.spares:
            return False
        shelf.spares.remove(spare)
        self._leaving.add(spare.pod)
        spare.pod.gone.add_done_callback(lambda _: self._leaving.discard(spare.pod))
        spare.pod.release()
        return True

    def _empty(self, shelf: PodKind) -> None:
        for spare in [*shelf.spares]:
            self._let_go(shelf, spare)

    def _drop(self, shelf: PodKind) -> None:
        """Nobody has asked for it for long, or for too many others."""
        if shelf.end is not None:
            shelf.end.cancel()
        self._shelves.remove(shelf)
        self._empty(shelf)
