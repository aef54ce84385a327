"""Masking of secrets in a stream of bytes, wherever the stream is cut into pieces."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

STARS = b"***"


class Span(NamedTuple):
    """A range of bytes."""

    start: int
    end: int


def spans_of(data: bytes, secrets: Iterable[bytes]) -> list[Span]:
    """Return the positions of these secrets, in no order; positions may overlap."""
    found = []
    for secret in secrets:
        at = data.find(secret)
        while at >= 0:
            found.append(Span(at, at + len(secret)))
            at = data.find(secret, at + 1)
    return found


def merged(spans: Iterable[Span]) -> list[Span]:
    """Return the spans in order, with overlapping spans joined."""
    found: list[Span] = []
    for start, end in sorted(spans):
        if found and start < found[-1].end:
            found[-1] = Span(found[-1].start, max(end, found[-1].end))
        else:
            found.append(Span(start, end))
    return found


class Mask:
    """A filter that replaces every range of bytes of a secret by `***`; overlapping secrets make one range.

    Bytes that may begin a secret are held back until more have arrived: at most one byte less than the longest secret.
    The joined output does not depend on the cuts of the stream. This protects against accidents: a guest can
    deliberately print a secret in another form.
    """

    def __init__(self, secrets: Iterable[str]) -> None:
        self._secrets = sorted({each.encode(errors="surrogateescape") for each in secrets if each})
        self._longest = max(map(len, self._secrets), default=0)
        self._firsts = re.compile(b"|".join({re.escape(each[:1]) for each in self._secrets}), re.DOTALL)
        self._by_first: dict[int, list[bytes]] = {}
        for each in self._secrets:
            self._by_first.setdefault(each[0], []).append(each)
        self._held = b""
        #: bytes at the beginning of the held bytes that belong to a range whose stars have been output
        self._covered = 0

    def feed(self, data: bytes, *, last: bool = False) -> bytes:
        """Return the bytes that may be shown after `data` has arrived; with `last`, all remaining bytes."""
        if not self._secrets:
            return data
        data = self._held + data
        keep = len(data) if last else self._beginning(data)
        shown = bytearray()
        done = 0  # Everything before this index has been output, plain or as stars.
        for start, end in self._stretches(data):
            if start >= keep:
                break
            shown += data[done:start]
            if start or not self._covered:
                shown += STARS
            done = end
        shown += data[done:keep]
        self._held, self._covered = data[keep:], max(0, done - keep)
        return bytes(shown)

    def _beginning(self, data: bytes) -> int:
        """Return the position where an incomplete secret may begin; the end of the data if there is none."""
        for first in self._firsts.finditer(data, max(0, len(data) - self._longest + 1)):
            rest = data[first.start() :]
            if any(len(secret) > len(rest) and secret.startswith(rest) for secret in self._by_first[rest[0]]):
                return first.start()
        return len(data)

    def _stretches(self, data: bytes) -> list[Span]:
        """Return the ranges to mask, in order, with overlapping ones joined."""
        held = [Span(0, self._covered)] if self._covered else []
        return merged([*held, *spans_of(data, self._secrets)])
