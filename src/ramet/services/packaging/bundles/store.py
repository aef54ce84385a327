"""The stored bundles: a folder `<folder>/<digest>/` for each, and its record `<digest>.json` beside it."""

from __future__ import annotations

import contextlib
import io
import os
import re
import tarfile
import tempfile
import threading
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, NamedTuple, TypeVar

from ramet.concurrency.deadline import run_shielded
from ramet.concurrency.slots import Slots
from ramet.concurrency.threads import in_thread
from ramet.core.errors import Damaged, InvalidValue, Unknown
from ramet.services.packaging import atomic_dirs
from ramet.services.packaging.bundles.manifest import checked_manifest
from ramet.services.packaging.bundles.records import Summary, charge_of, read_record, read_summary, renew, write_record
from ramet.services.packaging.bundles.unpack import digest_of, extract, scan
from ramet.services.packaging.contract import OPERATOR, BundleInfo, BundleLimits, BundleTooLarge, OwnedBundle

T = TypeVar("T")
REQUIREMENTS = "requirements.txt"
_DIGEST = re.compile(r"[0-9a-f]{64}\Z")
_MAX_CONCURRENT = 4  #: uploads that are checked concurrently
_PIECE = 1 << 20


class Bundle(NamedTuple):
    """A stored bundle, as the modules of packaging use it."""

    id: str
    folder: Path
    size: int
    files: tuple[str, ...]
    owners: tuple[str, ...] = ()

    @property
    def info(self) -> BundleInfo:
        """The description of the bundle for its owners."""
        return BundleInfo(id=self.id, size=self.size, files=len(self.files))

    @property
    def charge(self) -> int:
        """The bytes of the quota that the bundle uses."""
        return charge_of(self.size, self.files)


