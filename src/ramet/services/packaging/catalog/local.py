"""The catalogue of bundles, images and jobs: of one kernel, in its own folder, or of all kernels that share a store."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from pathlib import Path
from typing import Protocol

from ramet.concurrency.threads import in_thread
from ramet.core.outcome import ErrorInfo
from ramet.services.errors import InUse
from ramet.services.packaging.bundles.store import Bundle, Bundles
from ramet.services.packaging.contract import Job, OwnedBundle, OwnedJob
from ramet.services.packaging.images import ImageRecord, Records

Elsewhere = Callable[[], Awaitable[Sequence[str]]]


async def no_other_users() -> Sequence[str]:
    """Return no users: there are no agents of other kernels."""
    return ()


class Catalogue(Protocol):
    """The recorded bundles, images and jobs. Methods that change them must not be cancelled: see `run_shielded`."""

    fetches: bool  #: `bring` copies recorded bundles that are not in this kernel's folder

    async def open(self) -> None:
        """Remove what is not used any more."""

    async def keep(self, bundle: Bundle, owner: str) -> None:
        """Record a bundle of this kernel's folder for an owner. Raises BundleTooLarge, Aborted."""

    async def bring(self, ids: Iterable[str]) -> None:
        """Copy bundles into this kernel's folder, except those that are not recorded.

        Raises Damaged, BundleTooLarge.
        """

    async def bundle(self, id: str) -> OwnedBundle | None:
        """Return the bundle of that id, None if there is none."""

    async def bundles(self) -> Sequence[OwnedBundle]:
        """Return all stored bundles, by their ids."""

    async def is_for(self, id: str, asker: str) -> bool:
        """Return whether an asker may use an image with this bundle: the bundle reveals nothing foreign."""

    async def delete_bundle(self, id: str, other_users: Elsewhere) -> None:
        """Delete a bundle that no image needs, and for which `other_users` returns no users. Raises Unknown, InUse."""

    async def image(self, id: str) -> ImageRecord | None:
        """Return the image of that id, None if there is none. Raises Damaged."""

    async def images(self) -> Sequence[ImageRecord]:
        """Return every image, the oldest first."""

    async def delete_image(self, id: str, other_users: Elsewhere) -> None:
        """Delete an image for which `other_users` returns no users. Raises Unknown, InUse."""

    async def begin(self, record: ImageRecord) -> Job | None:
        """Record that this kernel makes an image, and return None.

        If another kernel makes the image already, return its job. Raises Unknown for a part of the image that does not
        exist any more.
        """

    async def record_running(self, record: ImageRecord) -> None:
        """Record that the job is running."""

    async def record_done(self, record: ImageRecord) -> None:
        """Record the finished image."""

    async def record_failed(self, record: ImageRecord, error: ErrorInfo) -> None:
        """Record that the job failed, and why."""

    async def job(self, id: str) -> OwnedJob | None:
        """Return the recorded state of a job."""


class OwnCatalogue:
    """The catalogue of one kernel, which has everything in its folder."""

    fetches = False

    def __init__(self, folder: Path, bundles: Bundles) -> None:
        self._bundles = bundles
        self._records = Records(folder / "images")
        self.mark = folder / "shared"  #: this file exists once everything is recorded in a store

    async def open(self) -> None:
        """Create the folder of images, and remove the unfinished files of an earlier process."""
        await in_thread(self._records.open, name="ramet-image")

    async def keep(self, bundle: Bundle, owner: str) -> None:
        """Do nothing: a bundle in the folder is recorded."""

    async def bring(self, ids: Iterable[str]) -> None:
        """Do nothing: there is no other source of bundles."""

    async def bundle(self, id: str) -> OwnedBundle | None:
        """Return the bundle of that id, None if there is none."""
        return await self._bundles.find_owned_bundle(id)

    async def bundles(self) -> Sequence[OwnedBundle]:
        """Return all stored bundles, by their ids."""
        return await self._bundles.list()

    async def is_for(self, id: str, asker: str) -> bool:
        """Return whether a bundle is for an asker. A missing bundle reveals nothing, and its image is damaged."""
        summary = await self._bundles.find_owned_bundle(id)
        return summary is None or summary.is_for(asker)

    async def delete_bundle(self, id: str, other_users: Elsewhere) -> None:
        """Delete a bundle that no image contains; `other_users` is not used. Raises Unknown, InUse."""
        if images := await in_thread(lambda: self._records.of_bundle(id), name="ramet-image"):
            raise InUse("bundle", id, images)
        await in_thread(lambda: self._bundles.delete(id), name="ramet-bundle")

    async def image(self, id: str) -> ImageRecord | None:
        """Return the image of that id, None if there is none. Raises Damaged."""
        return await in_thread(lambda: self._records.find(id), name="ramet-image") if id else None

    async def images(self) -> Sequence[ImageRecord]:
        """Return every image, the oldest first."""
        return await in_thread(self._records.all, name="ramet-images")

    async def delete_image(self, id: str, other_users: Elsewhere) -> None:
        """Delete an image; `other_users` is not used. Raises Unknown."""
        await in_thread(lambda: self._records.delete(id), name="ramet-image")

    async def begin(self, record: ImageRecord) -> None:
        """Do nothing: no other kernel makes the image."""

    async def record_running(self, record: ImageRecord) -> None:
        """Do nothing: no other kernel reads the job."""

    async def record_done(self, record: ImageRecord) -> None:
        """Record the finished image."""
        await in_thread(lambda: self._records.put(record), name="ramet-image")

    async def record_failed(self, record: ImageRecord, error: ErrorInfo) -> None:
        """Do nothing: a failed job does not survive this process."""

    async def job(self, id: str) -> OwnedJob | None:
        """Return the job of a finished image; None if there is no image."""
        image = await self.image(id)
        return OwnedJob(Job(id=id, state="done", image=id), image.owner) if image is not None else None
