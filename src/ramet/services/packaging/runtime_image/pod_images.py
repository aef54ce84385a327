"""Which image a pod starts from: found by what its run is to see, made and pushed once."""

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
from ramet.services.packaging.oci.manifest import places
from ramet.services.packaging.oci.push import Told, no_progress
from ramet.services.packaging.oci.registries import Opened
from ramet.services.packaging.oci.registry import reference
from ramet.services.packaging.runtime_image.build import RuntimeImage, image_on, runtime_image
from ramet.services.packaging.runtime_image.files import Kind
from ramet.services.packaging.service import PackagingService

_log = logging.getLogger("ramet.kubernetes")
_DIGEST = re.compile(r"[0-9a-f]{64}")  #: the name of a folder of a bundle, or of packages: what is in it never changes


class PodImages:
    """Images as pods have them, in one registry and on one base: the plain one, and others on top of it.

    `store` is whose images are found by their folders; without it none is.
    """

    def __init__(
        self,
        opening: Callable[[], AbstractAsyncContextManager[Opened]],
        kind: Kind = "llm",
        *,
        told: Told = no_progress,
    ) -> None:
        """`opening` is called each time that the registry is asked: nothing of it stays open."""
        self._opening, self._kind, self._told = opening, kind, told
        self.store: PackagingService | None = None
        self._gates: dict[str, asyncio.Lock] = {}
        self._made: dict[str, RuntimeImage] = {}
        self._of: dict[str, Image] = {}  #: all that were ever made, by what nodes call them
        self._known: dict[frozenset[str], Image] = {}  #: by the folders that it has, as mounts name them

    async def image(self, image: Image = PLAIN) -> RuntimeImage:
        """That image, on top of the runtime image. Raises what `runtime_image` and `image_on` do.

        Whoever asks after a failure tries again.
        """
        below = await self.image() if image.id else None
        async with self._gates.setdefault(image.id, asyncio.Lock()):
            if (found := self._made.get(image.id)) is None:
                async with self._opening() as at:
                    if below is not None:
                        found = await image_on(below, image, at.registry, told=self._told)
                    else:
                        found = await runtime_image(at.registry, at.base, self._kind, source=at.source, told=self._told)
                self._made[image.id] = found
                self._of.setdefault(found.reference, image)  # One without bundles is the plain one.
            return found

    async def again(self, image: PodImage) -> bool:
        """Push an image once more that a node could not pull, if its registry has lost it, or any part of it.

        False if it is all there, or was not pushed here; True for each who was given it before it was lost, and may now
        ask for it anew. Raises what `image` does.
        """
        lost = self._of.get(image.reference)
        if lost is None:
            return False
        if lost.id and (below := self._made.get(PLAIN.id)) is not None:
            await self.again(below)
        async with self._gates[lost.id]:
            if self._made.get(lost.id) is image:
                name = reference(image.reference.partition("/")[2])  # without the registry's
                async with self._opening() as at:
                    if await at.registry.digest(name) is not None:
                        return False
                _log.warning("image %s is not in its registry any more, and is pushed again", image.reference)
                del self._made[lost.id]
        await self.image(lost)
        return True

    async def having(self, mounts: Sequence[str]) -> ImageWithMounts | None:
        """An image of the store that has just those of these mounts that are folders of bundles and packages.

        None if there is no such image: as for a run that may see a part of one. Raises what `image` does.
        """
        wanted = frozenset(each for each in mounts if _DIGEST.fullmatch(Path(each).name))
        if not wanted or (image := await self._having(wanted)) is None:
            return None
        return ImageWithMounts(await self.image(image), _seen(image))

    async def _having(self, wanted: frozenset[str]) -> Image | None:
        if wanted not in self._known and self.store is not None:
            names = {Path(each).name for each in wanted}
            for info in await self.store.list_images():
                if names.issuperset(info.bundles):
                    with suppress(RametError):  # It is deleted just now, or nobody can be spawned from it.
                        image = await self.store.image(info.id)
                        self._known.setdefault(frozenset(_seen(image)), image)
        return self._known.get(wanted)


def _seen(image: Image) -> Mapping[str, str]:
    """Where a pod's image has each of its folders, by the path that mounts have it at."""
    return {str(folder.resolve()): f"/{place}" for place, folder in places(image).items()}
