"""The images from which pods start: found by what a run may see, made and pushed once."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from pathlib import Path

from ramet.core.errors import RametError
from ramet.isolation.kubernetes.images import ImageWithMounts, PodImage
from ramet.services.contract import PLAIN, Image
from ramet.services.packaging.oci.manifest import container_paths
from ramet.services.packaging.oci.push import OnProgress, no_progress
from ramet.services.packaging.oci.registries import OpenRegistries
from ramet.services.packaging.oci.registry import reference
from ramet.services.packaging.runtime_image.build import RuntimeImage, image_on, runtime_image
from ramet.services.packaging.runtime_image.files import Kind
from ramet.services.packaging.service import PackagingService

_log = logging.getLogger("ramet.kubernetes")
_DIGEST = re.compile(r"[0-9a-f]{64}")  #: the name of a folder of a bundle, or of packages: its content never changes


class PodImages:
    """The images of pods, in one registry and on one base: the plain one, and others on top of it.

    `store` has the images that can be found by their folders; without a store no image is found.
    """

    def __init__(
        self,
        open_registry: Callable[[], AbstractAsyncContextManager[OpenRegistries]],
        kind: Kind = "llm",
        *,
        on_progress: OnProgress = no_progress,
    ) -> None:
        """Call `open_registry` for each access to the registry: no connection stays open."""
        self._open_registry, self._kind, self._on_progress = open_registry, kind, on_progress
        self.store: PackagingService | None = None
        self._locks: dict[str, asyncio.Lock] = {}
        self._pod_images: dict[str, RuntimeImage] = {}
        self._images_by_reference: dict[str, Image] = {}  #: all images that were made, by the reference that nodes use
        self._images_by_folders: dict[
            frozenset[str], Image
        ] = {}  #: by the folders of the image, as they occur in mounts

    async def image(self, image: Image = PLAIN) -> RuntimeImage:
        """Return the pod image of an image, on top of the runtime image. Raises like `runtime_image` and `image_on`.

        A request after a failure tries again.
        """
        base_image = await self.image() if image.id else None
        async with self._locks.setdefault(image.id, asyncio.Lock()):
            if (pod_image := self._pod_images.get(image.id)) is None:
                async with self._open_registry() as registry:
                    if base_image is not None:
                        pod_image = await image_on(base_image, image, registry.registry, on_progress=self._on_progress)
                    else:
                        pod_image = await runtime_image(
                            registry.registry,
                            registry.base,
                            self._kind,
                            source=registry.source,
                            on_progress=self._on_progress,
                        )
                self._pod_images[image.id] = pod_image
                self._images_by_reference.setdefault(
                    pod_image.reference, image
                )  # An image without bundles is the plain one.
            return pod_image

    async def push_again(self, image: PodImage) -> bool:
        """Push an image again that a node could not pull, if the registry has lost it or a part of it.

        Return False if the image is complete, or was not pushed here. Return True to each caller that received the
        image before it was lost, and may now request it again. Raises like `image`.
        """
        source_image = self._images_by_reference.get(image.reference)
        if source_image is None:
            return False
        if source_image.id and (base_image := self._pod_images.get(PLAIN.id)) is not None:
            await self.push_again(base_image)
        async with self._locks[source_image.id]:
            if self._pod_images.get(source_image.id) is image:
                name = reference(image.reference.partition("/")[2])  # without the registry's
                async with self._open_registry() as registry:
                    if await registry.registry.digest(name) is not None:
                        return False
                _log.warning("image %s is missing in its registry and is pushed again", image.reference)
                del self._pod_images[source_image.id]
        await self.image(source_image)
        return True

    async def image_with_mounts(self, mounts: Sequence[str]) -> ImageWithMounts | None:
        """Return the image of the store whose folders are exactly the bundle and package folders of these mounts.

        Return None if there is no such image, for example for a run that may see only a part of one. Raises like
        `image`.
        """
        digests = frozenset(each for each in mounts if _DIGEST.fullmatch(Path(each).name))
        if not digests or (image := await self._find_image(digests)) is None:
            return None
        return ImageWithMounts(await self.image(image), _mount_paths(image))

    async def _find_image(self, folders: frozenset[str]) -> Image | None:
        if folders not in self._images_by_folders and self.store is not None:
            names = {Path(each).name for each in folders}
            for info in await self.store.list_images():
                if names.issuperset(info.bundles):
                    with suppress(RametError):  # The image is being deleted, or cannot be spawned from.
                        image = await self.store.image(info.id)
                        self._images_by_folders.setdefault(frozenset(_mount_paths(image)), image)
        return self._images_by_folders.get(folders)


def _mount_paths(image: Image) -> Mapping[str, str]:
    """Return the path of each folder of an image in a pod, by the path that mounts use."""
    return {str(folder.resolve()): f"/{path}" for path, folder in container_paths(image).items()}
