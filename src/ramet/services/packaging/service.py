"""PackagingService: bundles are uploaded, images are made of them in the background, agents are spawned from those."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple, Self

from ramet.concurrency.clock import Clock, SystemClock
from ramet.concurrency.deadline import to_its_end
from ramet.concurrency.slots import Slots
from ramet.concurrency.threads import in_thread
from ramet.core.errors import Damaged, InvalidValue, RametError, Unknown
from ramet.core.outcome import ErrorInfo
from ramet.services.contract import PLAIN, CodeTool, Image, Loadable
from ramet.services.packaging.bundles import REQUIREMENTS, Bundle, Bundles
from ramet.services.packaging.contract import BundleInfo, BundleLimits, ImageInfo, Job
from ramet.services.packaging.images import FOR_PACKAGING, Recorded, Records, image_id, refuse_clashes, refuse_shadows
from ramet.services.packaging.manifest import SKILLS, declared_tools, manifest_of
from ramet.services.packaging.requirements import Installs, Packages, parsed
from ramet.services.problems import error_of
from ramet.services.refusals import InUse
from ramet.store.lock import KernelLock

MAX_BUNDLES = 100  #: of one image, those of its base included
_TOGETHER = 2  #: images that are made at a time
_FAILED = 1_000  #: failed jobs that are remembered

_log = logging.getLogger(__name__)


class PackagingService:
    """Keeps bundles and images in a folder, which is its own between `open` and `close`, or in `async with`.

    Bundles and images outlast a restart. A job that was under way does not: ask for its image again.
    """

    def __init__(
        self,
        folder: Path,
        *,
        limits: BundleLimits | None = None,
        installs: Installs | None = None,
        push: Callable[[Image], Awaitable[object]] | None = None,
        clock: Clock | None = None,
    ) -> None:
        """Without `installs`, bundles that need other packages are refused.

        `push` has an image where other machines get it from; what it raises is why there is no image.
        """
        self._folder, self._clock = folder.absolute(), clock or SystemClock()
        self._bundles = Bundles(self._folder / "bundles", limits or BundleLimits())
        self._packages = Packages(self._folder / "packages", installs, self._clock)
        self._records = Records(self._folder / "images")
        self._push = push
        self._lock: KernelLock | None = None
        self._slots = Slots(_TOGETHER)
        self._jobs: dict[str, Job] = {}  #: those that are not done; what is done is an image
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._making: dict[str, frozenset[str]] = {}  #: by image: what it is made of, and itself
        self._asked: Counter[str] = Counter()  #: the same of requests that are being looked at
        self._going: set[str] = set()  #: that are being deleted

    async def open(self) -> Self:
        """Take the folder, and clear away what an earlier process left unfinished. Raises StoreInUse, StoreFailed."""
        await to_its_end(in_thread(self._open, name="ramet-packaging"))
        return self

    async def close(self) -> None:
        """End the jobs and what they have started, and wait until it is gone. Idempotent."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        self._tasks.clear()  # One that had not begun could not do so itself.
        self._jobs.clear()
        self._making.clear()
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def upload(self, data: bytes | AsyncIterator[bytes]) -> BundleInfo:
        """Keep what is in a tar, plain or with gzip; its id is the digest of its files: same files, same bundle.

        Nothing is written before all of it was checked. Links of any kind and special files are refused, as are paths
        that lead out, that come twice or differ only by case or Unicode form. Of a file's mode only "executable" is
        kept. Raises InvalidValue, which names the member, and BundleTooLarge.
        """
        return (await self._bundles.upload(data)).info

    async def bundle(self, id: str) -> BundleInfo:
        """The bundle of that id. Raises Unknown."""
        return (await self._bundles.get(id)).info

    async def list_bundles(self) -> Sequence[BundleInfo]:
        """All that are kept, by their ids."""
        return await self._bundles.list()

    async def create_image(self, base: str = "", bundles: Sequence[str] = ()) -> Job:
        """Have an image made of bundles, on top of another; what was made before is done at once.

        Refused before anything begins: what is Unknown, bundles that hide parts of each other (BundlesClash), and
        requirements that are none or that may not be installed (InvalidValue).
        """
        id = image_id(base, bundles)
        with self._needing(id, base, *bundles):
            recorded, there = await in_thread(lambda: self._planned(id, base, bundles), name="ramet-image")
            if there:
                return Job(id=id, state="done", image=id)
            if id not in self._tasks:
                self._jobs.pop(id, None)  # one that failed before
                self._jobs[id] = Job(id=id, state="queued")
                self._making[id] = frozenset((id, base, *recorded.bundles))
                self._tasks[id] = asyncio.create_task(self._work(recorded), name=f"ramet-image-{id[:12]}")
            return self._jobs[id]

    async def job(self, id: str) -> Job:
        """How far the making of an image is. Raises Unknown, also for one that failed long ago."""
        if id in self._jobs:
            return self._jobs[id]
        if await in_thread(lambda: self._records.find(id), name="ramet-image"):
            return Job(id=id, state="done", image=id)
        raise Unknown("job", id)

    async def finished(self, id: str) -> Job:
        """The job, once it is done or failed. Raises Unknown, also if the service is closed meanwhile."""
        if id in self._tasks:
            await asyncio.wait({self._tasks[id]})
        return await self.job(id)

    def list_jobs(self) -> Sequence[Job]:
        """Those that are queued or running, and those that failed lately; the oldest first."""
        return tuple(self._jobs.values())

    async def image(self, id: str) -> Image:
        """The image of that id; "" is the plain one. Raises Unknown, and Damaged if a part of it is missing."""
        if id in self._going:
            raise Unknown("image", id)
        return await in_thread(lambda: self._image(self._records.get(id)), name="ramet-image") if id else PLAIN

    async def loadable(self, id: str, beside: Sequence[str]) -> Loadable:
        """A bundle, with all its files checked, to be loaded into an agent that has others.

        Raises Unknown, Damaged, BundlesClash, and InvalidValue for a module of a name that is Python's own, or ours,
        for one that needs packages, which only an image can have, and for one more than an agent may have.
        """
        if id in self._going:
            raise Unknown("bundle", id)
        return await in_thread(lambda: self._loadable(id, beside), name="ramet-bundle")

    async def list_images(self) -> Sequence[ImageInfo]:
        """All that can be spawned from, the oldest first."""
        return await in_thread(self._records.all, name="ramet-images")

    async def delete_image(self, id: str, users: Callable[[], Sequence[str]] = tuple) -> None:
        """Forget an image that nobody needs: `users` says who does. Images on top of it stay. Raises Unknown, InUse."""
        with self._deleting("image", id, users):
            await to_its_end(in_thread(lambda: self._records.delete(id), name="ramet-image"))

    async def delete_bundle(self, id: str, users: Callable[[], Sequence[str]] = tuple) -> None:
        """Remove a bundle that no image has and nobody needs. Raises Unknown, InUse."""
        with self._deleting("bundle", id, users):
            images = await in_thread(lambda: self._records.of_bundle(id), name="ramet-image")
            if images:
                raise InUse("bundle", id, images)
            await to_its_end(in_thread(lambda: self._bundles.delete(id), name="ramet-bundle"))

    @contextlib.contextmanager
    def _needing(self, *ids: str) -> Iterator[None]:
        """Keep these from being deleted. Raises Unknown for one that is."""
        if going := self._going.intersection(ids):
            raise Unknown("bundle or image", min(going))
        self._asked.update(ids)
        try:
            yield
        finally:
            self._asked.subtract(ids)

    @contextlib.contextmanager
    def _deleting(self, kind: str, id: str, users: Callable[[], Sequence[str]]) -> Iterator[None]:
        """Let nobody have it from now on. Raises InUse for what somebody has, or is about to."""
        if id in self._going:
            raise Unknown(kind, id)
        making = [image for image, parts in self._making.items() if id in parts]
        if not making and self._asked[id] > 0:
            making = ["an image that is asked for"]
        if found := (*users(), *making):
            raise InUse(kind, id, found)
        self._going.add(id)
        try:
            yield
        finally:
            self._going.discard(id)

    # --- in a thread

    def _open(self) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        lock = KernelLock(self._folder / "packaging")
        try:
            for part in (self._bundles, self._packages, self._records):
                part.open()
        except BaseException:
            lock.release()
            raise
        self._lock = lock

    def _planned(self, id: str, base: str, bundles: Sequence[str]) -> tuple[Recorded, bool]:
        """What the image will be, and whether it is there."""
        found = self._records.find(id)
        if found is not None and not self._missing(found):
            return found, True
        if not bundles or len(set(bundles)) < len(bundles):
            raise InvalidValue("bundles", tuple(bundles), "one or more ids of bundles, each once")
        below = self._records.get(base) if base else None
        ids = (*below.bundles, *bundles) if below else tuple(bundles)
        ids = tuple(dict.fromkeys(ids))
        if len(ids) > MAX_BUNDLES:
            raise InvalidValue("bundles", len(ids), f"at most {MAX_BUNDLES} with those of the base")
        loaded = [self._bundles.load(each) for each in ids]
        refuse_clashes(loaded)
        needed = tuple(dict.fromkeys(line for each in loaded for line in self._required(each)))
        now = self._clock.now().isoformat()
        info = ImageInfo(id=id, base=base, bundles=tuple(bundles), requirements=needed, created_at=now)
        return Recorded(info=info, bundles=ids), False

    def _required(self, bundle: Bundle) -> tuple[str, ...]:
        if REQUIREMENTS not in bundle.files:
            return ()
        where = f"{REQUIREMENTS} of bundle {bundle.id}"
        needed = parsed((bundle.folder / REQUIREMENTS).read_bytes(), where)
        self._packages.refuse(needed, where)
        return needed

    def _loadable(self, id: str, beside: Sequence[str]) -> Loadable:
        bundle = self._bundles.whole(id)
        if id in beside:
            raise InvalidValue("bundle", id, "a bundle that its image does not have")
        if len(beside) >= MAX_BUNDLES:
            raise InvalidValue("bundles", len(beside) + 1, f"at most {MAX_BUNDLES} with those of its image")
        if REQUIREMENTS in bundle.files:
            raise InvalidValue("bundle", id, f"one without {REQUIREMENTS}: packages are installed for an image only")
        refuse_shadows(bundle)
        refuse_clashes([*map(self._bundles.load, beside), bundle])
        files = tuple(each for each in bundle.files if each not in FOR_PACKAGING)
        return Loadable(id, bundle.folder, files, *_declared(bundle.folder))

    def _image(self, recorded: Recorded) -> Image:
        missing = self._missing(recorded)
        if missing:
            raise Damaged("the image", missing[0], "this folder is missing; make the image again")
        loaded = [self._bundles.load(each) for each in recorded.bundles]
        return Image(
            recorded.info.id,
            tuple(each.folder for each in loaded),
            self._installed(recorded),
            tuple(each.folder / SKILLS for each in loaded if (each.folder / SKILLS).is_dir()),
            recorded.bundles,
            tuple(tool for each in loaded for tool in _declared(each.folder).tools),
            tuple(dict.fromkeys(skill for each in loaded for skill in _declared(each.folder).skills)),
        )

    def _missing(self, recorded: Recorded) -> Sequence[Path]:
        wanted = (*map(self._bundles.place, recorded.bundles), *self._installed(recorded))
        return [each for each in wanted if not each.is_dir()]

    def _installed(self, recorded: Recorded) -> tuple[Path, ...]:
        needed = recorded.info.requirements
        return (self._packages.place(needed),) if needed else ()

    # --- jobs

    async def _work(self, recorded: Recorded) -> None:
        id = recorded.info.id
        try:
            await self._slots.take()
            try:
                self._jobs[id] = Job(id=id, state="running")
                if recorded.info.requirements:
                    await self._packages.install(recorded.info.requirements)
                if self._push is not None:
                    await self._push(await in_thread(lambda: self._image(recorded), name="ramet-image"))
                await to_its_end(in_thread(lambda: self._records.put(recorded), name="ramet-image"))
                del self._jobs[id]
            finally:
                self._slots.give_back()
        except asyncio.CancelledError:
            self._jobs.pop(id, None)
            raise
        except Exception as problem:
            if not isinstance(problem, RametError):
                _log.exception("image %s could not be made", id)
            self._failed(id, error_of(problem))
        finally:
            self._tasks.pop(id, None)
            self._making.pop(id, None)

    def _failed(self, id: str, error: ErrorInfo) -> None:
        self._jobs[id] = Job(id=id, state="failed", error=error)
        over = [each for each, job in self._jobs.items() if job.state == "failed"][:-_FAILED]
        for each in over:
            del self._jobs[each]


class _Declared(NamedTuple):
    tools: tuple[CodeTool, ...]
    skills: tuple[str, ...]


@lru_cache(maxsize=256)
def _declared(folder: Path) -> _Declared:
    """What a bundle that is kept declares: a folder of this name never holds anything else."""
    return _Declared(declared_tools(folder), manifest_of(folder).skills)
