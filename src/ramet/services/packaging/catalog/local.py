"""Which bundles, images and jobs there are: those of one kernel, in its own folder, or of all that share a store."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from pathlib import Path
from typing import Protocol

from ramet.concurrency.threads import in_thread
from ramet.core.outcome import ErrorInfo
from ramet.services.errors import InUse
from ramet.services.packaging.bundles.store import Bundle, Bundles
from ramet.services.packaging.contract import Job, OwnedBundle, OwnedJob
from ramet.services.packaging.images import Recorded, Records

Elsewhere = Callable[[], Awaitable[Sequence[str]]]


async def no_other_users() -> Sequence[str]:
    """No agents of other kernels."""
    return ()


class Catalogue(Protocol):
    """What is on record. What changes it is not to be cancelled: see `to_its_end`."""

    fetches: bool  #: what is on record and not in this kernel's folder comes from elsewhere, by `bring`

    async def open(self) -> None:
        """Clear away what is of no use any more."""

    async def keep(self, bundle: Bundle, owner: str) -> None:
        """Have a bundle on record that is in this kernel's folder, as this owner's. Raises BundleTooLarge, Aborted."""

    async def bring(self, ids: Iterable[str]) -> None:
        """Have bundles here; those that are not on record are left out. Raises Damaged, BundleTooLarge."""

    async def bundle(self, id: str) -> OwnedBundle | None:
        """The bundle of that id, None if there is none."""

    async def bundles(self) -> Sequence[OwnedBundle]:
        """All that are kept, by their ids."""

    async def is_for(self, id: str, asker: str) -> bool:
        """Whether an image shows an asker nothing by this bundle that is not for the asker."""

    async def delete_bundle(self, id: str, elsewhere: Elsewhere) -> None:
        """Remove one that no image needs, and nobody that `elsewhere` tells of. Raises Unknown, InUse."""

    async def image(self, id: str) -> Recorded | None:
        """The image of that id, None if there is none. Raises Damaged."""

    async def images(self) -> Sequence[Recorded]:
        """Every image, the oldest first."""

    async def delete_image(self, id: str, elsewhere: Elsewhere) -> None:
        """Forget one that nobody needs that `elsewhere` tells of. Raises Unknown, InUse."""

    async def begin(self, recorded: Recorded) -> Job | None:
        """Have it on record that this kernel makes an image; None then. Else the job of the other kernel that does.

        Raises Unknown for a part of it that is not there any more.
        """

    async def running(self, recorded: Recorded) -> None:
        """It is this one's turn."""

    async def done(self, recorded: Recorded) -> None:
        """The image is there."""

    async def failed(self, recorded: Recorded, error: ErrorInfo) -> None:
        """There is none, and why."""

    async def job(self, id: str) -> OwnedJob | None:
        """How far it is, as far as is on record."""


class OwnCatalogue:
    """Of one kernel, which has all there is in its folder."""

    fetches = False

    def __init__(self, folder: Path, bundles: Bundles) -> None:
        self._bundles = bundles
        self._records = Records(folder / "images")
        self.mark = folder / "shared"  #: there once all of it is on record in a store

    async def open(self) -> None:
        """Make the folder of images, and clear away what an earlier process did not finish."""
        await in_thread(self._records.open, name="ramet-image")

    async def keep(self, bundle: Bundle, owner: str) -> None:
        """It is kept by being there."""

    async def bring(self, ids: Iterable[str]) -> None:
        """What is not here is nowhere."""

    async def bundle(self, id: str) -> OwnedBundle | None:
        """The bundle of that id, None if there is none."""
        return await self._bundles.owned(id)

    async def bundles(self) -> Sequence[OwnedBundle]:
        """All that are kept, by their ids."""
        return await self._bundles.list()

    async def is_for(self, id: str, asker: str) -> bool:
        """As the contract says: what is not there shows nothing, and its image is damaged."""
        found = await self._bundles.owned(id)
        return found is None or found.is_for(asker)

    async def delete_bundle(self, id: str, elsewhere: Elsewhere) -> None:
        """Remove one that no image has; there is nobody elsewhere. Raises Unknown, InUse."""
        if images := await in_thread(lambda: self._records.of_bundle(id), name="ramet-image"):
            raise InUse("bundle", id, images)
        await in_thread(lambda: self._bundles.delete(id), name="ramet-bundle")

    async def image(self, id: str) -> Recorded | None:
        """The image of that id, None if there is none. Raises Damaged."""
        return await in_thread(lambda: self._records.find(id), name="ramet-image") if id else None

    async def images(self) -> Sequence[Recorded]:
        """Every image, the oldest first."""
        return await in_thread(self._records.all, name="ramet-images")

    async def delete_image(self, id: str, elsewhere: Elsewhere) -> None:
        """Forget it; there is nobody elsewhere. Raises Unknown."""
        await in_thread(lambda: self._records.delete(id), name="ramet-image")

    async def begin(self, recorded: Recorded) -> None:
        """Nobody else makes it."""

    async def running(self, recorded: Recorded) -> None:
        """Nobody else asks."""

    async def done(self, recorded: Recorded) -> None:
        """The image is there."""
        await in_thread(lambda: self._records.put(recorded), name="ramet-image")

    async def failed(self, recorded: Recorded, error: ErrorInfo) -> None:
        """It does not outlast this process."""

    async def job(self, id: str) -> OwnedJob | None:
        """One that is done."""
        made = await self.image(id)
        return OwnedJob(Job(id=id, state="done", image=id), made.owner) if made is not None else None
