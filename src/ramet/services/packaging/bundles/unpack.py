"""The archive of a bundle, read twice: the first pass checks everything and writes nothing, the second pass writes."""

from __future__ import annotations

import hashlib
import os
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import IO, NamedTuple

from ramet.core.errors import InvalidValue
from ramet.services.packaging.bundles.paths import BundlePaths, checked_path
from ramet.services.packaging.contract import BundleLimits, BundleTooLarge
from ramet.wire.tar import Tar

_GZIP = b"\x1f\x8b"
_PIECE = 64 * 1024


class Content(NamedTuple):
    """The content that identifies a bundle: its files, sorted. Times, owners and empty folders are ignored."""

    digest: str
    size: int
    files: tuple[str, ...]


def scan(archive: IO[bytes], limits: BundleLimits) -> Content:
    """Check a whole archive, from its beginning. Raises InvalidValue, which names the member, and BundleTooLarge."""
    used_paths, total, count = BundlePaths(), 0, 0
    files: list[tuple[str, bytes]] = []
    tar = _open_tar(archive, limits)
    for member in tar.members():
        count += 1
        if count > limits.members:
            raise BundleTooLarge("members of the bundle", size=count, limit=limits.members)
        parts = checked_path(member.name, limits)
        if member.is_folder:
            used_paths.folder(parts)
            continue
        if not parts:
            raise InvalidValue("member", member.name.decode(), "a file's name")
        path = used_paths.file(parts)
        if used_paths.folders > limits.members:
            raise BundleTooLarge("folders of the bundle", size=used_paths.folders, limit=limits.members)
        if member.size > limits.file:
            raise BundleTooLarge(f"bytes of member {path[:100]!r}", size=member.size, limit=limits.file)
        total += member.size
        if total > limits.total:
            raise BundleTooLarge("bytes of the bundle's files", size=total, limit=limits.total)
        hasher = hashlib.sha256()
        for piece in tar.content():
            hasher.update(piece)
        files.append((path, (b"x" if member.executable else b"-") + hasher.digest()))
    if not files:
        raise InvalidValue("archive", "no files", "a tar, plain or with gzip, that holds at least one file")
    files.sort()
    return Content(_digest(files), total, tuple(path for path, _ in files))


def digest_of(folder: Path, paths: Sequence[str]) -> str:
    """Return the digest of a bundle with these files of a folder, sorted. No link is followed. Raises OSError."""
    files = []
    for path in paths:
        with os.fdopen(os.open(folder / path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC), "rb") as file:
            is_executable = os.fstat(file.fileno()).st_mode & 0o100
            content = hashlib.file_digest(file, "sha256").digest()
        files.append((path, (b"x" if is_executable else b"-") + content))
    return _digest(files)


def _digest(files: Sequence[tuple[str, bytes]]) -> str:
    hasher = hashlib.sha256(b"ramet bundle 1\n")
    for path, content in files:
        hasher.update(len(path.encode()).to_bytes(4) + path.encode() + content)
    return hasher.hexdigest()


def extract(archive: IO[bytes], folder: Path, limits: BundleLimits) -> None:
    """Write the files of an archive that `scan` has checked into an empty folder.

    No other code may write to that folder.
    """
    tar, folders = _open_tar(archive, limits), {str(folder)}
    for member in tar.members():
        if member.is_folder:
            continue
        target = "/".join((str(folder), *checked_path(member.name, limits)))
        parent = target.rpartition("/")[0]
        if parent not in folders:
            Path(parent).mkdir(parents=True, exist_ok=True)
            folders.add(parent)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        file = os.open(target, flags, 0o555 if member.executable else 0o444)
        with os.fdopen(file, "wb") as output:
            output.writelines(tar.content())


def _open_tar(archive: IO[bytes], limits: BundleLimits) -> Tar:
    archive.seek(0)
    is_gzip = archive.read(len(_GZIP)) == _GZIP
    archive.seek(0)
    return Tar(_CountingReader(_GzipReader(archive) if is_gzip else archive, limits).read)


class _CountingReader:
    """A reader that counts the unpacked bytes: it never unpacks more than the limit."""

    def __init__(self, source: IO[bytes] | _GzipReader, limits: BundleLimits) -> None:
        self._source, self._limit, self._read_bytes = source, limits.unpacked_bytes, 0

    def read(self, size: int) -> bytes:
        """Read like a file. Raises BundleTooLarge."""
        data = self._source.read(size)
        self._read_bytes += len(data)
        if self._read_bytes > self._limit:
            raise BundleTooLarge("bytes of the unpacked archive", size=self._read_bytes, limit=self._limit)
        return data


class _GzipReader:
    """A reader that unpacks gzip data of one member: it never unpacks more than the requested size."""

    def __init__(self, source: IO[bytes]) -> None:
        self._source, self._inflater = source, zlib.decompressobj(wbits=31)

    def read(self, size: int) -> bytes:
        """Read like a file. Raises InvalidValue for incomplete gzip data, and for data after the first member."""
        data = bytearray()
        while len(data) < size and not self._inflater.eof:
            compressed = self._inflater.unconsumed_tail or self._source.read(_PIECE)
            try:
                piece = self._inflater.decompress(compressed, size - len(data))
            except zlib.error as problem:
                raise InvalidValue("archive", str(problem), "whole gzip data") from None
            if not compressed and not piece:
                raise InvalidValue("archive", "its end", "whole gzip data: this is cut short")
            data += piece
        if self._inflater.eof and (trailing := self._inflater.unused_data or self._source.read(1)):
            raise InvalidValue("archive", trailing[:40], "one member of gzip data, and nothing after it")
        return bytes(data)
