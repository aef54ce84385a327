"""Checksums of events: a reader detects corruption by a disk or by a program that edits journals."""

from __future__ import annotations

from zlib import crc32


def checksum_of(cursor: int, run: int, seq: int, kind: int, data: bytes) -> int:
    """Return the checksum of an event's row: of its bytes, and of the numbers in the same row."""
    return crc32(data, (cursor ^ run << 8 ^ seq << 16 ^ kind << 24) & 0xFFFF_FFFF)
