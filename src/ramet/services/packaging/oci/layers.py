"""Layers of images: files packed into a tar with gzip. Equal files give equal bytes, everywhere and always."""

from __future__ import annotations

import hashlib
import stat
import tarfile
import zlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO, NamedTuple

_BYTECODE = "__pycache__"
_LEVEL = 6
_PIECE = 1024 * 1024


class Layer(NamedTuple):
    """A packed layer: `digest` and `size` are of the packed data, `diff_id` is the digest of the unpacked data."""

    digest: str
    diff_id: str
    size: int


class Entry(NamedTuple):
    """A file of a layer, or a folder, by its path below the root, without a leading slash."""

    place: str
    file: Path | None  #: the file with the content; None for a folder
    executable: bool = False


def write_layer(out: IO[bytes], folders: Mapping[str, Path]) -> Layer:
    """Pack folders, each below its path, into a layer. Waits for the disk.

    Links and special files are left out. `__pycache__` is left out too, because imports may have written it meanwhile.
    """
    return write_entries(out, _entries(folders))


def write_entries(out: IO[bytes], entries: Iterable[Entry]) -> Layer:
    """Pack files and folders in the given order, each after its parent folders. Waits for the disk."""
    output = _GzipWriter(out)
    folders: set[str] = set()
    with tarfile.open(fileobj=output, mode="w|", format=tarfile.PAX_FORMAT) as tar:  # type: ignore[call-overload]
        for path, file, executable in entries:
            steps = path.split("/")
            for end in range(1, len(steps) + (file is None)):
                parent = "/".join(steps[:end])
                if parent not in folders:
                    folders.add(parent)
                    tar.addfile(_header(parent, tarfile.DIRTYPE, 0o755))
            if file is not None:
                header = _header(path, tarfile.REGTYPE, 0o555 if executable else 0o444)
                with file.open("rb") as content:
                    header.size = file.stat().st_size
                    tar.addfile(header, content)
    return output.finish()


def write_tar(out: IO[bytes], source: IO[bytes]) -> Layer:
    """Pack an existing tar. Waits for the disk."""
    output = _GzipWriter(out)
    while piece := source.read(_PIECE):
        output.write(piece)
    return output.finish()


def _entries(folders: Mapping[str, Path]) -> Iterator[Entry]:
    for place in sorted(folders):
        for path in (folders[place], *sorted(folders[place].rglob("*"))):
            parts = (place, *path.relative_to(folders[place]).parts)
            mode = path.lstat().st_mode
            if _BYTECODE not in parts and (stat.S_ISDIR(mode) or stat.S_ISREG(mode)):
                yield Entry("/".join(parts), path if stat.S_ISREG(mode) else None, bool(mode & stat.S_IXUSR))


def _header(name: str, kind: bytes, mode: int) -> tarfile.TarInfo:
    header = tarfile.TarInfo(name)  # Times and owners of a new one are zero.
    header.type, header.mode = kind, mode
    return header


class _GzipWriter:
    """A writer that compresses its input, and hashes both input and output."""

    def __init__(self, out: IO[bytes]) -> None:
        self._out, self._size = out, 0
        self._inner, self._outer = hashlib.sha256(), hashlib.sha256()
        self._packer = zlib.compressobj(_LEVEL, wbits=31)  # gzip without a time and a name

    def write(self, data: bytes) -> int:
        """Write like a file."""
        self._inner.update(data)
        self._put(self._packer.compress(data))
        return len(data)

    def finish(self) -> Layer:
        """Finish the compression, and return everything that was written as a layer."""
        self._put(self._packer.flush())
        return Layer(f"sha256:{self._outer.hexdigest()}", f"sha256:{self._inner.hexdigest()}", self._size)

    def _put(self, data: bytes) -> None:
        self._outer.update(data)
        self._out.write(data)
        self._size += len(data)
