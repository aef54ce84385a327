"""Read a tar strictly (files, folders, optionally links, every byte accounted for), and write one.

The parser is our own for two reasons. The standard library's accepts features that ramet does not need: sparse files,
and header sizes that are read into memory completely. It is also lenient where two readers of one archive may see
different files. This parser knows the formats that tar programs write: ustar, GNU's long names ("L", "K") and the
extended headers of POSIX ("x", "g").
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from ramet.core.errors import InvalidValue

BLOCK = 512
MAX_EXTENDED = 64 * 1024  #: bytes of one extended header
MAX_EXTENDED_ALL = 16 * 1024 * 1024  #: bytes of all extended headers in an archive
_CHUNK = 256 * 1024
_REFUSED_KINDS = {
    b"1": "a hard link", b"2": "a symbolic link", b"3": "a character device", b"4": "a block device", b"6": "a fifo",
    b"K": "a link with a long name", b"S": "a sparse file", b"M": "a part of another archive",
}  # fmt: skip

Read = Callable[[int], bytes]  #: like a file's `read`: fewer bytes than requested only at the end


class Member(NamedTuple):
    """A file, folder or link as described by its header: only the form is checked."""

    name: bytes
    is_folder: bool
    size: int
    mode: int = 0o644
    link: bytes | None = None  #: target of a symbolic link

    @property
    def executable(self) -> bool:
        """Return whether the owner may execute the file."""
        return bool(self.mode & 0o100)


def header(member: Member) -> bytes:
    """Return the header of a member; its content must be padded to whole blocks.

    Raises InvalidValue for 8 GiB or more.
    """
    kind = b"5" if member.is_folder else b"0" if member.link is None else b"2"
    link = member.link or b""
    return b"".join(
        (
            b"" if len(member.name) <= 100 else _long_name_header(b"L", member.name),
            b"" if len(link) <= 100 else _long_name_header(b"K", link),
            _block(member.name[:100], member.mode, member.size, kind, link[:100]),
        )
    )


#: The end marker of an archive.
END = bytes(2 * BLOCK)


class Tar:
    """The members of an archive, in order.

    The content of each must be read before the next member; unread content is skipped.
    """

    def __init__(self, read: Read, *, links: bool = False, max_extended: int = MAX_EXTENDED_ALL) -> None:
        """Open an archive.

        Symbolic links are members only with `links`; `max_extended` bounds all extended headers together.
        """
        self._read, self._links, self._max_extended = read, links, max_extended
        self._remaining = 0  #: unread bytes of the current member's content
        self._padding = 0  #: bytes of padding after the content
        self._extended_bytes = 0  #: bytes of all extended headers so far

    def members(self) -> Iterator[Member]:
        """Yield each file and folder. Raises InvalidValue for other types, and for an incomplete or invalid tar."""
        longer: dict[str, bytes] = {}  #: fields of extended headers that apply to the next member
        while True:
            block = self._read_exactly(BLOCK)
            if _is_zeros(block):
                return self._end(longer)
            kind, size = _check_header(block)
            if kind in (b"x", b"g", b"L") or (kind == b"K" and self._links):
                self._extend(longer, kind, size)
                continue
            name = longer.pop("path", None) or _name(block)
            link = longer.pop("linkpath", None) or block[157:257].partition(b"\0")[0]
            is_link = self._links and kind == b"2"
            if kind in _REFUSED_KINDS and not is_link:
                raise InvalidValue(
                    "member", _printable(name), f"a regular file or a folder, not {_REFUSED_KINDS[kind]}"
                )
            if kind not in (b"0", b"\0", b"5") and not is_link:
                raise InvalidValue("member", _printable(name), f"a regular file or a folder, not of type {kind!r}")
            size = _decimal("member", longer.pop("size", b""), size)
            # The oldest tar formats have no type for folders.
            folder = kind == b"5" or (name.endswith(b"/") and not is_link)
            if (folder or is_link) and size:
                raise InvalidValue("member", _printable(name), "a folder without content")
            self._remaining, self._padding = size, -size % BLOCK
            yield Member(name, folder, size, _octal(block[100:108]), link if is_link else None)
            for _ in self.content():
                pass
            self._read_exactly(self._padding)

    def content(self) -> Iterator[bytes]:
        """Yield the bytes of the current member, in chunks."""
        while self._remaining:
            piece = self._read_exactly(min(self._remaining, _CHUNK))
            self._remaining -= len(piece)
            yield piece

    def _extend(self, longer: dict[str, bytes], kind: bytes, size: int) -> None:
        self._extended_bytes += BLOCK + size
        if size > MAX_EXTENDED or self._extended_bytes > self._max_extended:
            accepted = f"at most {MAX_EXTENDED}, and {self._max_extended} of all together"
            raise InvalidValue("archive", f"an extended header of {size} bytes", accepted)
        data = self._read_exactly(size)
        self._read_exactly(-size % BLOCK)
        long = {b"L": "path", b"K": "linkpath"}.get(kind)
        fields = {long: data.rstrip(b"\0")} if long else _parse_extended_header(data)
        if kind == b"g" and fields:
            raise InvalidValue("archive", ", ".join(fields), "a global header without names and sizes")
        if repeated_fields := longer.keys() & fields.keys():
            raise InvalidValue("archive", ", ".join(sorted(repeated_fields)), "one extended header for a member")
        longer |= fields

    def _end(self, longer: dict[str, bytes]) -> None:
        """Check that only zeros follow the first block of zeros: another reader might read data there as members."""
        if longer:
            raise InvalidValue("archive", ", ".join(sorted(longer)), "a member after its extended header")
        while piece := self._read(_CHUNK):
            if not _is_zeros(piece):
                raise InvalidValue("archive", piece.strip(b"\0")[:40], "nothing after its end")

    def _read_exactly(self, size: int) -> bytes:
        data = self._read(size) if size else b""
        if len(data) < size:
            raise InvalidValue("archive", "its end", "a complete tar: this one is cut short, or not a tar")
        return data


def _long_name_header(kind: bytes, name: bytes) -> bytes:
    """Return a header that holds the long name of the next header."""
    data = name + b"\0"
    return _block(b"././@LongLink", 0o644, len(data), kind, b"") + data + bytes(-len(data) % BLOCK)


def _block(name: bytes, mode: int, size: int, kind: bytes, link: bytes) -> bytes:
    if size >= 8**11:
        raise InvalidValue("member", _printable(name), "a file of less than 8 GiB")
    block = bytearray(BLOCK)
    block[: len(name)] = name
    block[100:107], block[124:135] = b"%07o" % mode, b"%011o" % size
    block[148:156], block[156:157] = b" " * 8, kind
    block[157 : 157 + len(link)] = link
    block[257:265] = b"ustar  \0"
    block[148:155] = b"%06o\0" % sum(block)
    return bytes(block)


def _check_header(block: bytes) -> tuple[bytes, int]:
    """Return the type and the size of a header. Raises InvalidValue if the block is no header."""
    checksum = _octal(block[148:156])
    if checksum != sum(block[:148]) + sum(block[156:]) + 8 * 0x20:
        raise InvalidValue("archive", block[:16], "a tar, plain or with gzip: no header found")
    return block[156:157], _octal(block[124:136])


def _name(block: bytes) -> bytes:
    name = block[:100].partition(b"\0")[0]
    # GNU's own format ("ustar ") has times where POSIX has the prefix of a long name.
    prefix = block[345:500].partition(b"\0")[0] if block[257:263] == b"ustar\0" else b""
    return prefix + b"/" + name if prefix else name


def _octal(field: bytes) -> int:
    digits = field.strip(b" \0")
    if not digits:
        return 0
    try:
        if not digits.isdigit():
            raise ValueError
        return int(digits, 8)
    except ValueError:  # also GNU's binary numbers, used for sizes larger than any bundle
        raise InvalidValue("archive", field, "numbers in octal digits") from None


def _decimal(field: str, digits: bytes, default: int) -> int:
    if not digits:
        return default
    if not digits.isdigit() or len(digits) > 18:
        raise InvalidValue(field, digits, "a size in decimal digits")
    return int(digits)


def _parse_extended_header(data: bytes) -> dict[str, bytes]:
    r"""Return names and sizes of records "LENGTH KEY=VALUE\\n"; times, owners and comments are ignored."""
    fields: dict[str, bytes] = {}
    start = 0
    while start < len(data):
        digits = data[start : start + 8].partition(b" ")[0]
        end = start + _decimal("archive", digits, 0)
        key, equals, value = data[start + len(digits) + 1 : end].partition(b"=")
        if end > len(data) or not equals or not value.endswith(b"\n"):
            raise InvalidValue("archive", data[start : start + 40], "extended headers of records 'LENGTH KEY=VALUE'")
        start = end
        if key.startswith(b"GNU.sparse"):
            raise InvalidValue("archive", key, "no sparse files")
        if key in (b"path", b"size"):
            if key.decode() in fields:
                raise InvalidValue("archive", key, "each key once")
            fields[key.decode()] = value[:-1]
    return fields


def _is_zeros(data: bytes) -> bool:
    return data.count(0) == len(data)


def _printable(name: bytes) -> str:
    return name.decode(errors="replace")
