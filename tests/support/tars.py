"""Archives for tests: valid ones, and headers with arbitrary content."""

from __future__ import annotations

import gzip
import io
import tarfile
from collections.abc import Mapping

END = bytes(1024)


def tar(
    files: Mapping[str, bytes],
    *,
    packed: bool = False,
    mtime: int = 0,
    mode: int = 0o644,
    format: int = tarfile.PAX_FORMAT,
) -> bytes:
    """Return these files as tar programs write them."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=format) as archive:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size, info.mtime, info.mode = len(content), mtime, mode
            archive.addfile(info, io.BytesIO(content))
    return gzip.compress(out.getvalue(), mtime=mtime) if packed else out.getvalue()


def header(
    name: bytes, *, kind: bytes = b"0", size: int | bytes = 0, mode: int = 0o644, prefix: bytes = b"", link: bytes = b""
) -> bytes:
    """Return one header with arbitrary fields and a correct checksum."""
    size_field = size if isinstance(size, bytes) else b"%011o\0" % size
    block = b"".join((
        name.ljust(100, b"\0")[:100], b"%07o\0" % mode, b"0000000\0" * 2, size_field, b"%011o\0" % 0, b" " * 8, kind,
        link.ljust(100, b"\0"), b"ustar\x0000", bytes(64), b"0000000\0" * 2, prefix.ljust(155, b"\0"),
    )).ljust(512, b"\0")  # fmt: skip
    return block[:148] + b"%06o\0 " % sum(block) + block[156:]


def member(name: bytes, content: bytes = b"", **fields: bytes | int) -> bytes:
    """Return a header and the content that follows it. `fields` are for `header`."""
    size = fields.pop("size", len(content))
    return header(name, size=size, **fields) + content + bytes(-len(content) % 512)  # type: ignore[arg-type]


def record(key: bytes, value: bytes) -> bytes:
    """Return one record of an extended header."""
    rest = b" " + key + b"=" + value + b"\n"
    length = len(rest) + 1
    while len(str(length)) + len(rest) != length:
        length = len(str(length)) + len(rest)
    return str(length).encode() + rest
