"""The jobs that make images, for all kernels of one store: one job at a time for each image, visible everywhere."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from datetime import datetime
from typing import Final, Literal

from ramet.concurrency.clock import Clock
from ramet.core.errors import Conflict, Gone, Unknown
from ramet.core.outcome import ErrorInfo
from ramet.services.packaging.catalog.documents import (
    Documents,
    KeptBundle,
    KeptImage,
    KernelEpoch,
    KernelEpochs,
    SharedDocument,
)
from ramet.services.packaging.contract import OPERATOR, Job, OwnedJob
from ramet.services.packaging.images import ImageRecord
from ramet.services.problems import error_of
from ramet.store.contract import Store

_FAILED: Final = 1_000  #: failed jobs that are remembered


class KeptJob(SharedDocument, frozen=True, kw_only=True):
    """The making of an image: its inputs, and the kernel that makes it; or its failure."""

    id: str
    by: KernelEpoch
    needs: tuple[str, ...]  #: ids of the bundles, and of the base
    owner: str = OPERATOR  #: who requested it
    state: Literal["queued", "running", "failed"] = "queued"
    at: datetime
    error: ErrorInfo | None = None


class SharedJobs:
    """The jobs of one store. A job belongs to the kernel that began it: the job has failed when that kernel is lost."""

    def __init__(
        self,
        store: Store,
        workers: KernelEpochs,
        bundles: Documents[KeptBundle],
        images: Documents[KeptImage],
        clock: Clock,
    ) -> None:
        self._workers, self._bundles, self._images, self._clock = workers, bundles, images, clock
        self._jobs = Documents(store, workers, "image_job", KeptJob, clock)

    async def begin(self, record: ImageRecord) -> Job | None:
        """Record that this kernel makes an image, and return None.

        If another kernel makes the image already, return its job. Raises Unknown for a part of the image that does not
        exist any more.
        """
        id, base = record.info.id, record.info.base
        while True:
            job = await self._jobs.find_stable(id)
            if job is not None and await self._is_at_work(job.value, is_elsewhere=True):
                return _job_of(job.value)
            with contextlib.suppress(Conflict):
                await self._put(record, "queued", expected=job.version if job is not None else 0)
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

    async def record_running(self, record: ImageRecord) -> None:
        """Record that the job is running."""
        await self._put(record, "running")

    async def record_done(self, record: ImageRecord) -> None:
        """Record the finished image, and delete the job."""
        await self._images.add(record.info.id, KeptImage(image=record))
        await self._jobs.delete(record.info.id)

    async def record_failed(self, record: ImageRecord, error: ErrorInfo) -> None:
        """Record that the job failed, and why. Only the newest failures are remembered."""
        await self._put(record, "failed", error=error)
        failed_jobs = sorted(
            (each for each in await self._jobs.all() if each.state == "failed"), key=lambda each: each.at
        )
        for each in failed_jobs[:-_FAILED]:
            await self._jobs.delete(each.id)

    async def job(self, id: str) -> OwnedJob | None:
        """Return the state of a job of any kernel; None if no job is recorded, or it failed long ago."""
        document = await self._jobs.get(id)  # First: the job is deleted after the image is recorded.
        if (image := await self._images.get(id)) is not None:
            return OwnedJob(Job(id=id, state="done", image=id), image.image.owner)
        if document is None:
            return None
        if document.state == "failed" or await self._is_at_work(document):
            return OwnedJob(_job_of(document), document.owner)
        reason = f"kernel {document.by.kernel!r} was lost while it made this image; request the image again"
        return OwnedJob(Job(id=id, state="failed", error=error_of(Gone(reason))), document.owner)

    async def makers(self, id: str) -> Sequence[str]:
        """Return the images that living kernels are making from a bundle, or on top of an image."""
        jobs = [each for each in await self._jobs.all() if id in each.needs]
        return [each.id for each in jobs if await self._is_at_work(each)]

    async def _is_at_work(self, job: KeptJob, *, is_elsewhere: bool = False) -> bool:
        if job.state == "failed" or (is_elsewhere and job.by == await self._workers.me()):
            return False
        return await self._workers.is_live(job.by)

    async def _put(
        self,
        record: ImageRecord,
        state: Literal["queued", "running", "failed"],
        *,
        error: ErrorInfo | None = None,
        expected: int | None = None,
    ) -> None:
        by, now = await self._workers.me(), self._clock.now()
        needs = tuple(filter(None, (*record.bundles, record.info.base)))
        id, owner = record.info.id, record.owner
        job = KeptJob(id=id, by=by, needs=needs, owner=owner, state=state, at=now, error=error)
        await self._jobs.put(job.id, job, expected=expected)


def _job_of(job: KeptJob) -> Job:
    return Job(id=job.id, state=job.state, error=job.error)
