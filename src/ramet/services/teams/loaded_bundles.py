"""The bundles that are loaded into a running agent: a folder that all its sandboxes read, whenever they began.

All bundles are in one folder, which is on Python's import path: no bundle may hide a part of another. The folder is
built again from the agent's record when a server resumes the agent. Existing files are never written to: they are
linked to the files that packaging stores, and the agent cannot change them.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import shutil
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path

from ramet.concurrency.deadline import run_shielded
from ramet.concurrency.threads import in_thread
from ramet.core.errors import Gone, InvalidValue, Unknown
from ramet.isolation.workspace.run_dirs import RunFolders
from ramet.services.contract import Image, ImageStore, LoadableBundle

_NO_LINK = (errno.EXDEV, errno.EPERM, errno.EMLINK, errno.EOPNOTSUPP)
_TICK_NS = 1_000_000_000


class AgentImportDir:
    """`LoadedBundles` of one agent, between `open` and `close`; see `ramet.services.contract`."""

    def __init__(
        self,
        agent: str,
        team: str,
        folders: Callable[[], RunFolders],
        images: ImageStore,
        image: Image,
        ids: Sequence[str],
    ) -> None:
        self._agent, self._team, self._folders, self._images, self._image = agent, team, folders, images, image
        self._ids = tuple(ids)  #: recorded by an earlier server
        self._bundles: tuple[LoadableBundle, ...] = ()
        self._loading = ""  #: the bundle that is being loaded
        self._folder: Path | None = None
        self._change_lock = asyncio.Lock()
        self.save: Callable[[], Awaitable[None]] = _do_nothing

    @property
    def folder(self) -> Path:
        if self._folder is None:
            raise Gone("this agent has ended")
        return self._folder

    @property
    def bundles(self) -> tuple[LoadableBundle, ...]:
        return self._bundles

    @property
    def required_ids(self) -> tuple[str, ...]:
        return (*(each.id for each in self._bundles), *filter(None, [self._loading]))

    async def open(self) -> None:
        folders = self._folders()
        folders.drop_import_dir(self._agent)
        self._folder = folders.import_dir(self._agent)  # Few system calls: a thread would cost more.
        for id in self._ids:
            bundle = await self._images.loadable(id, self._present_bundles, self._team)
            await self._run_in_thread(partial(link_bundle, bundle, self.folder))
            self._bundles += (bundle,)

    async def close(self) -> None:
        async with self._change_lock:
            if self._folder is not None:
                self._folder = None
                await self._run_in_thread(lambda: self._folders().drop_import_dir(self._agent))

    async def load(self, id: str, check: Callable[[LoadableBundle], None]) -> LoadableBundle:
        async with self._change_lock:
            if any(each.id == id for each in self._bundles):
                raise InvalidValue("bundle", id, "a bundle that is not loaded yet")
            self._loading = id
            try:
                return await self._load(id, check)
            finally:
                self._loading = ""

    async def unload(self, id: str) -> LoadableBundle:
        async with self._change_lock:
            bundle = next((each for each in self._bundles if each.id == id), None)
            if bundle is None:
                raise Unknown("loaded bundle", id, tuple(each.id for each in self._bundles))
            await self._record(tuple(each for each in self._bundles if each is not bundle))
            await self._run_in_thread(partial(unlink_bundle, bundle, self.folder))
            return bundle

    async def _load(self, id: str, check: Callable[[LoadableBundle], None]) -> LoadableBundle:
        previous = self._bundles
        bundle = await self._images.loadable(id, self._present_bundles, self._team)
        check(bundle)
        await self._run_in_thread(partial(link_bundle, bundle, self.folder))
        try:
            await self._record((*previous, bundle))
            try:
                await self._images.bundle(id, self._team)  # From now on it is not deleted; until now it may have been.
            except BaseException:
                await self._record(previous)
                raise
        except BaseException:
            await self._run_in_thread(partial(unlink_bundle, bundle, self.folder))
            raise
        return bundle

    async def _record(self, bundles: tuple[LoadableBundle, ...]) -> None:
        """Record these bundles as loaded. After an error or a cancellation, record the previous ones again."""
        previous, self._bundles = self._bundles, bundles
        try:
            await run_shielded(self.save())
        except BaseException:
            self._bundles = previous
            with contextlib.suppress(Exception):  # A cancelled write was completed nevertheless.
                await run_shielded(self.save())
            raise

    @property
    def _present_bundles(self) -> tuple[str, ...]:
        return (*self._image.bundles, *(each.id for each in self._bundles))

    async def _run_in_thread(self, work: Callable[[], None]) -> None:
        await run_shielded(in_thread(work, name="ramet-bundles"))


def link_bundle(bundle: LoadableBundle, target_dir: Path) -> None:
    """Link a bundle's files into an import folder: modules and packages appear whole.

    Raises OSError, and leaves no file then.
    """
    draft = Path(tempfile.mkdtemp(prefix=".draft-", dir=target_dir.parent))
    try:
        for path in bundle.files:
            target = draft / path
            _make_parents(target.parent, draft)
            _link(bundle.folder / path, target)
        with _touched_folders(_folders_of(bundle, target_dir)):
            try:
                _merge(draft, target_dir)
            except BaseException:
                _remove(bundle, target_dir)
                raise
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def unlink_bundle(bundle: LoadableBundle, target_dir: Path) -> None:
    """Remove a bundle's files from an import folder, and the folders that become empty. A missing file is no error."""
    with _touched_folders(_folders_of(bundle, target_dir)):
        _remove(bundle, target_dir)


def _make_parents(folder: Path, top: Path) -> None:
    if folder != top and not folder.is_dir():
        _make_parents(folder.parent, top)
        folder.mkdir()
        folder.chmod(0o755)  # Independent of the umask: another user works in the sandbox.


def _link(source: Path, target: Path) -> None:
    try:
        os.link(source, target, follow_symlinks=False)
    except OSError as problem:
        if problem.errno not in _NO_LINK:
            raise
        shutil.copyfile(source, target, follow_symlinks=False)
        shutil.copymode(source, target, follow_symlinks=False)


def _merge(source: Path, target: Path) -> None:
    """Move the content of one folder into another; a folder that both have is shared."""
    for each in sorted(source.iterdir()):
        destination = target / each.name
        if each.is_dir() and destination.is_dir():
            _merge(each, destination)
        else:
            each.rename(destination)


def _remove(bundle: LoadableBundle, root: Path) -> None:
    for path in bundle.files:
        (root / path).unlink(missing_ok=True)
    for folder in sorted(_folders_of(bundle, root) - {root}, key=lambda each: -len(each.parts)):
        with contextlib.suppress(OSError):  # It has files of another bundle, or does not exist.
            folder.rmdir()


def _folders_of(bundle: LoadableBundle, root: Path) -> set[Path]:
    return {root, *(root / parent for path in bundle.files for parent in Path(path).parents)}


@contextlib.contextmanager
def _touched_folders(folders: Iterable[Path]) -> Iterator[None]:
    """Change the time of each folder that stays: Python lists a folder again only if its time has changed."""
    mtimes = {each: each.stat().st_mtime_ns for each in folders if each.is_dir()}
    try:
        yield
    finally:
        for each, mtime_ns in mtimes.items():
            with contextlib.suppress(FileNotFoundError):
                mtime_ns = max(time.time_ns(), mtime_ns + _TICK_NS)
                os.utime(each, ns=(mtime_ns, mtime_ns))


async def _do_nothing() -> None:
    """Do nothing."""
