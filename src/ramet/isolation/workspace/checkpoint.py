"""A checkpoint as one file: replaced whole or not at all, read whole or refused.

    magic, 8 bytes | format, 2 | version, 8 | size of the JSON, 8 | digest, 32 | body

Integers are unsigned and big-endian; the digest is BLAKE2b over everything else. The body is opaque here.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import struct
from pathlib import Path
from typing import NamedTuple

from ramet.core.errors import Damaged, InvalidValue
from ramet.disk.regular_files import open_regular

_MAGIC, _FORMAT = b"ramet-cp", 1
_HEADER = struct.Struct("!8sHQQ")
_DIGEST = 32
_LARGEST = 2**63 - 1
_DRAFT = ".draft-"
_CHUNK = 1024 * 1024
_MOST = 1 << 31  #: the maximum size of a file in bytes: a larger one is not read in one call, and so was never loaded


class OpenCheckpoint(NamedTuple):
    """A checkpoint with a correct digest, as an open file that its owner closes.

    The body is `size` bytes from `offset`: a value of a run, as `ramet.wire.values.values` encodes it. `version` is the
    run's own version number.
    """

    fd: int
    offset: int
    size: int
    json_size: int
    version: int


def save(file: Path, body: bytes, json_size: int, version: int) -> None:
    """Replace the previous checkpoint; after the return, the new one survives a loss of power.

    Raises InvalidValue or OSError. The previous checkpoint stays intact if this call is killed, or fails.
    """
    if not 0 <= json_size <= len(body):
        raise InvalidValue("json_size", json_size, f"0 to {len(body)}, the size of the body")
    if not 0 <= version <= _LARGEST:
        raise InvalidValue("version", version, f"0 to {_LARGEST}")
    header = _HEADER.pack(_MAGIC, _FORMAT, version, json_size)
    draft = file.with_name(f"{_DRAFT}{file.name}-{secrets.token_hex(4)}")
    try:
        with draft.open("xb") as stream:
            stream.writelines((header, _digest(header, body), body))
            stream.flush()
            os.fsync(stream.fileno())
        draft.replace(file)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise
    folder = os.open(file.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def open_whole(file: Path) -> OpenCheckpoint | None:
    """Open the current checkpoint once its digest is verified; None if there is none.

    Never holds all of it in memory.

    Raises Damaged for a file that `save` did not leave, or OSError.
    """
    try:
        fd = open_regular(file)
    except FileNotFoundError:
        return None
    try:
        return _verify(fd, file)
    except BaseException:
        os.close(fd)
        raise


def _verify(fd: int, file: Path) -> OpenCheckpoint:
    if os.fstat(fd).st_size > _MOST:  # A file may claim any size, and take no space.
        raise Damaged("the checkpoint", file, f"it is larger than {_MOST} bytes")
    start = _HEADER.size + _DIGEST
    head = os.pread(fd, start, 0)
    if len(head) < start or not head.startswith(_MAGIC):
        raise Damaged("the checkpoint", file, "it is not a checkpoint, or only the beginning of one")
    header = head[: _HEADER.size]
    _, form, version, json_size = _HEADER.unpack(header)
    if form > _FORMAT:
        raise Damaged("the checkpoint", file, f"its format {form} is of a newer version of ramet")
    digest, end = hashlib.blake2b(header, digest_size=_DIGEST), start
    while chunk := os.pread(fd, _CHUNK, end):
        digest.update(chunk)
        end += len(chunk)
    if head[_HEADER.size :] != digest.digest():
        raise Damaged("the checkpoint", file, "its bytes are not those that were written")
    return OpenCheckpoint(fd, start, end - start, json_size, version)


def clear_drafts(folder: Path) -> None:
    """Remove the drafts of `save` calls that were killed; no other call may be saving."""
    for draft in folder.glob(f"{_DRAFT}*"):
        with contextlib.suppress(OSError):
            draft.unlink()


def _digest(header: bytes, body: bytes) -> bytes:
    digest = hashlib.blake2b(header, digest_size=_DIGEST)
    digest.update(body)
    return digest.digest()
