"""One watch for all pods of a kernel: whoever has a pod is told what the cluster says of it, at once."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping

from ramet.core.errors import RametError
from ramet.isolation.kubernetes.api.client import Api
from ramet.isolation.kubernetes.api.errors import Missing, Stale
from ramet.isolation.kubernetes.api.pod_status import ObservedPod, gone

_AGAIN_S = (0.2, 0.5, 1.0, 2.0)  #: between two tries to reach the API

_log = logging.getLogger("ramet.kubernetes")


class PodWatch:
    """Pods with some labels, by name. `on_stray` is told of one that nobody expects: made, and then not wanted."""

    def __init__(self, api: Api, selector: Mapping[str, str], on_stray: Callable[[str], object]) -> None:
        self._api, self._selector, self._on_stray = api, dict(selector), on_stray
        self._told: dict[str, Callable[[ObservedPod], object]] = {}
        self._there: set[str] = set()  #: expected, and made or seen
        self._watching: asyncio.Task[None] | None = None

    def expect(self, name: str, told: Callable[[ObservedPod], object]) -> None:
        """Have somebody told of a pod, from now on. Before it is made."""
        self._told[name] = told
        if self._watching is None:
            self._watching = asyncio.get_running_loop().create_task(self._watch())

    def made(self, name: str) -> None:
        """It is there from now on at the latest: a list without it says that it is gone."""
        self._there.add(name)

    def forget(self, name: str, *, was_made: bool) -> None:
        """Nobody is to be told any more: it was deleted, or never made."""
        if was_made and name in self._told:
            self._told[name] = _nobody  # Until it is seen to be gone, it is no stray.
            self._there.add(name)
        else:
            self._told.pop(name, None)
            self._there.discard(name)

    async def close(self) -> None:
        """Look no more. Idempotent."""
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.gather(self._watching, return_exceptions=True)

    async def _watch(self) -> None:
        version, failures = "", 0
        while True:
            try:
                if not version:
                    version = await self._list()
                async for change in self._api.changes(self._selector, version):
                    version, failures = change.version, 0
                    self._tell(gone(change.seen.name) if change.is_gone else change.seen)
            except Stale:
                version = ""
            except RametError as problem:
                if not failures:
                    _log.warning("the pods of this kernel cannot be watched for now: %s", problem)
                version = ""  # What happened meanwhile is in a list for certain.
                await asyncio.sleep(_AGAIN_S[min(failures, len(_AGAIN_S) - 1)])
                failures += 1

    async def _list(self) -> str:
        before = set(self._there)
        version, pods = await self._api.pods(self._selector)
        for seen in pods:
            self._tell(seen)
        listed = {each.name for each in pods}
        for name in before - listed:
            self._tell(gone(name))
        for name in self._there - before - listed:
            await self._look_for(name)
        return version

    async def _look_for(self, name: str) -> None:
        """Tell of a pod that was made while a list was waited for, if it is gone: it may be older than the list."""
        try:
            await self._api.pod(name)
        except Missing:
            self._tell(gone(name))

    def _tell(self, seen: ObservedPod) -> None:
        is_gone = seen.trouble is not None and seen.trouble.kind == "deleted"
        told = self._told.get(seen.name)
        if told is None:
            if not is_gone:
                self._on_stray(seen.name)
            return
        if is_gone:
            self.forget(seen.name, was_made=False)  # Nothing comes after that.
        else:
            self._there.add(seen.name)
        told(seen)


def _nobody(seen: ObservedPod) -> None:
    """What is said of a pod that was deleted here."""
