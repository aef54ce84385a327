"""The type of an image or a document, from its first bytes. Nothing here decodes more than a header."""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from ramet.core.errors import InvalidValue

#: Bytes of one file: as base64 it stays below the 5 MB that providers accept for an image.
MAX_FILE_BYTES: Final = 3_750_000
#: Pixels of one side of an image: providers refuse larger ones.
MAX_SIDE: Final = 8_000
MAX_NAME: Final = 200

TEXT: Final = "text/plain"
PDF: Final = "application/pdf"
IMAGE_TYPES: Final = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp"})
ACCEPTED: Final = f"a PNG, JPEG, GIF or WebP image, a PDF or UTF-8 text, of 1 to {MAX_FILE_BYTES} bytes"

_JPEG_FRAMES: Final = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_MAX_SEGMENTS: Final = 1_000  #: of a JPEG before its frame; metadata comes in segments of 64 KiB


class MediaType(NamedTuple):
    """The type of a file, and the pixels of an image."""

    name: str
    width: int = 0
    height: int = 0

    @property
    def is_image(self) -> bool:
        return self.name in IMAGE_TYPES


def media_type_of(data: bytes, field: str = "data") -> MediaType:
    """Return the type of a file by its content. Raises InvalidValue for a file that no model gets."""
    if not 0 < len(data) <= MAX_FILE_BYTES:
        raise InvalidValue(field, f"{len(data)} bytes", ACCEPTED)
    if data.startswith(b"%PDF-"):
        return MediaType(PDF)
    found = _image(data)
    if found is None:
        if _is_text(data):
            return MediaType(TEXT)
        raise InvalidValue(field, f"{len(data)} bytes of another kind", ACCEPTED)
    if not (0 < found.width <= MAX_SIDE and 0 < found.height <= MAX_SIDE):
        size = f"{found.name} of {found.width} x {found.height} pixels"
        raise InvalidValue(field, size, f"an image of 1 to {MAX_SIDE} pixels a side")
    return found


def is_media_header(beginning: bytes) -> bool:
    """Return whether a file that begins so is an image or a PDF, as far as its first 12 bytes say."""
    return beginning.startswith((b"%PDF-", b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff", b"GIF87a", b"GIF89a")) or (
        beginning[:4] == b"RIFF" and beginning[8:12] == b"WEBP"
    )


def _image(data: bytes) -> MediaType | None:
    """Return the type and size of an image, of 0 pixels if its header is broken; None for another file."""
    try:
        if data.startswith(b"\x89PNG\r\n\x1a\n"):
            return MediaType("image/png", *(struct.unpack_from(">II", data, 16) if data[12:16] == b"IHDR" else ()))
        if data.startswith((b"GIF87a", b"GIF89a")):
            return MediaType("image/gif", *struct.unpack_from("<HH", data, 6))
        if data.startswith(b"\xff\xd8\xff"):
            return _jpeg(data)
        if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
            return _webp(data)
    except (struct.error, IndexError):
        return MediaType("a broken image")
    return None


def _jpeg(data: bytes) -> MediaType:
    at = 2
    for _ in range(_MAX_SEGMENTS):
        while data[at] == 0xFF and data[at + 1] == 0xFF:  # Fill bytes.
            at += 1
        if data[at] != 0xFF:
            break
        marker = data[at + 1]
        if marker in _JPEG_FRAMES:
            height, width = struct.unpack_from(">HH", data, at + 5)
            return MediaType("image/jpeg", width, height)
        at += 2 if 0xD0 <= marker <= 0xD9 else 2 + struct.unpack_from(">H", data, at + 2)[0]
    return MediaType("image/jpeg")


def _webp(data: bytes) -> MediaType:
    match data[12:16]:
        case b"VP8 ":
            width, height = struct.unpack_from("<HH", data, 26)
            return MediaType("image/webp", width & 0x3FFF, height & 0x3FFF)
        case b"VP8L":
            bits = struct.unpack_from("<I", data, 21)[0]
            return MediaType("image/webp", (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1)
        case b"VP8X":
            width, height = (1 + int.from_bytes(data[at : at + 3], "little") for at in (24, 27))
            return MediaType("image/webp", width, height)
        case _:
            return MediaType("image/webp")


def _is_text(data: bytes) -> bool:
    if b"\0" in data:
        return False
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True
