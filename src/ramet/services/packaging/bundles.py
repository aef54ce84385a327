"""The bundles that are kept: `<folder>/<digest>/` for each, and beside it `<digest>.json`, which says what it holds."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import tarfile
import tempfile
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple, TypeVar

from ramet.concurrency.deadline import to_its_end
from ramet.concurrency.slots import Slots
from ramet.concurrency.threads import in_thread
from ramet.core.errors import Damaged, InvalidValue, Unknown
from ramet.disk.regular_files import read_regular
from ramet.services.packaging import folders
from ramet.services.packaging.contract import OPERATOR, BundleInfo, BundleLimits, BundleTooLarge, OwnedBundle
from ramet.services.packaging.manifest import checked_manifest
from ramet.services.packaging.unpacking import digest_of, extract, scan

T = TypeVar("T")
REQUIREMENTS = "requirements.txt"
_DIGEST = re.compile(r"[0-9a-f]{64}\Z")
_TOGETHER = 4  #: uploads that are checked at a time
_PIECE = 1 << 20
_MOST = 1 << 26  #: bytes of the description of a bundle


class Bundle(NamedTuple):
    """One that is kept, as the parts of packaging use it."""

    id: str
    folder: Path
    size: int
    files: tuple[str, ...]
    owners: tuple[str, ...] = ()

    @property
    def info(self) -> BundleInfo:
        """What its owner is told."""
        return BundleInfo(id=self.id, size=self.size, files=len(self.files))


class Bundles:
    """Keeps bundles by their content. Uploads may come at the same time, also of the same bundle."""

    def __init__(self, folder: Path, limits: BundleLimits) -> None:
        self._folder, self._limits = folder, limits
        self._slots = Slots(_TOGETHER)
        self._kept_size, self._counting = 0, threading.Lock()
        self._describing = threading.Lock()

    def open(self) -> None:
        """Make the folder, and clear away what an earlier process did not finish."""
        folders.open_place(self._folder)
        for left in self._folder.glob("*.json"):  # Else its owners would be those of a later upload as well.
            if not self.place(left.stem).is_dir():
                left.unlink()
        self._kept_size = sum(each.size for each in self._all())

    async def upload(self, data: bytes | AsyncIterator[bytes], owner: str = OPERATOR) -> Bundle:
        """Check an archive and keep what is in it. Raises InvalidValue, BundleTooLarge; nothing of it is kept then.

        `owner` has the bundle beside those who uploaded the same before.
        """
        if isinstance(data, bytes):
            self._within(len(data))
            return await self._kept(io.BytesIO(data), owners=(owner,))
        with _Spool(self._folder) as spool:
            async for piece in data:
                self._within(spool.size + len(piece))
                if spool.add(piece):
                    await _off(spool.flush)
            await _off(spool.flush)
            return await self._kept(spool.file, owners=(owner,))

    async def receive(self, id: str, archive: AsyncIterator[bytes]) -> Bundle:
        """As `upload`, of what `pack` has made of the bundle of that id. Raises Damaged if it is another one's.

        The store says whose it is: nobody owns the copy.
        """
        with _Spool(self._folder) as spool:
            async for piece in archive:
                spool.add(piece)
                await _off(spool.flush)
            try:
                return await self._kept(spool.file, id)
            except InvalidValue as problem:
                raise Damaged("the bundle", id, f"what is kept of it is none ({problem})") from None

    def pack(self, bundle: Bundle) -> IO[bytes]:
        """An archive of a bundle that is kept, in a file that has no name. Waits for the disk. Raises OSError."""
        out: IO[bytes] = tempfile.TemporaryFile(dir=self._folder)
        try:
            with tarfile.open(fileobj=out, mode="w:gz", compresslevel=1) as tar:
                for path in bundle.files:
                    header = tarfile.TarInfo(path)
                    with (bundle.folder / path).open("rb") as content:
                        found = os.fstat(content.fileno())
                        header.size, header.mode = found.st_size, found.st_mode & 0o777
                        tar.addfile(header, content)
        except BaseException:
            out.close()
            raise
        return out

    async def get(self, id: str) -> Bundle:
        """The bundle of that id. Raises Unknown."""
        return await in_thread(lambda: self.load(id), name="ramet-bundle")

    def load(self, id: str) -> Bundle:
        """As `get`, waiting for the disk."""
        found = self.find(id)
        if found is None:
            raise Unknown("bundle", id)
        return found

    def find(self, id: str) -> Bundle | None:
        """As `load`; None if there is none."""
        if _DIGEST.match(id) and self.place(id).is_dir():
            with contextlib.suppress(FileNotFoundError):
                said = json.loads(read_regular(self._described(id), limit=_MOST))
                return Bundle(id, self.place(id), said["size"], tuple(said["files"]), _owners(said))
        return None

    async def owned(self, id: str) -> OwnedBundle | None:
        """The bundle and its owners; None if there is none."""
        found = await in_thread(lambda: self.find(id), name="ramet-bundle")
        return OwnedBundle(found.info, found.owners) if found is not None else None

    def whole(self, id: str) -> Bundle:
        """As `load`, with all its files read once more. Raises Damaged if one is not what it was."""
        bundle = self.load(id)
        try:
            is_whole = digest_of(bundle.folder, bundle.files) == id
        except OSError as problem:
            raise Damaged("the bundle", bundle.folder, str(problem)) from None
        if not is_whole:
            raise Damaged(
                "the bundle", bundle.folder, "its files are not those of its digest; delete it, and upload it again"
            )
        return bundle

    def place(self, id: str) -> Path:
        """Where the bundle of an id lies, if it is kept."""
        return self._folder / id

    async def list(self) -> Sequence[OwnedBundle]:
        """All that are kept, by their ids."""

        return await in_thread(
            lambda: [OwnedBundle(each.info, each.owners) for each in self._all()], name="ramet-bundles"
        )

    def delete(self, id: str) -> None:
        """Remove it, for whoever knows that nobody needs it; waits for the disk. Raises Unknown."""
        bundle = self.load(id)
        with folders.draft(self._folder) as draft, self._describing:
            bundle.folder.chmod(0o755)  # A folder that may not be written to is not moved.
            bundle.folder.rename(draft / id)  # At once: from now on there is none of it.
            self._described(id).unlink(missing_ok=True)
            self._take(-bundle.size)

    def _all(self) -> Sequence[Bundle]:
        return [each for each in map(self.find, sorted(each.name for each in self._folder.iterdir())) if each]

    def _take(self, size: int) -> None:
        """Have so much more on disk. Raises BundleTooLarge."""
        with self._counting:
            if size > 0 and self._kept_size + size > self._limits.kept:
                whole = self._kept_size + size
                raise BundleTooLarge("bytes of all bundles that are kept", size=whole, limit=self._limits.kept)
            self._kept_size += size

    async def _kept(self, archive: IO[bytes], id: str = "", owners: tuple[str, ...] = ()) -> Bundle:
        await self._slots.take()
        try:
            return await _off(lambda: self._keep(archive, id, owners))
        finally:
            self._slots.give_back()

    def _within(self, size: int) -> None:
        if size > self._limits.upload:
            raise BundleTooLarge("bytes of the upload", size=size, limit=self._limits.upload)

    def _keep(self, archive: IO[bytes], id: str, owners: tuple[str, ...]) -> Bundle:
        content = scan(archive, self._limits)
        if id not in ("", content.digest):
            raise Damaged("the bundle", id, f"what is kept of it is that of {content.digest}")
        place = self.place(content.digest)
        bundle = Bundle(content.digest, place, content.size, content.files, owners)
        if not self._share(bundle):
            self._take(bundle.size)
            try:
                is_new = self._publish(archive, bundle)
            except BaseException:
                self._take(-bundle.size)
                raise
            if not is_new:  # The same came twice at the same time.
                self._take(-bundle.size)
        return bundle

    def _publish(self, archive: IO[bytes], bundle: Bundle) -> bool:
        with folders.draft(self._folder) as draft:
            extract(archive, draft, self._limits)
            checked_manifest(draft)
            # Before the folder: from the moment that this is there, so is what it holds, and whose it is.
            with self._describing:
                self._describe(bundle)
            return folders.publish(draft, bundle.folder)

    def _share(self, bundle: Bundle) -> bool:
        """Add the owners of a bundle that is kept already; whether it is."""
        with self._describing:
            found = self.find(bundle.id)
            if found is not None and not set(bundle.owners) <= set(found.owners):
                self._describe(bundle)
            return found is not None

    def _describe(self, bundle: Bundle) -> None:
        """Write what a bundle holds, and its owners beside those on record: the same may be uploaded at this moment."""
        file = self._described(bundle.id)
        before = _owners(json.loads(read_regular(file, limit=_MOST))) if file.exists() else ()
        owners = tuple(dict.fromkeys((*before, *bundle.owners)))
        folders.write_json(file, {"size": bundle.size, "files": bundle.files, "owners": owners})

    def _described(self, id: str) -> Path:
        return self._folder / f"{id}.json"


def _owners(said: dict[str, Any]) -> tuple[str, ...]:
    """Older versions did not write the owners down; then only the operator uploaded, unless a rule said otherwise."""
    return tuple(said.get("owners", (OPERATOR,)))


class _Spool:
    """What comes in pieces, in a file that has no name: it is gone with the process, whatever ends it."""

    def __init__(self, folder: Path) -> None:
        self.file: IO[bytes] = tempfile.TemporaryFile(dir=folder)
        self.size = 0
        self._pending = bytearray()

    def __enter__(self) -> _Spool:
        return self

    def __exit__(self, *_: object) -> None:
        self.file.close()

    def add(self, piece: bytes) -> bool:
        """Take it; whether it is time for `flush`."""
        self._pending += piece
        self.size += len(piece)
        return len(self._pending) >= _PIECE

    def flush(self) -> None:
        """Write what was taken."""
        self.file.write(self._pending)
        self._pending.clear()


async def _off(work: Callable[[], T]) -> T:
    """What `work` returns, done in a thread. A cancel waits for it: what it writes to is not taken from under it."""
    return await to_its_end(in_thread(work, name="ramet-bundle"))
