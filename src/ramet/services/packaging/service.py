"""PackagingService: users upload bundles, the service builds images from them, and agents are spawned from images."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import Final, Self, TypeVar

from ramet.concurrency.clock import Clock, SystemClock
from ramet.concurrency.deadline import run_shielded
from ramet.concurrency.slots import Slots
from ramet.concurrency.threads import in_thread
from ramet.core.errors import InvalidValue, RametError, SpawnRefused, Unknown
from ramet.core.outcome import ErrorInfo
from ramet.services.contract import PLAIN, Image, LoadableBundle
from ramet.services.errors import InUse
from ramet.services.packaging.build import ImageBuilder, parts_of
from ramet.services.packaging.bundles.requirements import InstallFailed, Installs, Packages
from ramet.services.packaging.bundles.store import Bundles
from ramet.services.packaging.catalog.local import Catalogue, Elsewhere, no_other_users
from ramet.services.packaging.catalog.shared import SharedCatalogue
from ramet.services.packaging.contract import OPERATOR, BundleInfo, BundleLimits, ImageInfo, Job, OwnedJob
from ramet.services.packaging.images import ImageRecord, image_id
from ramet.services.problems import error_of
from ramet.store.contract import Store
from ramet.store.sqlite.lock import KernelLock

T = TypeVar("T")
MAX_IMAGES: Final = 1_000  #: recorded images and images being made
_MAX_CONCURRENT = 2  #: images that are made concurrently, and comparisons of bundles
_FAILED = 1_000  #: failed jobs that are remembered

_log = logging.getLogger(__name__)


class PackagingService:
    """The bundles and images of a folder, which the service owns between `open` and `close`, or in `async with`.

    An asker is the id of a team, or the operator. The operator may use everything. A team may use what the team or the
    operator uploaded. A team may also use images that the team or the operator made from such bundles. Everything else
    is Unknown to the team.

    Bundles and images survive a restart. A running job does not: request its image again. With a `store`, all kernels
    of the store share the bundles and images, and the folder is a cache.
    """

    def __init__(
        self,
        folder: Path,
        *,
        limits: BundleLimits | None = None,
        installs: Installs | None = None,
        push: Callable[[Image], Awaitable[object]] | None = None,
        clock: Clock | None = None,
        store: Store | None = None,
    ) -> None:
        """Refuse bundles that need other packages, unless `installs` is given. Other kernels may share `store`.

        `push` makes an image available to other machines. If `push` raises, the job fails with that error.
        """
        self._folder, self._clock = folder.absolute(), clock or SystemClock()
        limits = limits or BundleLimits()
        self.upload_bytes = limits.upload  #: of one upload at most
        self._bundles = Bundles(self._folder / "bundles", limits)
        self._packages = Packages(self._folder / "packages", installs, self._clock)
        self._builder = ImageBuilder(self._bundles, self._packages, self._clock)
        self._push = push
        self._catalogue = (
            Catalogue(self._folder, self._bundles)
            if store is None
            else SharedCatalogue(self._folder, self._bundles, store, limits, self._clock)
        )
        self._lock: KernelLock | None = None
        self._slots = Slots(_MAX_CONCURRENT)
        self._comparisons = Slots(_MAX_CONCURRENT)
        self._jobs: dict[str, OwnedJob] = {}  #: jobs that are not done; a job that is done is an image
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._parts_in_use: dict[str, frozenset[str]] = {}  #: by image: its parts, and the image itself
        self._pending_needs: Counter[str] = Counter()  #: the ids that pending requests need
        self._deleting_ids: set[str] = set()  #: ids that are being deleted
        self._begin_lock = asyncio.Lock()

    async def open(self) -> Self:
        """Lock the folder, and remove the unfinished work of an earlier process. Raises StoreInUse, StoreFailed."""
        await run_shielded(in_thread(self._open, name="ramet-packaging"))
        try:
            await run_shielded(self._catalogue.open())
        except BaseException:
            await self.close()
            raise
        return self

    async def close(self) -> None:
        """Cancel the jobs and everything that they started, and wait until all have ended. Idempotent."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        self._tasks.clear()  # A task that had not begun did not remove itself.
        self._jobs.clear()
        self._parts_in_use.clear()
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def upload(self, data: bytes | AsyncIterator[bytes], owner: str = OPERATOR) -> BundleInfo:
        """Store the content of a tar, plain or gzip-compressed.

        The id is the digest of the files: same files, same bundle. Nothing is written before everything was checked.
        Links of any kind and special files are refused. Paths are refused if they lead out of the bundle, occur twice,
        or differ only by case or Unicode form. Of a file's mode only "executable" is kept. Raises InvalidValue, which
        names the member, and BundleTooLarge.
        """
        bundle = await self._bundles.upload(data, owner)
        await run_shielded(self._catalogue.keep(bundle, owner))
        return bundle.info

    async def bundle(self, id: str, asker: str = OPERATOR) -> BundleInfo:
        """Return the bundle of that id. Raises Unknown."""
        owned = await self._catalogue.bundle(id)
        if owned is None or not owned.is_for(asker):
            raise Unknown("bundle", id)
        return owned.info

    async def list_bundles(self, asker: str = OPERATOR) -> Sequence[BundleInfo]:
        """Return all bundles that an asker may use, by their ids."""
        return [each.info for each in await self._catalogue.bundles() if each.is_for(asker)]

    async def create_image(self, base: str = "", bundles: Sequence[str] = (), asker: str = OPERATOR) -> Job:
        """Start the making of an image of bundles, on top of another.

        If the asker has the image already, the job is done. Some requests are refused before any work begins: unknown
        ids (Unknown), bundles that hide parts of each other (BundlesClash), and invalid or forbidden requirements
        (InvalidValue).
        """
        parts_of(base, bundles, await self._find_image(base, asker))
        if asker != OPERATOR:  # First: a request for a foreign bundle must not protect it from deletion.
            for each in bundles:
                await self.bundle(each, asker)
        with self._protect(base, *bundles):
            parts = parts_of(base, bundles, await self._catalogue.image(base))
            return await self._create(base, bundles, parts, asker)

    async def _create(self, base: str, bundles: Sequence[str], parts: tuple[str, ...], asker: str) -> Job:
        """Start the making of an image of these parts, unless it exists."""
        id = image_id(parts, asker)
        with self._protect(id, *parts):
            image = await self._catalogue.image(id)
            if image is not None and (self._catalogue.fetches or not await self._missing(image)):
                return Job(id=id, state="done", image=id)
            count = len(await self._catalogue.images()) + len(self._tasks)
            if image is None and id not in self._tasks and count >= MAX_IMAGES:
                accepted = f"at most {MAX_IMAGES} recorded images; the operator deletes unused images"
                raise InvalidValue("images", count, accepted)
            await self._catalogue.bring(parts)
            record = await self._run_comparison(lambda: self._builder.plan(base, bundles, parts, asker))
            return await run_shielded(self._begin(record))

    async def job(self, id: str, asker: str = OPERATOR) -> Job:
        """Return the state of the making of an image. Raises Unknown, also for a job that failed long ago.

        A team sees a job of the operator once the image exists, if the team may use the image.
        """
        result = self._jobs[id] if id in self._tasks else await self._catalogue.job(id) or self._jobs.get(id)
        if result is None or not (
            asker in (OPERATOR, result.owner)
            or (result.job.state == "done" and await self._find_image(id, asker) is not None)
        ):
            raise Unknown("job", id)
        return result.job

    def list_jobs(self) -> Sequence[Job]:
        """Return the queued and running jobs of this kernel and its recently failed jobs, the oldest first."""
        return tuple(each.job for each in self._jobs.values())

    async def image(self, id: str, asker: str = OPERATOR) -> Image:
        """Return the image of that id; "" is the plain one. Raises Unknown, and Damaged if a part of it is missing.

        An image of another kernel is copied here, and the packages that it needs are installed. Raises InvalidValue if
        the installation is not allowed, and SpawnRefused if it fails.
        """
        if id in self._deleting_ids:
            raise Unknown("image", id)
        if not id:
            return PLAIN
        record = await self._find_image(id, asker)
        if record is None:
            raise Unknown("image", id)
        if self._catalogue.fetches and await self._missing(record):
            await self._catalogue.bring(record.bundles)
            await self._install(record)
        return await in_thread(lambda: self._builder.image(record), name="ramet-image")

    async def loadable(self, id: str, present_ids: Sequence[str], asker: str = OPERATOR) -> LoadableBundle:
        """Return a bundle, with all its files checked, to be loaded into an agent that has the bundles `present_ids`.

        Raises Unknown, Damaged, BundlesClash. Raises InvalidValue for a module with the name of a module of Python or
        of ramet, and for a bundle that needs packages, which only an image can have. Raises InvalidValue if the agent
        would have too many bundles.
        """
        if id in self._deleting_ids:
            raise Unknown("bundle", id)
        await self.bundle(id, asker)
        await self._catalogue.bring((*present_ids, id))
        return await self._run_comparison(lambda: self._builder.loadable(id, present_ids))

    async def list_images(self, asker: str = OPERATOR) -> Sequence[ImageInfo]:
        """Return all images from which an asker can spawn, the oldest first."""
        images = await self._catalogue.images()
        if asker != OPERATOR:
            bundles = {each.info.id for each in await self._catalogue.bundles() if each.is_for(asker)}
            images = [
                each
                for each in images
                if each.owner == asker or (each.owner == OPERATOR and bundles.issuperset(each.bundles))
            ]
        return [each.info for each in images]

    async def image_info(self, id: str, asker: str = OPERATOR) -> ImageInfo:
        """Return the description of an image. Raises Unknown."""
        record = await self._find_image(id, asker)
        if record is None:
            raise Unknown("image", id)
        return record.info

    async def delete_image(
        self, id: str, users: Callable[[], Sequence[str]] = tuple, other_users: Elsewhere = no_other_users
    ) -> None:
        """Delete an image that has no users. Images on top of it stay. Raises Unknown, InUse.

        `users` returns the users at this kernel. `other_users` returns the users at other kernels, after new use there
        is blocked.
        """
        with self._deleting("image", id, users):
            await run_shielded(self._catalogue.delete_image(id, other_users))

    async def delete_bundle(
        self, id: str, users: Callable[[], Sequence[str]] = tuple, other_users: Elsewhere = no_other_users
    ) -> None:
        """Delete a bundle that no image contains and that has no users. See `delete_image`. Raises Unknown, InUse."""
        with self._deleting("bundle", id, users):
            await run_shielded(self._catalogue.delete_bundle(id, other_users))

    async def _run_comparison(self, work: Callable[[], T]) -> T:
        """Run `work` in a thread, few at a time: it reads the names of all files of bundles, which are large."""
        await self._comparisons.acquire()
        try:
            return await run_shielded(in_thread(work, name="ramet-bundle"))
        finally:
            self._comparisons.release()

    async def _find_image(self, id: str, asker: str) -> ImageRecord | None:
        """Return the image of that id, or None if the asker may not use it.

        An image of the operator may contain bundles of other teams, which makes it unusable for the asker.
        """
        record = await self._catalogue.image(id)
        if record is None or asker in (OPERATOR, record.owner):
            return record
        if record.owner != OPERATOR:
            return None
        for each in record.bundles:
            if not await self._catalogue.is_for(each, asker):
                return None
        return record

    @contextlib.contextmanager
    def _protect(self, *ids: str) -> Iterator[None]:
        """Protect these ids from deletion during the block. Raises Unknown for an id that is being deleted."""
        if deleting_ids := self._deleting_ids.intersection(ids):
            raise Unknown("bundle or image", min(deleting_ids))
        self._pending_needs.update(ids)
        try:
            yield
        finally:
            self._pending_needs.subtract(ids)

    @contextlib.contextmanager
    def _deleting(self, kind: str, id: str, users: Callable[[], Sequence[str]]) -> Iterator[None]:
        """Block new use of an image or a bundle during the block. Raises InUse if it has users, or will have one."""
        if id in self._deleting_ids:
            raise Unknown(kind, id)
        images_being_made = [image for image, parts in self._parts_in_use.items() if id in parts]
        if not images_being_made and self._pending_needs[id] > 0:
            images_being_made = ["an image that is being requested"]
        if in_use_by := (*users(), *images_being_made):
            raise InUse(kind, id, in_use_by)
        self._deleting_ids.add(id)
        try:
            yield
        finally:
            self._deleting_ids.discard(id)

    # --- in a thread

    def _open(self) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        lock = KernelLock(self._folder / "packaging")
        try:
            for part in (self._bundles, self._packages):
                part.open()
        except BaseException:
            lock.release()
            raise
        self._lock = lock

    # --- jobs

    async def _begin(self, record: ImageRecord) -> Job:
        """Start the making of an image here, unless another kernel makes it already. Must not be cancelled."""
        id = record.info.id
        async with self._begin_lock:
            if id not in self._tasks:
                if (running_job := await self._catalogue.begin(record)) is not None:
                    return running_job
                self._jobs.pop(id, None)  # one that failed before
                self._jobs[id] = OwnedJob(Job(id=id, state="queued"), record.owner)
                self._parts_in_use[id] = frozenset((id, record.info.base, *record.bundles))
                self._tasks[id] = asyncio.create_task(self._work(record), name=f"ramet-image-{id[:12]}")
            return self._jobs[id].job

    async def _missing(self, record: ImageRecord) -> bool:
        return bool(await in_thread(lambda: self._builder.missing(record), name="ramet-image"))

    async def _install(self, record: ImageRecord) -> None:
        """Install the packages of an image of another kernel here. Raises InvalidValue, SpawnRefused."""
        await in_thread(lambda: self._builder.required_by(record.bundles), name="ramet-image")
        if record.info.requirements:
            try:
                await self._packages.install(record.info.requirements)
            except InstallFailed as problem:
                raise SpawnRefused("image", f"at this kernel {problem}") from None

    async def _work(self, record: ImageRecord) -> None:
        id = record.info.id
        try:
            await self._slots.acquire()
            try:
                self._jobs[id] = OwnedJob(Job(id=id, state="running"), record.owner)
                await self._catalogue.record_job(record, "running")
                if record.info.requirements:
                    await self._packages.install(record.info.requirements)
                if self._push is not None:
                    await self._push(await in_thread(lambda: self._builder.image(record), name="ramet-image"))
                await run_shielded(self._catalogue.record_done(record))
                del self._jobs[id]
            finally:
                self._slots.release()
        except asyncio.CancelledError:
            self._jobs.pop(id, None)
            raise
        except Exception as problem:
            if not isinstance(problem, RametError):
                _log.exception("image %s could not be made", id)
            await self._record_failure(record, error_of(problem))
        finally:
            self._tasks.pop(id, None)
            self._parts_in_use.pop(id, None)

    async def _record_failure(self, record: ImageRecord, error: ErrorInfo) -> None:
        with contextlib.suppress(RametError):  # A kernel that lost its store ends, and this job with it.
            await self._catalogue.record_job(record, "failed", error)
        id = record.info.id
        self._jobs[id] = OwnedJob(Job(id=id, state="failed", error=error), record.owner)
        oldest = [each for each, owned in self._jobs.items() if owned.job.state == "failed"][:-_FAILED]
        for each in oldest:
            del self._jobs[each]
