"""The bundles and images of all kernels of one store. The records of the store decide what exists, for each kernel.

A kernel's own folder is a cache: a bundle that is not in it is copied from the store, and is checked like an upload. A
bundle's archive is stored in parts, which belong to one upload. The parts are written before the bundle is recorded,
and removed after the record. Meanwhile a draft names the owner of the parts, so that the parts of a lost kernel are
found.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import weakref
from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import aclosing
from functools import partial
from pathlib import Path
from typing import Final, Literal

import msgspec
from msgspec.structs import replace

from ramet.concurrency.clock import Clock
from ramet.concurrency.deadline import run_shielded
from ramet.concurrency.threads import in_thread
from ramet.core.errors import Aborted, Conflict, Damaged, Gone, Unknown
from ramet.core.outcome import ErrorInfo
from ramet.services.errors import InUse
from ramet.services.packaging.bundles.store import Bundle, Bundles
from ramet.services.packaging.catalog.documents import (
    Documents,
    KeptBundle,
    KeptImage,
    KeptJob,
    KernelEpoch,
    is_live,
    this_epoch,
)
from ramet.services.packaging.catalog.local import Catalogue, Elsewhere
from ramet.services.packaging.contract import BundleInfo, BundleLimits, BundleTooLarge, Job, OwnedBundle, OwnedJob
from ramet.services.packaging.images import ImageRecord
from ramet.services.problems import error_of
from ramet.store.contract import Store

PART: Final = "bundle_part"  #: `<draft>/<number>`: a piece of an archive
DRAFT: Final = "bundle_draft"
_FAILED: Final = 1_000  #: failed jobs that are remembered
PART_BYTES: Final = 1024 * 1024  #: the longest write for which an event of an agent may have to wait


class _Draft(msgspec.Struct, frozen=True, kw_only=True):
    by: KernelEpoch
    bundle: str
    parts: int


class SharedCatalogue(Catalogue):
    """The catalogue of all kernels of a store.

    A job belongs to the kernel that began it, and there is one at a time for each image. The job has failed when that
    kernel is lost.
    """

    fetches = True

    def __init__(self, folder: Path, local: Bundles, store: Store, limits: BundleLimits, clock: Clock) -> None:
        """Set `folder` and `local`: what this kernel has in its folder, which was its catalogue before the store."""
        super().__init__(folder, local)
        self._mark = folder / "shared"  #: this file exists once everything in the folder is recorded in the store
        self._store, self._limits, self._clock = store, limits, clock
        self._bundles = Documents(store, "bundle", KeptBundle, clock)
        self._images = Documents(store, "image", KeptImage, clock)
        self._jobs = Documents(store, "image_job", KeptJob, clock)
        self._cached_bundles: set[str] = set()  #: bundles that are here, and were recorded once
        self._locks: weakref.WeakValueDictionary[str, asyncio.Lock] = weakref.WeakValueDictionary()

    async def open(self) -> None:
        """Remove what is not used any more: in the store, what died kernels left, and in this kernel's folder."""
        await super().open()
        await self._adopt()
        for each in await self._store.list(DRAFT):
            draft = msgspec.json.decode(each.data, type=_Draft)
            if await is_live(self._store, draft.by):
                continue
            document = await self._bundles.find_stable(draft.bundle)
            with contextlib.suppress(Conflict):  # Another kernel continues it.
                if document is None or document.value.draft != each.key:
                    await self._drop_parts(each.key, draft.parts)
                await self._store.delete(DRAFT, each.key, expected=each.version)
        self._cached_bundles.update(each.info.id for each in await self._local.list())
        await self._remove_deleted()

    async def _adopt(self) -> None:
        """Record in the store the bundles and images that this kernel had before it used the store."""
        if self._mark.exists():
            return
        for each in await self._local.list():
            bundle = await in_thread(partial(self._local.load, each.info.id), name="ramet-bundle")
            for owner in each.owners:
                await self.keep(bundle, owner)
        for image in await super().images():
            await self._images.add(image.info.id, KeptImage(image=image))
        self._mark.touch()

    # ---- bundles

    async def keep(self, bundle: Bundle, owner: str) -> None:
        """Record a bundle of this kernel's folder for an owner; once, even if others do so concurrently.

        Raises BundleTooLarge if all bundles together exceed the quota; concurrent uploads at other kernels do not count
        yet. Raises Aborted if the same bundle was deleted meanwhile. Must not be cancelled: see `run_shielded`.
        """
        async with self._gate(bundle.id):
            if await self._bundles.find_stable(bundle.id) is None:
                try:
                    await self._store_bundle(bundle, owner)
                except BaseException:
                    await self._remove_local(bundle.id)
                    raise
            self._cached_bundles.add(bundle.id)
            await self._add_owner(bundle.id, owner)

    async def _add_owner(self, id: str, owner: str) -> None:
        """Record an owner of a bundle, which may have other owners already. Raises Aborted if it was deleted."""
        while True:
            document = await self._bundles.find_stable(id)
            if document is None:
                raise Aborted(f"bundle {id} was deleted while it was uploaded")
            if owner in document.value.owners:
                return
            with contextlib.suppress(Conflict):
                shared = replace(document.value, owners=(*document.value.owners, owner))
                await self._bundles.put(id, shared, expected=document.version)

    async def _store_bundle(self, bundle: Bundle, owner: str) -> None:
        charge = await in_thread(lambda: bundle.charge, name="ramet-bundle")
        total = charge + sum(each.effective_charge for each in await self._bundles.all())
        if total > self._limits.quota:
            raise BundleTooLarge("bytes of all bundles that are kept", size=total, limit=self._limits.quota)
        if not await self._is_local(bundle.id):
            raise Aborted(f"bundle {bundle.id} was deleted while it was uploaded")
        with await in_thread(lambda: self._local.pack(bundle), name="ramet-bundle") as archive:
            parts = -(-archive.seek(0, os.SEEK_END) // PART_BYTES)
            archive.seek(0)
            key = secrets.token_hex(16)
            await self._record_draft(key, bundle.id, parts)
            is_mine = False
            try:
                for number in range(parts):
                    await self._store.put(PART, f"{key}/{number}", archive.read(PART_BYTES))
                size, files = bundle.size, len(bundle.files)
                kept_bundle = KeptBundle(
                    id=bundle.id, size=size, files=files, draft=key, parts=parts, owners=(owner,), charge=charge
                )
                is_mine = await self._bundles.add(bundle.id, kept_bundle)
            finally:
                if not is_mine:
                    await self._drop_parts(key, parts)
                await self._store.delete(DRAFT, key)

    async def bring(self, ids: Iterable[str]) -> None:
        """Copy bundles into this kernel's folder, except those that are not recorded.

        Raises Damaged, BundleTooLarge.
        """
        for id in ids:
            async with self._gate(id):
                if not await self._is_local(id):
                    with contextlib.suppress(Unknown):
                        await self._fetch(id)

    async def _fetch(self, id: str) -> None:
        try:
            async with aclosing(self._archive(id)) as archive:
                await self._local.receive(id, archive)
        except BundleTooLarge:  # Some bundles here may be deleted in the store.
            if not await self._remove_deleted(but=id):
                raise
            async with aclosing(self._archive(id)) as archive:
                await self._local.receive(id, archive)
        self._cached_bundles.add(id)

    async def _archive(self, id: str) -> AsyncGenerator[bytes]:
        bundle = await self._bundles.get(id)
        if bundle is None:
            raise Unknown("bundle", id)
        for number in range(bundle.parts):
            part = await self._store.get(PART, f"{bundle.draft}/{number}")
            if part is None:
                current = await self._bundles.get(id)
                if current is None or current.draft != bundle.draft:  # It was deleted meanwhile.
                    raise Unknown("bundle", id)
                raise Damaged("the bundle", id, f"part {number + 1} of {bundle.parts} is not in the store")
            yield part.data

    async def bundle(self, id: str) -> OwnedBundle | None:
        """Return the bundle of that id, None if there is none."""
        document = await self._bundles.get(id)
        return _owned_bundle_of(document) if document is not None else None

    async def bundles(self) -> Sequence[OwnedBundle]:
        """Return all stored bundles, by their ids."""
        return [_owned_bundle_of(each) for each in await self._bundles.all()]

    async def is_for(self, id: str, asker: str) -> bool:
        """Return whether a bundle is for an asker.

        A bundle that a kernel is about to remove may still stay, so wait for that.
        """
        document = await self._bundles.find_stable(id)
        return document is not None and _owned_bundle_of(document.value).is_for(asker)

    async def delete_bundle(self, id: str, other_users: Elsewhere) -> None:
        """Delete a bundle that no image, no job of a living kernel, and no user that `other_users` returns needs.

        Raises Unknown, InUse. Must not be cancelled: see `run_shielded`.
        """
        async with self._gate(id):
            async with self._bundles.removing("bundle", id) as bundle:
                images = [each.image.info.id for each in await self._images.all() if id in each.image.bundles]
                if users := (*images, *await self._makers(id), *await other_users()):
                    raise InUse("bundle", id, users)
                await self._record_draft(bundle.draft, id, bundle.parts)
            await self._drop_parts(bundle.draft, bundle.parts)
            await self._store.delete(DRAFT, bundle.draft)
            await self._remove_local(id)

    # ---- images

    async def image(self, id: str) -> ImageRecord | None:
        """Return the image of that id, None if there is none."""
        kept_image = await self._images.get(id)
        return kept_image.image if kept_image is not None else None

    async def images(self) -> Sequence[ImageRecord]:
        """Return every image, the oldest first."""
        all_images = [each.image for each in await self._images.all()]
        return sorted(all_images, key=lambda each: (each.info.created_at, each.info.id))

    async def delete_image(self, id: str, other_users: Elsewhere) -> None:
        """Delete an image that no job of a living kernel, and no user that `other_users` returns needs.

        Raises Unknown, InUse. Must not be cancelled: see `run_shielded`.
        """
        async with self._images.removing("image", id):
            if users := (*await self._makers(id), *await other_users()):
                raise InUse("image", id, users)

    # ---- jobs

    async def begin(self, record: ImageRecord) -> Job | None:
        """Record that this kernel makes an image, unless another one does. See `Catalogue.begin`."""
        id, base = record.info.id, record.info.base
        while True:
            job = await self._jobs.find_stable(id)
            if job is not None and await self._is_at_work(job.value, is_elsewhere=True):
                return job.value.as_job
            with contextlib.suppress(Conflict):
                await self._put_job(record, "queued", expected=job.version if job is not None else 0)
                break
        # From now on its parts cannot be deleted; until now they could.
        kind, missing_id = "image", "" if not base or await self._images.get(base) is not None else base
        for each in record.bundles:
            if not missing_id and await self._bundles.get(each) is None:
                kind, missing_id = "bundle", each
        if missing_id:
            await self._jobs.delete(id)
            raise Unknown(kind, missing_id)
        return None

    async def record_job(
        self, record: ImageRecord, state: Literal["running", "failed"], error: ErrorInfo | None = None
    ) -> None:
        """Record the state of a job. Only the newest failures are remembered."""
        await self._put_job(record, state, error=error)
        if state == "failed":
            failed_jobs = [each for each in await self._jobs.all() if each.state == "failed"]
            for each in sorted(failed_jobs, key=lambda each: each.at)[:-_FAILED]:
                await self._jobs.delete(each.id)

    async def record_done(self, record: ImageRecord) -> None:
        """Record the finished image, and delete the job."""
        await self._images.add(record.info.id, KeptImage(image=record))
        await self._jobs.delete(record.info.id)

    async def job(self, id: str) -> OwnedJob | None:
        """Return the state of a job of any kernel; None if no job is recorded, or it failed long ago."""
        document = await self._jobs.get(id)  # First: the job is deleted after the image is recorded.
        if (done := await super().job(id)) is not None:
            return done
        if document is None:
            return None
        if document.state == "failed" or await self._is_at_work(document):
            return OwnedJob(document.as_job, document.owner)
        reason = f"kernel {document.by.kernel!r} was lost while it made this image; request the image again"
        return OwnedJob(Job(id=id, state="failed", error=error_of(Gone(reason))), document.owner)

    async def _makers(self, id: str) -> Sequence[str]:
        """Return the images that living kernels are making from a bundle, or on top of an image."""
        jobs = [each for each in await self._jobs.all() if id in each.needs]
        return [each.id for each in jobs if await self._is_at_work(each)]

    async def _is_at_work(self, job: KeptJob, *, is_elsewhere: bool = False) -> bool:
        if job.state == "failed" or (is_elsewhere and job.by == await this_epoch(self._store)):
            return False
        return await is_live(self._store, job.by)

    async def _put_job(
        self,
        record: ImageRecord,
        state: Literal["queued", "running", "failed"],
        *,
        error: ErrorInfo | None = None,
        expected: int | None = None,
    ) -> None:
        by, now = await this_epoch(self._store), self._clock.now()
        needs = tuple(filter(None, (*record.bundles, record.info.base)))
        id, owner = record.info.id, record.owner
        job = KeptJob(id=id, by=by, needs=needs, owner=owner, state=state, at=now, error=error)
        await self._jobs.put(id, job, expected=expected)

    # ---- local copies

    def _gate(self, id: str) -> asyncio.Lock:
        return self._locks.setdefault(id, asyncio.Lock())

    async def _is_local(self, id: str) -> bool:
        return await in_thread(lambda: self._local.summary(id) is not None, name="ramet-bundle")

    async def _remove_deleted(self, but: str = "") -> bool:
        """Remove bundles from this kernel's folder that were deleted at another kernel.

        Return whether there were any.
        """
        removed_ids = self._cached_bundles - {each.info.id for each in await self.bundles()} - {but}
        for id in removed_ids:
            async with self._gate(id):
                if await self._bundles.find_stable(id) is None:  # It may have been uploaded again.
                    await self._remove_local(id)
        return bool(removed_ids)

    async def _remove_local(self, id: str) -> None:
        self._cached_bundles.discard(id)
        with contextlib.suppress(Unknown):
            await run_shielded(in_thread(lambda: self._local.delete(id), name="ramet-bundle"))

    # ---- parts

    async def _record_draft(self, key: str, bundle: str, parts: int) -> None:
        draft = _Draft(by=await this_epoch(self._store), bundle=bundle, parts=parts)
        await self._store.put(DRAFT, key, msgspec.json.encode(draft))

    async def _drop_parts(self, key: str, parts: int) -> None:
        for number in range(parts):
            await self._store.delete(PART, f"{key}/{number}")


def _owned_bundle_of(bundle: KeptBundle) -> OwnedBundle:
    return OwnedBundle(BundleInfo(id=bundle.id, size=bundle.size, files=bundle.files), bundle.owners)
