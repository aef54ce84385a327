"""The takeover of a pod that another kernel created."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass

from ramet.core.errors import Gone
from ramet.isolation.kubernetes.api import labels, manifest
from ramet.isolation.kubernetes.api.errors import ApiConflict, Missing, Unreachable
from ramet.isolation.kubernetes.api.pod_status import ObservedPod
from ramet.isolation.kubernetes.connect.attach import PodConnection
from ramet.isolation.kubernetes.pods.pod import Pod, PodContext

_AGAIN_S = 0.25


@dataclass(frozen=True, kw_only=True)
class PodClaim:
    """A pod to claim, and the kernels that may own it. Kernels are named by their labels."""

    pod: str
    uid: str
    place: str
    living: Callable[[], Awaitable[Collection[str]]]  #: the living kernels, whose pods cannot be claimed


class OwnedPod(Pod):
    """A claimed pod. Its labels name its owner: the first kernel that changes them gets it.

    The kernel watches the pod from before that change on.
    """

    def __init__(self, context: PodContext, claim: PodClaim) -> None:
        super().__init__(context, {"metadata": {"name": claim.pod}}, None)
        self._claim = claim

    async def _make(self) -> None:
        """Claim the pod. Raises Gone, and the API's errors.

        If the claim fails, the pod is removed unless it belongs to another kernel.
        """
        claim, context = self._claim, self._context
        while not self._is_released.is_set():
            try:
                pod = await context.api.pod(self.name)
                if pod.uid != claim.uid or pod.place != claim.place:
                    raise Gone(f"pod {self.name} was replaced by another pod of that name")
                await self._may_have(pod)
                self.uid, self._was_made, self._observed_pod = pod.uid, True, pod
                self._owners, self._secret = {context.owner, pod.owner}, {"metadata": {"name": self.name}}
                if pod.failure is not None:
                    raise Gone(pod.failure.message)
                if not pod.node:  # The node is checked, because a running container is reported late.
                    raise Gone(f"pod {self.name} is not running")
                patch = manifest.adopt_patch(context.owner, uid=pod.uid, version=pod.version)
                await context.api.patch_pod(self.name, patch)
                context.watch.add(self.name)
                self._observed_pod = pod._replace(owner=context.owner, version="")
                await self._take_secret()
            except Missing:
                raise Gone(f"pod {self.name} no longer exists") from None
            except ApiConflict:  # The pod, and possibly its owner, has changed since it was read.
                self._was_made, self._secret = False, None
            except Unreachable:
                await asyncio.sleep(_AGAIN_S)
            else:
                return

    async def _may_have(self, pod: ObservedPod) -> None:
        """Raise Gone if another kernel has the pod by now, or is deleting it."""
        if pod.owner == labels.NO_OWNER:
            raise Gone(f"pod {self.name} is being deleted")
        if pod.owner != self._context.owner and pod.owner in await self._claim.living():
            raise Gone(f"another kernel has adopted pod {self.name}")

    async def _take_secret(self) -> None:
        """Take over the pod's Secret, so that no reaper removes it as a dead kernel's.

        Its key is void by now, and the Secret is deleted with its pod.
        """
        try:
            await self._context.api.patch_secret(self.name, manifest.adopt_patch(self._context.owner))
        except Missing:
            pass

    def _reach(self) -> PodConnection:
        return self._context.transport.reconnect(self._context.api, self.name, self.uid)
