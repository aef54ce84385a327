"""The removal of what dead kernels of a place left. Pods that another kernel may adopt are kept for a time."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping, Sequence

from ramet.core.errors import RametError
from ramet.isolation.kubernetes.api import labels
from ramet.isolation.kubernetes.api.client import Api
from ramet.isolation.kubernetes.api.errors import Forbidden
from ramet.isolation.kubernetes.api.pod_status import ObservedPod
from ramet.isolation.kubernetes.kernels import Kernels
from ramet.isolation.kubernetes.pods.delete import delete

#: Added to a pod's own patience, which starts when the pod detects the loss of its kernel: up to 15 s after that loss.
_SLACK_S = 20.0
_AGAIN_S = 5.0  #: after a scan that failed
_LATER_S = 60.0  #: after something could not be removed
_CLOSE_S = 10.0

_log = logging.getLogger("ramet.kubernetes")


class Reaper:
    """The reaper of one kernel, for all namespaces. Create it on a running event loop; close it."""

    def __init__(self, kernels: Kernels, api_of: Callable[[str], Api]) -> None:
        """Create the reaper. `api_of` creates a client for a namespace; the reaper closes it."""
        self._kernels, self._api_of = kernels, api_of
        #: Kept objects, by namespace, uid and owner; the value is the end of the time on the loop's clock.
        self._spared_until: dict[tuple[str, str, str], float] = {}
        self._task: asyncio.Task[None] | None = None

    async def reap(self, namespace: str) -> Sequence[str]:
        """Remove what dead kernels left in a namespace; return what was removed.

        An object that cannot be removed now does not prevent the removal of others, and is tried again later. A pod
        that waits for another kernel is kept for as long as it waits; after that it has ended by itself. Both are
        retried until `close`. Raises Forbidden, Unreachable if the namespace cannot be listed.
        """
        removed_names = await self._reap(namespace, self._spares)
        if self._spared_until and (self._task is None or self._task.done()):
            self._task = asyncio.get_running_loop().create_task(self._look_again())
        return removed_names

    async def close(self) -> None:
        """Stop scanning. Idempotent.

        If no other kernel is alive, remove pods that wait for a kernel at once.
        """
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        namespaces = {namespace for namespace, _, _ in self._spared_until}
        self._spared_until.clear()
        if not namespaces:
            return
        with contextlib.suppress(RametError, TimeoutError):  # The next reap finds what is left.
            async with asyncio.timeout(_CLOSE_S):
                if await self._kernels.living() == {self._kernels.kernel}:
                    for namespace in namespaces:
                        await self._reap(namespace, lambda *_: False)

    async def _look_again(self) -> None:
        loop = asyncio.get_running_loop()
        while self._spared_until:
            await asyncio.sleep(min(self._spared_until.values()) - loop.time())
            for namespace in {
                due_namespace for (due_namespace, _, _), until in self._spared_until.items() if until <= loop.time()
            }:
                try:
                    for each in await self._reap(namespace, self._spares):
                        _log.info("removed, because no kernel has adopted it: %s", each)
                except Exception as problem:  # A store may raise any error.
                    _log.warning("the objects of dead kernels in %s could not be removed yet: %s", namespace, problem)
                    next_at = loop.time() + _AGAIN_S
                    self._spared_until |= {
                        key: max(next_at, at) for key, at in self._spared_until.items() if key[0] == namespace
                    }

    def _spares(self, namespace: str, pod: ObservedPod) -> bool:
        """Return whether a dead kernel's pod is kept this time."""
        if not pod.outlives_s or not pod.node or pod.failure is not None or pod.owner == labels.NO_OWNER:
            return False
        now = asyncio.get_running_loop().time()
        return now < self._spared_until.setdefault((namespace, pod.uid, pod.owner), now + pod.outlives_s + _SLACK_S)

    async def _reap(self, namespace: str, is_spared: Callable[[str, ObservedPod], bool]) -> Sequence[str]:
        api = self._api_of(namespace)
        try:
            return await self._remove_dead(api, is_spared)
        finally:
            await api.close()

    async def _remove_dead(self, api: Api, is_spared: Callable[[str, ObservedPod], bool]) -> Sequence[str]:
        selector = labels.selector(place=self._kernels.place)
        # Listed before the living kernels are read: a kernel that starts in between has nothing in the list.
        (_, pods), secrets, policies = await asyncio.gather(
            api.pods(selector), api.secrets(selector), _policies(api, selector)
        )
        dead = self._kernels.dead()
        owners = await self._kernels.owners(api.namespace)
        dead_pods = [each for each in pods if each.owner not in owners]
        spared_pods = [each for each in dead_pods if is_spared(api.namespace, each)]
        known = {(api.namespace, each.uid, each.owner) for each in spared_pods}
        self._spared_until = {
            key: at for key, at in self._spared_until.items() if key[0] != api.namespace or key in known
        }
        dead_pods = [each for each in dead_pods if each not in spared_pods]
        spared_names = {each.name for each in spared_pods}  # A Secret has its pod's name.
        orphans = [each for each in secrets if each.owner not in owners and each.name not in spared_names]
        dead_policies = [each for each in policies if each.owner not in owners]
        removals = [
            *((f"pod {each.name}", each, delete(api, each, each.owner)) for each in dead_pods),
            *((f"secret {each.name}", each, api.delete_secret(each.name)) for each in orphans),
            *((f"policy {each.name}", each, api.delete_policy(each.name)) for each in dead_policies),
        ]
        ends = await asyncio.gather(*(work for _, _, work in removals), return_exceptions=True)
        removed_names, failures = [], list[str]()
        for (name, each, _), end in zip(removals, ends, strict=True):
            if isinstance(end, RametError):
                failures.append(f"{name}: {end}")
                retry_at = asyncio.get_running_loop().time() + _LATER_S
                self._spared_until[api.namespace, each.uid, each.owner] = retry_at
            elif isinstance(end, BaseException):
                raise end
            elif end is not False:
                removed_names.append(name)
        if failures:
            _log.warning("%d objects of dead kernels could not be removed yet: %s, …", len(failures), failures[0])
        else:
            for kernel in dead:
                self._kernels.lease.forget(kernel)
        return removed_names


async def _policies(api: Api, selector: Mapping[str, str]) -> list[ObservedPod]:
    """Return the policies of kernels; an empty list if this kernel may not list them.

    A leftover policy selects only pods of a dead kernel.
    """
    try:
        return await api.policies(selector)
    except Forbidden:
        return []
