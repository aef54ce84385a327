"""The watch of all pods of a kernel: it passes each status change to the owner of the pod at once."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping

from ramet.core.errors import RametError
from ramet.isolation.kubernetes.api.client import Api
from ramet.isolation.kubernetes.api.errors import Missing, Stale
from ramet.isolation.kubernetes.api.pod_status import ObservedPod, deleted_pod

_AGAIN_S = (0.2, 0.5, 1.0, 2.0)  #: between two attempts to reach the API

_log = logging.getLogger("ramet.kubernetes")


class PodWatch:
    """A watch of pods with some labels, by name.

    `on_stray` is called with a pod that no one expects: it was created, and then was no longer wanted.
    """

    def __init__(self, api: Api, selector: Mapping[str, str], on_stray: Callable[[str], object]) -> None:
        self._api, self._selector, self._on_stray = api, dict(selector), on_stray
        self._callbacks: dict[str, Callable[[ObservedPod], object]] = {}
        self._existing: set[str] = set()  #: expected, and created or seen
        self._watching: asyncio.Task[None] | None = None

    def expect(self, name: str, on_change: Callable[[ObservedPod], object]) -> None:
        """Call `on_change` with each observed state of a pod from now on. Call this before the pod is created."""
        self._callbacks[name] = on_change
        if self._watching is None:
            self._watching = asyncio.get_running_loop().create_task(self._watch())

    def add(self, name: str) -> None:
        """Record that a pod exists now: a later list without the pod means that it is gone."""
        self._existing.add(name)

    def forget(self, name: str, *, was_made: bool) -> None:
        """Stop the calls for a pod that was deleted, or never created."""
        if was_made and name in self._callbacks:
            self._callbacks[name] = _ignore  # Until its end is observed, it is no stray.
            self._existing.add(name)
        else:
            self._callbacks.pop(name, None)
            self._existing.discard(name)

    async def close(self) -> None:
        """Stop watching. Idempotent."""
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.gather(self._watching, return_exceptions=True)

    async def _watch(self) -> None:
        version, failures, is_logged = "", 0, False
        while True:
            try:
                if not version:
                    version = await self._list()
                async for change in self._api.changes(self._selector, version):
                    version, failures, is_logged = change.version, 0, False
                    self._notify(deleted_pod(change.pod.name) if change.is_gone else change.pod)
                continue
            except Stale:
                if not failures:
                    version, failures = "", 1
                    continue
            except RametError as problem:
                if not is_logged:
                    _log.warning("the pods of this kernel cannot be watched for now: %s", problem)
                is_logged = True
            except Exception:  # A defect. Without a watch, a run whose pod ends would wait forever.
                if not is_logged:
                    _log.exception("the pods of this kernel cannot be watched for now")
                is_logged = True
            version = ""  # A new list contains every change since then.
            await asyncio.sleep(_AGAIN_S[min(failures, len(_AGAIN_S) - 1)])
            failures += 1

    async def _list(self) -> str:
        known = set(self._existing)
        version, pods = await self._api.pods(self._selector)
        for pod in pods:
            self._notify(pod)
        listed_names = {each.name for each in pods}
        for name in known - listed_names:
            self._notify(deleted_pod(name))
        for name in self._existing - known - listed_names:
            await self._look_for(name)
        return version

    async def _look_for(self, name: str) -> None:
        """Report a pod as gone if it was created during a list request, and no longer exists.

        The list may be older than the pod, so its absence there proves nothing.
        """
        try:
            await self._api.pod(name)
        except Missing:
            self._notify(deleted_pod(name))

    def _notify(self, pod: ObservedPod) -> None:
        is_gone = pod.failure is not None and pod.failure.kind == "deleted"
        on_change = self._callbacks.get(pod.name)
        if on_change is None:
            if not is_gone:
                self._on_stray(pod.name)
            return
        if is_gone:
            self.forget(pod.name, was_made=False)  # There are no changes after that.
        else:
            self._existing.add(pod.name)
        on_change(pod)


def _ignore(pod: ObservedPod) -> None:
    """Ignore the state of a pod that was deleted here."""