class Bundles:
    """The bundles, stored by their content. Uploads may run concurrently, also of the same bundle."""

    def __init__(self, folder: Path, limits: BundleLimits) -> None:
        self._folder, self._limits = folder, limits
        self._slots = Slots(_MAX_CONCURRENT)
        self._total_charge, self._charge_lock = 0, threading.Lock()
        self._record_lock = threading.Lock()

    def open(self) -> None:
        """Create the folder, and remove the unfinished files of an earlier process."""
        atomic_dirs.open_place(self._folder)
        for record in self._folder.glob("*.json"):
            if not self.place(record.stem).is_dir():  # Else its owners would also become owners of a later upload.
                record.unlink()
            else:
                renew(record)
        self._total_charge = sum(each.charge for each in self._all().values())

    async def upload(self, data: bytes | AsyncIterator[bytes], owner: str = OPERATOR) -> Bundle:
        """Check an archive and store its content. Raises InvalidValue, BundleTooLarge, and stores nothing then.

        `owner` becomes an owner of the bundle, in addition to the owners who uploaded the same content before.
        """
        if isinstance(data, bytes):
            self._check_upload_size(len(data))
            return await self._store_archive(io.BytesIO(data), owners=(owner,))
        with _Spool(self._folder) as spool:
            async for piece in data:
                self._check_upload_size(spool.size + len(piece))
                if spool.add(piece):
                    await _run_in_thread(spool.flush)
            await _run_in_thread(spool.flush)
            return await self._store_archive(spool.file, owners=(owner,))

    async def receive(self, id: str, archive: AsyncIterator[bytes]) -> Bundle:
        """Check and store an archive that `pack` made of the bundle of that id.

        Raises Damaged if the content is different. The copy has no owners: the store has them.
        """
        with _Spool(self._folder) as spool:
            async for piece in archive:
                spool.add(piece)
                await _run_in_thread(spool.flush)
            try:
                return await self._store_archive(spool.file, id)
            except InvalidValue as problem:
                raise Damaged("the bundle", id, f"its record cannot be read ({problem})") from None

    def pack(self, bundle: Bundle) -> IO[bytes]:
        """Return an archive of a stored bundle, in a file without a name. Waits for the disk. Raises OSError."""
        spool: IO[bytes] = tempfile.TemporaryFile(dir=self._folder)
        try:
            with tarfile.open(fileobj=spool, mode="w:gz", compresslevel=1) as tar:
                for path in bundle.files:
                    header = tarfile.TarInfo(path)
                    with (bundle.folder / path).open("rb") as content:
                        status = os.fstat(content.fileno())
                        header.size, header.mode = status.st_size, status.st_mode & 0o777
                        tar.addfile(header, content)
        except BaseException:
            spool.close()
            raise
        return spool

    def load(self, id: str) -> Bundle:
        """Return the bundle of that id, and wait for the disk. Raises Unknown."""
        if self.has(id):
            with contextlib.suppress(FileNotFoundError):
                record = read_record(self._record_path(id))
                return Bundle(id, self.place(id), record.summary.size, record.files, record.summary.owners)
        raise Unknown("bundle", id)

    def has(self, id: str) -> bool:
        """Return whether there is a folder for that id; its record is not checked."""
        return bool(_DIGEST.match(id)) and self.place(id).is_dir()

    def summary(self, id: str) -> Summary | None:
        """Return the record of a bundle without the names of its files; None if there is none. Waits for the disk."""
        if self.has(id):
            with contextlib.suppress(FileNotFoundError):
                return read_summary(self._record_path(id))
        return None

    async def find_owned_bundle(self, id: str) -> OwnedBundle | None:
        """Return the bundle and its owners; None if there is none."""
        summary = await in_thread(lambda: self.summary(id), name="ramet-bundle")
        return summary.as_owned_bundle(id) if summary is not None else None

    def load_verified(self, id: str) -> Bundle:
        """Return the bundle of that id, after all its files were read again.

        Raises Unknown, and Damaged if a file has changed.
        """
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
        """Return the folder of a bundle by its id, whether or not the bundle exists."""
        return self._folder / id

    async def list(self) -> Sequence[OwnedBundle]:
        """Return all stored bundles, by their ids."""
        summaries = await in_thread(self._all, name="ramet-bundles")
        return [each.as_owned_bundle(id) for id, each in summaries.items()]

    def delete(self, id: str) -> None:
        """Remove a bundle. The caller ensures that it has no users. Waits for the disk. Raises Unknown."""
        summary = self.summary(id)
        if summary is None:
            raise Unknown("bundle", id)
        path = self.place(id)
        with atomic_dirs.draft(self._folder) as draft, self._record_lock:
            path.chmod(0o755)  # A read-only folder cannot be moved.
            path.rename(draft / id)  # Atomic: from now on the bundle does not exist.
            self._record_path(id).unlink(missing_ok=True)
            self._charge(-summary.charge)

    def _all(self) -> Mapping[str, Summary]:
        names = sorted(each.name for each in self._folder.iterdir())
        return {id: summary for id in names if (summary := self.summary(id)) is not None}

    def _charge(self, size: int) -> None:
        """Add to the bytes in use. Raises BundleTooLarge."""
        with self._charge_lock:
            if size > 0 and self._total_charge + size > self._limits.quota:
                total = self._total_charge + size
                raise BundleTooLarge("bytes of all bundles that are kept", size=total, limit=self._limits.quota)
            self._total_charge += size

    async def _store_archive(self, archive: IO[bytes], id: str = "", owners: tuple[str, ...] = ()) -> Bundle:
        await self._slots.acquire()
        try:
            return await _run_in_thread(lambda: self._add(archive, id, owners))
        finally:
            self._slots.release()

    def _check_upload_size(self, size: int) -> None:
        if size > self._limits.upload:
            raise BundleTooLarge("bytes of the upload", size=size, limit=self._limits.upload)

    def _add(self, archive: IO[bytes], id: str, owners: tuple[str, ...]) -> Bundle:
        content = scan(archive, self._limits)
        if id not in ("", content.digest):
            raise Damaged("the bundle", id, f"its recorded content is that of {content.digest}")
        path = self.place(content.digest)
        bundle = Bundle(content.digest, path, content.size, content.files, owners)
        if not self._add_owners(bundle):
            charge = bundle.charge
            self._charge(charge)
            try:
                is_new = self._publish(archive, bundle)
            except BaseException:
                self._charge(-charge)
                raise
            if not is_new:  # The same bundle was uploaded twice concurrently.
                self._charge(-charge)
        return bundle

    def _publish(self, archive: IO[bytes], bundle: Bundle) -> bool:
        with atomic_dirs.draft(self._folder) as draft:
            extract(archive, draft, self._limits)
            checked_manifest(draft)
            # Before the folder: once the folder exists, its files and owners must be recorded.
            with self._record_lock:
                self._write_record(bundle)
            return atomic_dirs.publish(draft, bundle.folder)

    def _add_owners(self, bundle: Bundle) -> bool:
        """Add the owners of an existing bundle. Return whether the bundle exists."""
        with self._record_lock:
            summary = self.summary(bundle.id)
            if summary is not None and not set(bundle.owners) <= set(summary.owners):
                self._write_record(bundle)
            return summary is not None

    def _write_record(self, bundle: Bundle) -> None:
        """Write the record of a bundle, and add its owners to those before.

        The same bundle may be uploaded concurrently.
        """
        file = self._record_path(bundle.id)
        owners = read_summary(file).owners if file.exists() else ()
        write_record(file, bundle.size, bundle.files, tuple(dict.fromkeys((*owners, *bundle.owners))))

    def _record_path(self, id: str) -> Path:
        return self._folder / f"{id}.json"


class _Spool:
    """A file without a name for data that is received in pieces.

    The file disappears with the process, however it ends.
    """

    def __init__(self, folder: Path) -> None:
        self.file: IO[bytes] = tempfile.TemporaryFile(dir=folder)
        self.size = 0
        self._pending = bytearray()

    def __enter__(self) -> _Spool:
        return self

    def __exit__(self, *_: object) -> None:
        self.file.close()

    def add(self, piece: bytes) -> bool:
        """Add a piece. Return whether `flush` is due."""
        self._pending += piece
        self.size += len(piece)
        return len(self._pending) >= _PIECE

    def flush(self) -> None:
        """Write the added pieces to the file."""
        self.file.write(self._pending)
        self._pending.clear()


async def _run_in_thread(work: Callable[[], T]) -> T:
    """Run `work` in a thread and return its result.

    A cancellation waits for the end, because `work` uses open files.
    """
    return await run_shielded(in_thread(work, name="ramet-bundle"))
