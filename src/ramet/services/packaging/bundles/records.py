"""The record of a stored bundle: a summary in the first line, and the names of its files in the second line.

Most queries need only the first line, and the names may be thousands of times as long. Older versions wrote one line,
with the names in it.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

import msgspec
from msgspec import Struct

from ramet.core.errors import Damaged
from ramet.disk.regular_files import open_regular
from ramet.isolation.limits.disk import ENTRY_BYTES
from ramet.services.packaging import atomic_dirs
from ramet.services.packaging.contract import OPERATOR, BundleInfo, OwnedBundle

_MOST: Final = 1 << 26  #: bytes of one line


def charge_of(size: int, files: Sequence[str]) -> int:
    """Return the bytes of the quota that a bundle with these files uses. Empty files are thereby limited, too.

    The charge is the bytes of the files and of their paths, plus ENTRY_BYTES for each file, for each folder and for the
    bundle.
    """
    folders: set[str] = set()
    for path in files:
        while (path := path.rpartition("/")[0]) and path not in folders:
            folders.add(path)
    return size + sum(len(path.encode()) for path in files) + (len(files) + len(folders) + 1) * ENTRY_BYTES


class Summary(Struct, frozen=True, kw_only=True):
    """A bundle without the names of its files."""

    size: int  #: bytes of the files
    count: int  #: number of files
    charge: int  #: see `charge_of`
    owners: tuple[str, ...] = (OPERATOR,)

    def as_owned_bundle(self, id: str) -> OwnedBundle:
        """Return the bundle with its owners, under the id by which it was requested."""
        return OwnedBundle(BundleInfo(id=id, size=self.size, files=self.count), self.owners)


class _OldRecord(Struct, frozen=True, kw_only=True):
    """The record of an older version.

    The oldest have no owners: uploads were by the operator, or by teams under a rule.
    """

    size: int
    files: tuple[str, ...]
    owners: tuple[str, ...] = (OPERATOR,)


class BundleRecord(NamedTuple):
    """A bundle with the names of its files."""

    summary: Summary
    files: tuple[str, ...]


def write_record(file: Path, size: int, files: tuple[str, ...], owners: tuple[str, ...]) -> None:
    """Write the record of a bundle to a file, and replace an existing one."""
    atomic_dirs.write_json(file, msgspec.to_builtins(_summary_of(size, files, owners)), files)


def read_summary(file: Path) -> Summary:
    """Return the first line of a record. Raises FileNotFoundError, OSError, and Damaged if the file is no record."""
    first = _lines(file, 1)[0]
    try:
        return msgspec.json.decode(first, type=Summary)
    except msgspec.DecodeError:
        return _decode_old(file, first).summary


def renew(file: Path) -> None:
    """Rewrite a record of an older version in the present format. Raises the same errors as `read_summary`."""
    first = _lines(file, 1)[0]
    try:
        msgspec.json.decode(first, type=Summary)
    except msgspec.DecodeError:
        old = _decode_old(file, first)
        write_record(file, old.summary.size, old.files, old.summary.owners)


def read_record(file: Path) -> BundleRecord:
    """Return a complete record. Raises the same errors as `read_summary`."""
    first, *rest = _lines(file, 2)
    if not rest or not rest[0]:
        return _decode_old(file, first)
    try:
        summary = msgspec.json.decode(first, type=Summary)
        return BundleRecord(summary, msgspec.json.decode(rest[0], type=tuple[str, ...]))
    except msgspec.DecodeError as problem:
        raise Damaged("the record of a bundle", file, str(problem)) from None


def _decode_old(file: Path, data: bytes) -> BundleRecord:
    try:
        old = msgspec.json.decode(data, type=_OldRecord)
    except msgspec.DecodeError as problem:
        raise Damaged("the record of a bundle", file, str(problem)) from None
    return BundleRecord(_summary_of(old.size, old.files, old.owners), old.files)


def _summary_of(size: int, files: tuple[str, ...], owners: tuple[str, ...]) -> Summary:
    return Summary(size=size, count=len(files), charge=charge_of(size, files), owners=owners)


def _lines(file: Path, count: int) -> list[bytes]:
    with os.fdopen(open_regular(file), "rb") as content:
        return [content.readline(_MOST) for _ in range(count)]
