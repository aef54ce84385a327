"""Which image a pod starts from: made and pushed when it is first asked for, and never twice at once."""

from __future__ import annotations

import asyncio

from ramet.services.contract import ImageStore
from ramet.services.packaging.publishing import Told, nobody
from ramet.services.packaging.registries import Opened
from ramet.services.packaging.runtime_files import Kind
from ramet.services.packaging.runtime_image import RuntimeImage, image_on, runtime_image


class PodImages:
    """The images of a store, each by its id as pods have it, in one registry and on one base."""

    def __init__(self, at: Opened, images: ImageStore, *, told: Told = nobody) -> None:
        """`at` stays open as long as this is in use."""
        self._at, self._images, self._told = at, images, told
        self._gates: dict[tuple[Kind, str], asyncio.Lock] = {}
        self._made: dict[tuple[Kind, str], RuntimeImage] = {}

    async def image(self, id: str, kind: Kind) -> RuntimeImage:
        """The image of that id, "" for the plain one, on the runtime image of a kind.

        Raises Unknown for an id that is none any more, and what `runtime_image` and `image_on` raise; whoever asks
        after a failure tries again.
        """
        image = await self._images.image(id)
        if id:
            below = await self.image("", kind)
        async with self._gates.setdefault((kind, id), asyncio.Lock()):
            if (found := self._made.get((kind, id))) is None:
                if id:
                    found = await image_on(below, image, self._at.registry, told=self._told)
                else:
                    at = self._at
                    found = await runtime_image(at.registry, at.base, kind, source=at.source, told=self._told)
                self._made[kind, id] = found
            return found
