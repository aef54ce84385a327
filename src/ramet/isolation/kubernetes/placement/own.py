"""Pods of one run each: a run gets a waiting pod or a new one, with retries if its start fails."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from ramet.core.errors import SandboxFailed, SpawnRefused
from ramet.core.policy.policy import DEFAULTS, Isolation
from ramet.isolation.contract import SandboxSpec
from ramet.isolation.kubernetes.api.manifest import PodRequest, PodTemplate
from ramet.isolation.kubernetes.images import DEFAULT_IMAGE, ImageProvider, PodImage
from ramet.isolation.kubernetes.placement import single
from ramet.isolation.kubernetes.placement.sandbox import PodSandbox
from ramet.isolation.kubernetes.placement.warm_pool import PodShape, WarmPool
from ramet.isolation.kubernetes.pods.pods import Pods, new_name
from ramet.isolation.remote.host_agent import OnThreshold


class OwnPods:
    """The pods of one namespace that have one run each.

    Create it on a running event loop; close it before its `Pods`.
    """

    def __init__(
        self,
        pods: Pods,
        images: ImageProvider,
        form_of: Callable[[PodImage], PodTemplate],
        *,
        warm: int,
        within_s: float,
        on_threshold: OnThreshold,
    ) -> None:
        """Create the placement.

        `warm` is the number of pods of each shape that wait. `within_s` is the time from a pod's creation until a run
        has started in it.
        """
        self._pods, self._images, self._template_of = pods, images, form_of
        self._within_s, self._on_threshold = within_s, on_threshold
        self._warm_pool = WarmPool(pods, warm, within_s=within_s, on_threshold=on_threshold)
        self._is_closed = False

    async def start(
        self, spec: SandboxSpec, level: Isolation, runtime_class: str | None, *, is_last: bool = False
    ) -> PodSandbox:
        """Start a run in a pod of its own. If its image had to be pushed again, try once more in a new pod.

        Raises SandboxFailed, SpawnRefused, IsolationUnavailable, InvalidValue; nothing is left then.
        """
        prepared_image = await self._images.image_for(spec)
        template, request = (
            self._template_of(prepared_image.image),
            single.pod_request(spec, prepared_image.image_paths, runtime_class),
        )
        shape = PodShape.of(template, request, level)
        sandbox = await self._warm_pool.start(spec, shape, request, prepared_image.image_paths)
        while sandbox is None:
            if self._is_closed:
                raise SandboxFailed("the backend was closed")
            pod = self._pods.make(template, request)
            pod.unschedulable.add_done_callback(lambda _: self.release_waiting_pods())
            try:
                sandbox = await single.start(
                    spec,
                    pods=self._pods,
                    pod=pod,
                    places=prepared_image.image_paths,
                    level=level,
                    within_s=self._within_s,
                    on_threshold=self._on_threshold,
                )
            except SpawnRefused:
                if not await self._warm_pool.wait_for_capacity():
                    raise
                request = replace(request, name=new_name())
            except SandboxFailed as failure:
                was_not_pulled = pod.failure_future.done() and pod.failure_future.result().kind == "image"
                if is_last or not was_not_pulled:
                    raise
                is_restored = await self._images.restore(prepared_image.image, failure)
                # A node waits a second for a secret that it has not seen before, then pulls without it.
                if not is_restored and not template.pull_secrets:
                    raise
                return await self.start(spec, level, runtime_class, is_last=True)
        self._warm_pool.request(shape)
        return sandbox

    def warm(self, level: Isolation, runtime_class: str | None) -> None:
        """Have pods wait for runs of the default policy, before the first such run. Does not block."""
        request = PodRequest(name="", run="", grant=DEFAULTS, uid=0, image=DEFAULT_IMAGE, runtime_class=runtime_class)
        self._warm_pool.request(PodShape.of(self._template_of(self._images.plain(DEFAULT_IMAGE)), request, level))

    def release_waiting_pods(self) -> None:
        """Release the waiting pods, because the pod of a run, here or elsewhere, has no place. Does not block."""
        self._warm_pool.release_waiting_pods()

    async def close(self) -> None:
        """Release the waiting pods, and start no more. Idempotent."""
        self._is_closed = True
        await self._warm_pool.close()
