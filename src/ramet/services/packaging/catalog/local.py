"""The catalogue of bundles, images and jobs of one kernel: what is in its folder, and a file for each image."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable, Sequence
from pathlib import Path
from typing import Literal

import msgspec

from ramet.concurrency.threads import in_thread
from ramet.core.errors import Damaged, Unknown
from ramet.core.outcome import ErrorInfo
from ramet.disk.regular_files import read_regular
from ramet.services.errors import InUse
from ramet.services.packaging import atomic_dirs
from ramet.services.packaging.bundles.store import Bundle, Bundles
from ramet.services.packaging.contract import Job, OwnedBundle, OwnedJob
from ramet.services.packaging.images import ImageRecord

Elsewhere = Callable[[], Awaitable[Sequence[str]]]
_ID = re.compile(r"[0-9a-f]{64}\Z")
_MOST = 1 << 26  #: bytes of the record of an image


async def no_other_users() -> Sequence[str]:
    """Return no users: there are no agents of other kernels."""
    return ()


class Catalogue:
    """The recorded bundles, images and jobs. Methods that change them must not be cancelled: see `run_shielded`.

    A kernel without other kernels needs no records of bundles and of running jobs: its folder and its memory have them.
    `SharedCatalogue` is the catalogue of several kernels.
    """

    fetches = False  #: `bring` copies recorded bundles that are not in this kernel's folder

    def __init__(self, folder: Path, bundles: Bundles) -> None:
        self._local, self._folder = bundles, folder / "images"  #: an image has a file `<id>.json`

    async def open(self) -> None:
        """Create the folder of images, and remove what is not used any more."""
        await in_thread(lambda: atomic_dirs.open_place(self._folder), name="ramet-image")

    # ---- bundles

    async def keep(self, bundle: Bundle, owner: str) -> None:
        """Record a bundle of this kernel's folder for an owner. Raises BundleTooLarge, Aborted."""

    async def bring(self, ids: Iterable[str]) -> None:
        """Copy bundles into this kernel's folder, except those that are not recorded.

        Raises Damaged, BundleTooLarge.
        """

    async def bundle(self, id: str) -> OwnedBundle | None:
        """Return the bundle of that id, None if there is none."""
        return await self._local.find_owned_bundle(id)

    async def bundles(self) -> Sequence[OwnedBundle]:
        """Return all stored bundles, by their ids."""
        return await self._local.list()

    async def is_for(self, id: str, asker: str) -> bool:
        """Return whether an asker may use an image with this bundle: the bundle reveals nothing foreign.

        A missing bundle reveals nothing, and its image is damaged.
        """
        bundle = await self.bundle(id)
        return bundle is None or bundle.is_for(asker)

    async def delete_bundle(self, id: str, other_users: Elsewhere) -> None:
        """Delete a bundle that no image needs, and for which `other_users` returns no users. Raises Unknown, InUse."""
        if images := sorted(each.info.id for each in await self.images() if id in each.bundles):
            raise InUse("bundle", id, images)
        await in_thread(lambda: self._local.delete(id), name="ramet-bundle")

    # ---- images

    async def image(self, id: str) -> ImageRecord | None:
        """Return the image of that id, None if there is none. Raises Damaged."""
        return await in_thread(lambda: self._find(id), name="ramet-image") if _ID.match(id) else None

    async def images(self) -> Sequence[ImageRecord]:
        """Return every image, the oldest first. Raises Damaged."""
        return await in_thread(self._all, name="ramet-images")

    async def delete_image(self, id: str, other_users: Elsewhere) -> None:
        """Delete an image for which `other_users` returns no users. Raises Unknown, InUse."""
        try:
            if not _ID.match(id):
                raise FileNotFoundError
            await in_thread(self._file(id).unlink, name="ramet-image")
        except FileNotFoundError:
            raise Unknown("image", id) from None

    # ---- jobs

    async def begin(self, record: ImageRecord) -> Job | None:
        """Record that this kernel makes an image, and return None.

        If another kernel makes the image already, return its job. Raises Unknown for a part of the image that does not
        exist any more.
        """
        return None

    async def record_job(
        self, record: ImageRecord, state: Literal["running", "failed"], error: ErrorInfo | None = None
    ) -> None:
        """Record that the making of an image has begun, or that it failed, and why."""

    async def record_done(self, record: ImageRecord) -> None:
        """Record the finished image. A recorded one of the same id has the same bundles and owner, and is replaced."""
        file, data = self._file(record.info.id), msgspec.to_builtins(record)
        await in_thread(lambda: atomic_dirs.write_json(file, data), name="ramet-image")

    async def job(self, id: str) -> OwnedJob | None:
        """Return the recorded state of a job; None if no job is recorded."""
        image = await self.image(id)
        return OwnedJob(Job(id=id, state="done", image=id), image.owner) if image is not None else None

    # ---- in a thread

    def _find(self, id: str) -> ImageRecord | None:
        file = self._file(id)
        try:
            return msgspec.json.decode(read_regular(file, limit=_MOST), type=ImageRecord)
        except FileNotFoundError:
            return None
        except msgspec.DecodeError as problem:
            raise Damaged("the image", file, str(problem)) from None

    def _all(self) -> Sequence[ImageRecord]:
        ids = [each.stem for each in self._folder.glob("*.json") if _ID.match(each.stem)]
        records = filter(None, map(self._find, ids))
        return sorted(records, key=lambda each: (each.info.created_at, each.info.id))

    def _file(self, id: str) -> Path:
        return self._folder / f"{id}.json"
